// Special registers and the shared-memory window.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// %tid.x
TILEWISE_INSTRUCTION u32 thread_index() TILEWISE_PTX({ return threadIdx.x; });
// %ctaid.x
TILEWISE_INSTRUCTION u32 block_index_x() TILEWISE_PTX({ return blockIdx.x; });
// %ctaid.y
TILEWISE_INSTRUCTION u32 block_index_y() TILEWISE_PTX({ return blockIdx.y; });
// %ctaid.z
TILEWISE_INSTRUCTION u32 block_index_z() TILEWISE_PTX({ return blockIdx.z; });
// %nctaid.x
TILEWISE_INSTRUCTION u32 grid_size_x() TILEWISE_PTX({ return gridDim.x; });
// %nctaid.y
TILEWISE_INSTRUCTION u32 grid_size_y() TILEWISE_PTX({ return gridDim.y; });

// The block's number in a launch of one dimension that was folded into two (fold_grid).
TILEWISE_INLINE u64 block_number() { return u64(block_index_y()) * grid_size_x() + block_index_x(); }

// The block's dynamic shared memory, 1024-byte aligned.
TILEWISE_INSTRUCTION unsigned char* dynamic_shared() TILEWISE_PTX({
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return dynamic_shared_memory;
});

// cvta.to.shared: the 32-bit address that ld.shared, ldmatrix, cp.async and their kin take.
TILEWISE_INSTRUCTION u32 shared_address(const void* pointer)
    TILEWISE_PTX({ return u32(__cvta_generic_to_shared(pointer)); });

// The same value, of which the compiler knows nothing: what is computed from it in a loop is computed there,
// not before the loop into registers that the loop needs.
TILEWISE_INLINE u32 opaque(u32 x) {
  if constexpr (TILEWISE_ARCH > 0) asm volatile("" : "+r"(x));
  return x;
}

}  // namespace tilewise::ptx
