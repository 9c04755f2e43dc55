// Warps and warpgroups (128 threads): elections and the reallocation of registers.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// elect.sync: true in one lane of the warp
TILEWISE_INSTRUCTION bool elect_one() TILEWISE_PTX({
  u32 elected;
  asm volatile(
      "{ .reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p; }"
      : "=r"(elected));
  return elected != 0;
});

// setmaxnreg.inc, by all warps of a warpgroup: waits until other warpgroups have given up enough registers
template <int Registers>
TILEWISE_INLINE void registers_increase() {
  TILEWISE_PTX(asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));)
}

// setmaxnreg.dec
template <int Registers>
TILEWISE_INLINE void registers_decrease() {
  TILEWISE_PTX(asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));)
}

}  // namespace tilewise::ptx
