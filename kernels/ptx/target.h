// The one switch between device and emulation. On the device every wrapper in this folder is the instruction
// that its comment names. With TILEWISE_EMULATE defined the same headers compile as host C++20 and the
// wrappers are declarations only, which tests/emulator defines. Kernels never look at the switch.
#pragma once

#include "../shared/types.h"

#ifdef TILEWISE_EMULATE
#define TILEWISE_INSTRUCTION
#define TILEWISE_PTX(...)
#define TILEWISE_INLINE inline
#define TILEWISE_ARCH 0
#define TILEWISE_KERNEL(threads, blocks) inline void
#define TILEWISE_GRID_CONSTANT
#else
#define TILEWISE_INSTRUCTION static __device__ __forceinline__
#define TILEWISE_PTX(...) __VA_ARGS__
#define TILEWISE_INLINE __device__ __forceinline__
#define TILEWISE_ARCH __CUDA_ARCH__
// A kernel of so many threads a block, of which so many blocks must fit a multiprocessor's registers.
#define TILEWISE_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define TILEWISE_GRID_CONSTANT __grid_constant__
#endif

namespace tilewise::ptx {

// sm_100 and up: NVRTC's code for the same loop takes some registers more than for the GPUs before.
inline constexpr bool kFewerRegisters = TILEWISE_ARCH >= 1000;

}  // namespace tilewise::ptx
