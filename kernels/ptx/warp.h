// Exchange between the 32 lanes of a warp; all lanes take part.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// shfl.sync.bfly.b32
TILEWISE_INSTRUCTION float shfl_xor(float x, int lane_mask)
    TILEWISE_PTX({ return __shfl_xor_sync(0xFFFFFFFFu, x, lane_mask); });

// shfl.sync.bfly.b32
TILEWISE_INSTRUCTION u32 shfl_xor(u32 x, int lane_mask)
    TILEWISE_PTX({ return __shfl_xor_sync(0xFFFFFFFFu, x, lane_mask); });

// shfl.sync.up.b32: from lane - delta; lanes below delta keep their own
TILEWISE_INSTRUCTION u32 shfl_up(u32 x, int delta)
    TILEWISE_PTX({ return __shfl_up_sync(0xFFFFFFFFu, x, delta); });

// shfl.sync.idx.b32
TILEWISE_INSTRUCTION u32 shfl_idx(u32 x, int lane)
    TILEWISE_PTX({ return __shfl_sync(0xFFFFFFFFu, x, lane); });

// A number that all lanes have, which the compiler learns: branches on it are then uniform.
TILEWISE_INLINE i32 uniform(i32 x) { return i32(shfl_idx(u32(x), 0)); }

// The same by redux.sync.or.b32, which leaves it in a register of the warp: a loop's own are short.
TILEWISE_INLINE u32 in_warp_register(u32 x) {
  if constexpr (TILEWISE_ARCH > 0) asm volatile("redux.sync.or.b32 %0, %0, 0xffffffff;" : "+r"(x));
  return x;
}

// vote.sync.ballot.b32: bit l = lane l says yes
TILEWISE_INSTRUCTION u32 vote_ballot(bool x) TILEWISE_PTX({ return __ballot_sync(0xFFFFFFFFu, x); });

// redux.sync.max.u32
TILEWISE_INSTRUCTION u32 reduce_max(u32 x) TILEWISE_PTX({ return __reduce_max_sync(0xFFFFFFFFu, x); });

// popc.b32
TILEWISE_INSTRUCTION int set_bits(u32 x) TILEWISE_PTX({ return __popc(x); });

// brev.b32, clz.b32: the lowest bit that is set
TILEWISE_INSTRUCTION int lowest_bit(u32 x) TILEWISE_PTX({ return __ffs(int(x)) - 1; });

// bmsk.clamp.b32: the lowest `count` bits, 0 to 32
TILEWISE_INSTRUCTION u32 low_bits(int count) TILEWISE_PTX({
  u32 mask;
  asm("bmsk.clamp.b32 %0, 0, %1;" : "=r"(mask) : "r"(count));
  return mask;
});

// vote.sync.any.pred
TILEWISE_INSTRUCTION bool vote_any(bool x) TILEWISE_PTX({ return __any_sync(0xFFFFFFFFu, x) != 0; });

// vote.sync.all.pred
TILEWISE_INSTRUCTION bool vote_all(bool x) TILEWISE_PTX({ return __all_sync(0xFFFFFFFFu, x) != 0; });

}  // namespace tilewise::ptx
