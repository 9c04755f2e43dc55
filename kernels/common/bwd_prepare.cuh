// Before the backward: what its inner loop would otherwise compute again for every key block. Per query row
// of every head:
//   delta = sum_c dO * O - dlse      (so that dS = P (dP - delta) carries the gradient of lse too)
//   lse_log2 = lse * log2 e          (+inf for rows that see nothing and for padding rows: their P is then
//   exactly 0; lse as it is where natural_scores() says so)
// and zeros in the fp32 accumulator of dQ, and in the word that asks for bwd_repair.cuh. A thread block takes
// bwd_prepare_rows() workspace rows of one head (backward_layout.h); kLanes neighbouring lanes share a row,
// each 8 columns at a time. reduce_sink: dsink[h] = -sum over rows of exp(sink - lse) * delta, one thread
// block a head, always in the same order.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/math.h"
#include "../ptx/special.h"
#include "../ptx/warp.h"
#include "../tile/element.h"
#include "../tile/fragment.h"
#include "../tile/sequence.h"
#include "bwd_launch.h"

namespace tilewise::common {

inline constexpr float kLog2OfE = 1.44269504088896341f, kLnOf2 = 0.693147180559945309f;

// Delta of a row anew if it is not finite, by the lane that has stored it. By the definition it is a sum over
// keys, of P dP; where dO is not finite no dP is, and for every key delta or dP - delta is a NaN, which
// infinities of one sign in O * dO do not show. A row of O that is 0 altogether sees nothing, or only zeros:
// what its dO holds takes no part, or reaches the gradients through dP.
template <Config C>
TILEWISE_INLINE void settle_delta(const AttentionParams& p, i32 b, i32 h, i64 s, float* delta) {
  if (is_finite(ptx::load_global(delta))) return;
  const i64 out = b * p.out_stride.b + s * p.out_stride.s + h * p.out_stride.h;
  const i64 dout = b * p.dout_stride.b + s * p.dout_stride.s + h * p.dout_stride.h;
  bool zero = true, finite = true;
#pragma unroll 1
  for (i32 c = 0; c < p.Dv; ++c) {
    zero &= tile::load_float<C.element>(p.out, out + c * p.out_stride.d) == 0.0f;
    finite &= is_finite(tile::load_float<C.element>(p.dout, dout + c * p.dout_stride.d));
  }
  if (zero)
    ptx::store_global(delta,
                      p.dlse ? -ptx::load_global(p.dlse + b * p.dlse_b + h * p.dlse_h + s * p.dlse_s) : 0.0f);
  else if (!finite)
    ptx::store_global(delta, ptx::float_of(0x7FC00000u));  // else O holds the infinities, and delta is right
}

template <Config C>
TILEWISE_KERNEL(kPrepareThreads, bwd_prepare_residents(C))
bwd_prepare(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  constexpr int kRows = bwd_prepare_rows(C);
  constexpr int kLanes = C.dv <= 32 ? 4 : C.dv <= 64 ? 8 : C.dv <= 128 ? 16 : 32;
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
  const int thread = int(ptx::thread_index());
  if (p.spoiled && ptx::block_number() == 0 && thread == 0) ptx::store_global(p.spoiled, 0u);
  const TileWork work = tile_work(ptx::block_number(), kRows, p.Sq, p.H, p.B);
  if (work.none) return;
  const i32 first = work.first, h = work.h, b = work.b;
  const SequenceView seq = find_sequence<C.varlen>(p, b);
  if (first >= seq.sq) return;

  const i64 rows = workspace_rows(p), row0 = workspace_row(p.cu_seqlens_q != nullptr, b, p.Sq, seq.q_row);
  const i32 padded = i32(round_up(seq.sq, kRowGroup)), end = first + kRows < padded ? first + kRows : padded;

  const i64 out0 = b * p.out_stride.b + seq.q_row * p.out_stride.s + h * p.out_stride.h;
  const i64 dout0 = b * p.dout_stride.b + seq.q_row * p.dout_stride.s + h * p.dout_stride.h;
  const int part = thread % kLanes;
  auto clear_accumulator = [&] {
    if constexpr (C.deterministic) return;
    constexpr int kRowPieces = C.d * 4 / 16;  // 16-byte pieces of an accumulator row
    ptx::Vec4* accum = reinterpret_cast<ptx::Vec4*>(
        p.dq_accum + dq_accum_piece(h, rows, (row0 + first) / kRowGroup, 0, C.d));
    for (int piece = thread; piece < (end - first) * kRowPieces; piece += kPrepareThreads)
      ptx::store_global(accum + piece, ptx::Vec4{});
  };

  constexpr int kSteps = kRows * kLanes / kPrepareThreads, kColumns = (C.dv + kLanes * 8 - 1) / (kLanes * 8);
  const auto row = [&](int n) { return first + n * (kPrepareThreads / kLanes) + thread / kLanes; };
  float sum[kSteps] = {};
  if (p.Dv % 8 == 0 && tile::rows_aligned<C.element>(p.out, p.out_stride) &&
      tile::rows_aligned<C.element>(p.dout, p.dout_stride)) {
#pragma unroll 1
    for (int base = 0; base < (C.dv > 256 ? p.Dv : 1); base += C.dv)  // wide heads: any number of columns
#pragma unroll
      for (int x = 0; x < kColumns; ++x) {
        const int c = base + (x * kLanes + part) * 8;
        tile::Eight<C.element> o[kSteps] = {}, g[kSteps] = {};
#pragma unroll
        for (int n = 0; n < kSteps; ++n)  // all of a thread's rows are asked for before the first is used
          if (row(n) < seq.sq && c < p.Dv) {
            o[n].load(p.out, out0 + row(n) * p.out_stride.s + c);
            g[n].load(p.dout, dout0 + row(n) * p.dout_stride.s + c);
          }
        if (base == 0 && x == 0) clear_accumulator();
#pragma unroll
        for (int n = 0; n < kSteps; ++n)
#pragma unroll
          for (int e = 0; e < 8; ++e) sum[n] = ptx::fma(o[n].get(e), g[n].get(e), sum[n]);
      }
  } else {
    clear_accumulator();
#pragma unroll
    for (int n = 0; n < kSteps; ++n)
      if (row(n) < seq.sq)
#pragma unroll 4
        for (int c = part; c < p.Dv; c += kLanes)
          sum[n] = ptx::fma(
              tile::load_float<C.element>(p.out, out0 + row(n) * p.out_stride.s + c * p.out_stride.d),
              tile::load_float<C.element>(p.dout, dout0 + row(n) * p.dout_stride.s + c * p.dout_stride.d),
              sum[n]);
  }
  bool odd = false;
#pragma unroll
  for (int n = 0; n < kSteps; ++n) {
    const i32 i = row(n);
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2) sum[n] += ptx::shfl_xor(sum[n], mask);
    if (part == 0 && i < end) {
      float lse = kInfinity, delta = 0.0f;
      if (i < seq.sq) {
        const i64 s = seq.q_row + i;
        const float natural = ptx::load_global(p.lse + b * p.lse_b + h * p.lse_h + s * p.lse_s);
        if (natural != -kInfinity) {
          lse = natural_scores(C) ? natural : natural * kLog2OfE;
          delta = sum[n];
          if (p.dlse) delta -= ptx::load_global(p.dlse + b * p.dlse_b + h * p.dlse_h + s * p.dlse_s);
        }
      }
      ptx::store_global(p.lse_log2 + h * rows + row0 + i, lse);
      ptx::store_global(p.delta + h * rows + row0 + i, delta);
      odd |= !is_finite(delta);
    }
  }
  if (!odd) return;
#pragma unroll 1
  for (i32 i = row(0); i < first + kRows && i < seq.sq; i += kPrepareThreads / kLanes)
    settle_delta<C>(p, b, h, seq.q_row + i, p.delta + h * rows + row0 + i);
}

template <Config C>
TILEWISE_KERNEL(kSinkThreads, 1)
reduce_sink(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  const int thread = int(ptx::thread_index());
  const i32 h = i32(ptx::block_index_x());
  const i64 rows = workspace_rows(p);
  const float sink = ptx::load_global(p.sink + h * p.sink_h);
  float sum = 0.0f;
#pragma unroll 1
  for (i32 b = 0; b < p.B; ++b) {
    const SequenceView seq = find_sequence<C.varlen>(p, b);
    const i64 at = h * rows + workspace_row(p.cu_seqlens_q != nullptr, b, p.Sq, seq.q_row);
#pragma unroll 1
    for (i32 i = thread; i < seq.sq; i += kSinkThreads) {
      // In natural units: the rounding of a large one times log2 e would show.
      const float lse = ptx::load_global(p.lse + b * p.lse_b + h * p.lse_h + (seq.q_row + i) * p.lse_s);
      if (lse == -__builtin_bit_cast(float, 0x7F800000u)) continue;  // a sink of -inf, and no key
      sum -= ptx::ex2((sink - lse) * kLog2OfE) * ptx::load_global(p.delta + at + i);
    }
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shfl_xor(sum, mask);
  const u32 partial = ptx::shared_address(ptx::dynamic_shared());
  if (thread % 32 == 0) ptx::st_shared(partial + thread / 32 * 4, ptx::bits_of(sum));
  ptx::sync_threads();
  if (thread == 0) {
    float total = 0.0f;
    for (int warp = 0; warp < kSinkThreads / 32; ++warp)
      total += ptx::float_of(ptx::ld_shared(partial + warp * 4));
    ptx::store_global(p.dsink + h * p.dsink_h, total);
  }
}

}  // namespace tilewise::common
