// How fast the tensor cores multiply when nothing else is asked of them: the ceiling beside which `tilewise
// bench` shows a kernel. Nothing is loaded inside the loop, so a real matrix product stays below it. Operands
// are random (the clock under load depends on the bits that flip) and the same in every step.
//   wgmma     two warpgroups, each m64n256k16 with both operands in shared memory
//   mma.sync  every warp 4 x 4 of m16n8k16 in registers; fp32: three of m16n8k8 tf32 a product, as the
//   kernels do
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/convert.h"
#include "../ptx/memory.h"
#include "../ptx/mma.h"
#include "../ptx/special.h"
#include "../ptx/tma.h"
#include "../ptx/wgmma.h"
#include "product_rate.h"

namespace tilewise::common {

// In [-1, 1).
TILEWISE_INLINE float random_operand(u32 x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return float(i32(x ^ (x >> 16))) * 0x1p-31f;
}

template <Element E>
TILEWISE_INLINE u32 random_register(u32 x) {
  const float low = random_operand(2 * x), high = random_operand(2 * x + 1);
  if constexpr (E == Element::fp32) return ptx::cvt_tf32(low);
  return E == Element::bf16 ? ptx::cvt_bf16x2(low, high) : ptx::cvt_f16x2(low, high);
}

template <Config C, int n>
TILEWISE_INLINE void store_sum(const RateParams& p, const float (&c)[n][4]) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < n; ++i)
#pragma unroll
    for (int r = 0; r < 4; ++r) sum += c[i][r];
  ptx::store_global(p.out + i64{ptx::block_index_x()} * rate_threads(C) + ptx::thread_index(), sum);
}

// Warps: C[4 m16][4 n8] += A[4] B[4].
template <Config C>
TILEWISE_KERNEL(rate_threads(C), C.min_blocks)
mma_rate(const TILEWISE_GRID_CONSTANT RateParams p) {
  constexpr int M = C.Br / 16, N = C.Bc / 8, kParts = C.element == Element::fp32 ? 2 : 1;
  constexpr int kTerms = C.element == Element::fp32 ? 3 : 1;
  const u32 thread = ptx::thread_index();
  u32 a[kParts][M][4], b[kParts][N][2];
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
#pragma unroll
    for (int i = 0; i < M * 4; ++i)
      a[part][i / 4][i % 4] = random_register<C.element>(thread * 64 + part * 32 + i);
#pragma unroll
    for (int i = 0; i < N * 2; ++i)
      b[part][i / 2][i % 2] = random_register<C.element>(thread * 64 + part * 32 + 16 + i);
  }
  float c[M * N][4] = {};
#pragma unroll 1
  for (i32 step = 0; step < p.steps; ++step) {
#pragma unroll
    for (int i = 0; i < kTerms * M * N; ++i) {  // what follows a product does not wait for it
      const int term = i / (M * N), m = i / N % M, n = i % N;
      float(&sum)[4] = c[i % (M * N)];
      const u32(&x)[4] = a[term == 1 ? 1 : 0][m];
      const u32(&y)[2] = b[term == 2 ? 1 : 0][n];
      if constexpr (C.element == Element::fp32)
        ptx::mma_tf32(sum, x, y[0], y[1]);
      else if constexpr (C.element == Element::bf16)
        ptx::mma_bf16(sum, x, y[0], y[1]);
      else
        ptx::mma_f16(sum, x, y[0], y[1]);
    }
  }
  store_sum<C>(p, c);
}

// Warpgroup w: C[64, 256] += A_w[64, 64] B[64, 256].
template <Config C>
TILEWISE_KERNEL(rate_threads(C), C.min_blocks)
wgmma_rate(const TILEWISE_GRID_CONSTANT RateParams p) {
  constexpr u32 kBytes = u32(rate_smem_bytes(C));
  const u32 thread = ptx::thread_index(), smem = ptx::shared_address(ptx::dynamic_shared());
#pragma unroll 1
  for (u32 at = thread * 4; at < kBytes; at += u32(rate_threads(C)) * 4)
    ptx::st_shared(smem + at, random_register<C.element>(at));
  ptx::fence_proxy_async();
  ptx::sync_threads();
  const u64 a = ptx::descriptor_128b(smem + thread / 128 * (64 * C.d * 2), 0),
            b = ptx::descriptor_128b(smem + C.Br * C.d * 2, 0);
  float c[C.Bc / 8][4] = {};
#pragma unroll 1
  for (i32 step = 0; step < p.steps; ++step) {
    ptx::wgmma_fence();
#pragma unroll
    for (u32 k = 0; k < u32(C.d); k += 16)
      ptx::Wgmma<C.Bc>::template ss<C.element, 0>(c, ptx::advance(a, k * 2), ptx::advance(b, k * 2), 1);
    ptx::wgmma_commit();
    ptx::wgmma_wait_all_but_one();
  }
  ptx::wgmma_wait_all();
  ptx::pin(c);
  store_sum<C>(p, c);
}

}  // namespace tilewise::common
