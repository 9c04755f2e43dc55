// After bwd_prepare, where there is a bias: the lse that P = exp(S - lse) takes, in natural units and as a
// sum of two numbers, lse_log2 + lse_rest. A bias of -1e30, or of the lowest number that there is, on all
// keys of a row cancels in its softmax, but nothing of the sum over keys is left in an fp32 lse of -1e30:
// there the row's maximum m and sum l are found again, key by key, and the two are m and log l. Slow, and for
// such rows alone: elsewhere they are the forward's lse and 0. Rows that see nothing and padding rows: +inf,
// P is then 0.
#pragma once

#include "bwd_repair.cuh"

namespace tilewise::mma {

// An lse up to here is rounded by less than what 16-bit operands lose, and by what scores of its size lose in
// any fp32 sum.
inline constexpr float kLargestLse = 0x1p14f;

// All lanes of a warp: row i of query head h.
template <Config C>
TILEWISE_INLINE void row_statistics(const AttentionParams& p, const SequenceView& seq, i32 h, i32 i,
                                    float& lse, float& rest) {
  Scores<C> scores(p, band_of(p, seq), seq);
  scores.select_head(h);
  const Range<i32> keys = scores.keys(i);
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
  float top = p.sink ? ptx::load_global(p.sink + i64{h} * p.sink_h) : -kInfinity, sum = p.sink ? 1.0f : 0.0f;
#pragma unroll 1
  for (i32 j = keys.begin; j < keys.end; ++j) {
    if (!scores.unhidden(i, j)) continue;
    const Pair<C> pair(p, seq.b, h, i, j);
    float derivative;
    const float s = scores.value(Pair<C>::dot(pair.q(), pair.k()), i, j, derivative);
    if (s == -kInfinity) continue;
    const float raised = ptx::max(top, s);
    sum = sum * exp_of(top - raised) + exp_of(s - raised), top = raised;
  }
  lse = top, rest = ptx::lg2(sum) * 0.693147180559945309f;
}

template <Config C>
TILEWISE_KERNEL(kStatisticsThreads, 1)
backward_statistics(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
  const TileWork work = tile_work(ptx::block_number(), kStatisticsRows, p.Sq, p.H, p.B);
  if (work.none) return;
  const SequenceView seq = find_sequence<C.varlen>(p, work.b);
  const i32 padded = i32(round_up(seq.sq, kRowGroup));
  const i64 row0 = workspace_row(p.cu_seqlens_q != nullptr, work.b, p.Sq, seq.q_row);
  const i64 at = work.h * workspace_rows(p) + row0;
#pragma unroll 1
  for (i32 r = i32(ptx::thread_index() / 32); r < kStatisticsRows; r += kStatisticsThreads / 32) {
    const i32 i = work.first + r;
    if (i >= padded) return;
    float lse = kInfinity, rest = 0.0f;
    if (i < seq.sq) {
      lse = ptx::load_global(p.lse + work.b * p.lse_b + work.h * p.lse_h + (seq.q_row + i) * p.lse_s);
      if (lse == -kInfinity)
        lse = kInfinity;
      else if (lse > kLargestLse || lse < -kLargestLse)
        row_statistics<C>(p, seq, work.h, i, lse, rest);
    }
    if (ptx::thread_index() % 32 == 0)
      ptx::store_global(p.lse_log2 + (at + i), lse), ptx::store_global(p.lse_rest + (at + i), rest);
  }
}

}  // namespace tilewise::mma
