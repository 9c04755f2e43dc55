// mbarrier: a shared-memory barrier that counts arriving threads and, for TMA, arriving bytes. A fresh
// barrier is in phase 0; mbarrier_wait(bar, parity) returns once the phase of that parity is complete, so
// consumers start with parity 0 and producers, who wait for buffers that nobody has used yet, with 1.
#pragma once

#include "special.h"

namespace tilewise::ptx {

// mbarrier.init
TILEWISE_INSTRUCTION void mbarrier_init(u64& bar, u32 arrivals) TILEWISE_PTX({
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&bar)), "r"(arrivals)
               : "memory");
});

// fence.mbarrier_init: makes fresh barriers visible to TMA; a barrier of the block must follow.
TILEWISE_INSTRUCTION void mbarrier_init_fence() TILEWISE_PTX({
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
});

// mbarrier.arrive
TILEWISE_INSTRUCTION void mbarrier_arrive(u64& bar) TILEWISE_PTX({
  asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(shared_address(&bar)) : "memory");
});

// mbarrier.arrive.expect_tx: one arrival, and the phase also waits for this many bytes from TMA.
TILEWISE_INSTRUCTION void mbarrier_arrive_expect(u64& bar, u32 bytes) TILEWISE_PTX({
  asm volatile(
      "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&bar)),
      "r"(bytes)
      : "memory");
});

// mbarrier.try_wait.parity until it succeeds; asleep meanwhile, for up to so many nanoseconds at a time
inline constexpr u32 kPatience = 1000000;
TILEWISE_INSTRUCTION void mbarrier_wait(u64& bar, u32 parity) TILEWISE_PTX({
  asm volatile(
      "{ .reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@!done bra again; }" ::"r"(shared_address(&bar)),
      "r"(parity), "r"(kPatience)
      : "memory");
});

}  // namespace tilewise::ptx
