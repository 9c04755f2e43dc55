// TMA: one thread copies a box of a tensor (described by a tensor map) into swizzled shared memory or back.
// On the way in the bytes are counted on an mbarrier; what lies outside the tensor arrives as zeros and is
// counted as well. On the way out it is left alone, and the thread waits for groups of its copies.
#pragma once

#include "../shared/tensor_map.h"
#include "special.h"

namespace tilewise::ptx {

// L2 eviction policies as createpolicy.fractional with fraction 1 encodes them.
inline constexpr u64 kEvictFirst = 0x12F0000000000000ull;
inline constexpr u64 kEvictLast = 0x14F0000000000000ull;

// fence.proxy.async: what this thread has written to shared memory with ordinary stores is seen by wgmma and
// TMA after the next barrier
TILEWISE_INSTRUCTION void fence_proxy_async() TILEWISE_PTX({
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
});

// prefetch.tensormap
TILEWISE_INSTRUCTION void prefetch_map(const TensorMap& map) TILEWISE_PTX({
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
});

// cp.async.bulk.tensor.5d: the box at (c0 .. c4), innermost coordinate first
TILEWISE_INSTRUCTION void tma_load_5d(void* smem, const TensorMap& map, u64& bar, i32 c0, i32 c1, i32 c2,
                                      i32 c3, i32 c4, u64 policy) TILEWISE_PTX({
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(shared_address(smem)),
      "l"(&map), "r"(shared_address(&bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "l"(policy)
      : "memory");
});

// cp.async.bulk.tensor.4d
TILEWISE_INSTRUCTION void tma_load_4d(void* smem, const TensorMap& map, u64& bar, i32 c0, i32 c1, i32 c2,
                                      i32 c3, u64 policy) TILEWISE_PTX({
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(smem)),
      "l"(&map), "r"(shared_address(&bar)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
});

// cp.async.bulk.tensor.5d, the other way
TILEWISE_INSTRUCTION void tma_store_5d(const TensorMap& map, const void* smem, i32 c0, i32 c1, i32 c2, i32 c3,
                                       i32 c4) TILEWISE_PTX({
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(&map),
      "r"(shared_address(smem)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
});

// cp.async.bulk.commit_group
TILEWISE_INSTRUCTION void tma_store_commit() TILEWISE_PTX({
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
});

// cp.async.bulk.wait_group.read 0: this thread's stores have read shared memory
TILEWISE_INSTRUCTION void tma_store_wait_read() TILEWISE_PTX({
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
});

// cp.async.bulk.wait_group 0: they have been written
TILEWISE_INSTRUCTION void tma_store_wait() TILEWISE_PTX({
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
});

}  // namespace tilewise::ptx
