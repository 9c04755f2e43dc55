// cp.async: 16 bytes from global to shared memory past the registers, seen after a wait and a barrier.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// cp.async.cg.shared.global 16, source_bytes: copies source_bytes (0..16) and zero-fills the rest; 0 reads
// nothing.
TILEWISE_INSTRUCTION void cp_async_16(u32 shared, const void* global, u32 source_bytes) TILEWISE_PTX({
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
});

// cp.async.cg.shared.global 16, ignore-src: copies 16 bytes, or writes 16 zeros and reads nothing.
TILEWISE_INSTRUCTION void cp_async_16_if(u32 shared, const void* global, bool exists) TILEWISE_PTX({
  asm volatile(
      "{\n .reg .pred ignore;\n setp.eq.b32 ignore, %2, 0;\n"
      " cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignore;\n}" ::"r"(shared),
      "l"(global), "r"(int(exists))
      : "memory");
});

// cp.async.commit_group
TILEWISE_INSTRUCTION void cp_async_commit() TILEWISE_PTX({
  asm volatile("cp.async.commit_group;" ::: "memory");
});

// cp.async.wait_group kPending: returns when at most kPending of the thread's youngest groups are in
// flight.
template <int kPending>
TILEWISE_INSTRUCTION void cp_async_wait() TILEWISE_PTX({
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
});

}  // namespace tilewise::ptx
