// wgmma: D[64, N] fp32 (+)= A[64, 16] B[16, N], issued by the 128 threads of a warpgroup and executed
// asynchronously. B lies in shared memory and is named by a descriptor, A too (ss) or in registers (rs).
//
// D is laid out as m16n8 accumulators side by side: warp w of the group, lane = 4 g + q, d[t][2 h + e] is row
// 16 w + g + 8 h, column 8 t + 2 q + e. A in registers is the m16k16 fragment of mma.sync, so packed pairs of
// D are the A of the next product. Between issue and wait neither may be touched.
//
//   Wgmma<N>::ss<E, TransB>(d, a_descriptor, b_descriptor, accumulate)   TransB 0: B lies as [N][k], 1:
//   [k][N] Wgmma<N>::rs<E, TransB>(d, a_registers, b_descriptor, accumulate)
#pragma once

#include "../shared/config.h"
#include "special.h"

#ifdef TILEWISE_EMULATE
namespace tilewise::ptx {

// Exactly one of a_registers and a_descriptor counts.
void wgmma(float (*d)[4], int n, Element e, int trans_b, const u32* a_registers, u64 a_descriptor,
           u64 b_descriptor, int accumulate);

template <int N>
struct Wgmma {
  template <Element E, int TransB>
  static void ss(float (&d)[N / 8][4], u64 a, u64 b, int accumulate) {
    wgmma(d, N, E, TransB, nullptr, a, b, accumulate);
  }
  template <Element E, int TransB>
  static void rs(float (&d)[N / 8][4], const u32 (&a)[4], u64 b, int accumulate) {
    wgmma(d, N, E, TransB, a, 0, b, accumulate);
  }
};

}  // namespace tilewise::ptx
#else
#include "wgmma_shapes.h"
#endif

namespace tilewise::ptx {

// wgmma.fence: before a batch whose registers ordinary instructions have written
TILEWISE_INSTRUCTION void wgmma_fence() TILEWISE_PTX({
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
});

// wgmma.commit_group
TILEWISE_INSTRUCTION void wgmma_commit() TILEWISE_PTX({
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
});

// wgmma.wait_group 0
TILEWISE_INSTRUCTION void wgmma_wait_all() TILEWISE_PTX({
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
});

// wgmma.wait_group 1: the youngest group may still be running
TILEWISE_INSTRUCTION void wgmma_wait_all_but_one() TILEWISE_PTX({
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
});

// No instruction: pins accumulators, so that the compiler moves no read of them above the wait before it.
template <int Tiles>
TILEWISE_INLINE void pin([[maybe_unused]] float (&d)[Tiles][4]) {
#pragma unroll
  for (int t = 0; t < Tiles; ++t) {
    TILEWISE_PTX(asm volatile("" : "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3])::"memory");)
  }
}

// Descriptor of an operand in 128-byte swizzled shared memory: blocks of [rows][64] 16-bit elements,
// 1024-byte aligned. K-major (A, and B with TransB 0): rows are M or N, the 64 columns are k, and
// `block_bytes` is ignored. MN-major (TransB 1): rows are k, and `block_bytes` leads from one block of 64
// columns to the next.
TILEWISE_INLINE u64 descriptor_128b(u32 smem, u32 block_bytes) {
  constexpr u64 kSwizzle128 = u64{1} << 62, kEightRows = u64{1024 >> 4} << 32;
  return kSwizzle128 | kEightRows | (u64{block_bytes >> 4} << 16) | ((smem & 0x3FFFF) >> 4);
}

// The same operand, `bytes` further on: the address sits in the low bits and never carries.
TILEWISE_INLINE u64 advance(u64 descriptor, u32 bytes) { return descriptor + (bytes >> 4); }

}  // namespace tilewise::ptx
