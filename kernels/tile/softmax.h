// Online softmax over the rows of kTiles 16-row tiles, as a warp holds them (fragment.h): a quad of lanes
// shares a row.
//
// The maximum is over visible keys only: -inf while a row has seen none. It may stay behind the true one by
// up to kSlack (in log2 units; probabilities then reach 2^kSlack): the final division makes up for it, and
// most blocks need no rescaling.
#pragma once

#include "../ptx/warp.h"
#include "exponential.h"
#include "score.h"

namespace tilewise {

inline constexpr float kSlack = 8.f;

// What is subtracted from scores of a row: their maximum, kExact (Scores::kExact) as it is, else in log2
// units. A row that has seen no key has a maximum of -inf: subtract 0 instead.
template <bool kExact>
TILEWISE_INLINE float offset_of(float maximum, float multiplier) {
  if (maximum == -infinity()) return 0.f;
  return kExact ? maximum : maximum * multiplier;
}

// exp2(multiplier score - offset)
template <bool kExact>
TILEWISE_INLINE float probability_of(float score, float multiplier, float offset) {
  return ptx::ex2(kExact ? (score - offset) * multiplier : ptx::fma(score, multiplier, -offset));
}

struct FinishedRow {
  float factor;  // the one division: what the accumulator of the row is multiplied by
  float lse;
  bool empty;  // no visible key: the output is 0 whatever the accumulator holds
};

// A row whose probabilities exp2(score - offset), scores in log2 units, sum up to `sum`; sink: -inf when
// there is none. kDivides: one rounding less.
template <bool kDivides>
TILEWISE_INLINE FinishedRow finish_row(float sum, float offset, float sink) {
  // Masked keys add exactly 0, the largest visible one at least 2^-kSlack, and a NaN is not 0: this asks the
  // mask.
  const bool empty = sum == 0.f;
  const float sink_log2 = sink * kLog2e, top = empty || sink_log2 > offset ? sink_log2 : offset;
  const bool nothing = top == -infinity();
  const float reference = nothing ? 0.f : top;
  const float shift = ptx::ex2(offset - reference), rest = ptx::ex2(sink_log2 - reference);
  const float total = empty ? rest : ptx::fma(sum, shift, rest);
  const float factor = kDivides ? ptx::div(shift, total) : shift * ptx::rcp(total);
  return {nothing ? 0.f : factor, nothing ? -infinity() : (top + ptx::lg2(total)) * kLn2, empty};
}

// The same where the probabilities are exp(score - offset): kExact.
TILEWISE_INLINE FinishedRow finish_exact_row(float sum, float offset, float sink) {
  if (sum == 0.f) return {0.f, sink, true};
  const float gap = sink - offset;
  if (!(gap > 0.f)) {
    const float total = sum + exp_of(gap);
    return {ptx::div(1.f, total), ptx::fma(ptx::lg2(total), kLn2, offset), false};
  }
  const float shift = exp_of(-gap), total = ptx::fma(sum, shift, 1.f);
  return {ptx::div(shift, total), ptx::fma(ptx::lg2(total), kLn2, sink), false};
}

template <int tiles, bool kExact>
struct OnlineSoftmax {
  float row_max[tiles][2];  // in score units
  float row_sum[tiles][2];  // this lane's part

  TILEWISE_INLINE OnlineSoftmax() {
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) row_max[m][r] = -infinity(), row_sum[m][r] = 0.f;
  }

  // Raises the maxima to this block's where one of the warp's rows needs it, with o and the sums.
  template <int n, int nv>
  TILEWISE_INLINE void raise(const float (&s)[tiles][n][4], float (&o)[tiles][nv][4], float multiplier) {
    float block_max[tiles][2];
    bool behind = false;
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float x = ptx::max(s[m][0][2 * r], s[m][0][2 * r + 1]);
#pragma unroll
        for (int c = 1; c < n; ++c) x = ptx::max(x, ptx::max(s[m][c][2 * r], s[m][c][2 * r + 1]));
        x = ptx::max(x, ptx::shfl_xor(x, 1));
        x = ptx::max(x, ptx::shfl_xor(x, 2));
        block_max[m][r] = x;
        behind |= (x - row_max[m][r]) * multiplier > kSlack;
      }
    if (!ptx::vote_any(behind)) return;
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float raised = ptx::max(row_max[m][r], block_max[m][r]);
        const float factor =
            probability_of<kExact>(row_max[m][r], multiplier, offset_of<kExact>(raised, multiplier));
        row_max[m][r] = raised;
        row_sum[m][r] *= factor;
#pragma unroll
        for (int c = 0; c < nv; ++c) o[m][c][2 * r] *= factor, o[m][c][2 * r + 1] *= factor;
      }
  }

  // S becomes P = exp2(multiplier * (S - max)), and the sums grow.
  template <int n>
  TILEWISE_INLINE void exponentiate(float (&s)[tiles][n][4], float multiplier) {
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float offset = offset_of<kExact>(row_max[m][r], multiplier);
        float sum = 0.f;
#pragma unroll
        for (int c = 0; c < n; ++c)
#pragma unroll
          for (int x = 2 * r; x < 2 * r + 2; ++x) {
            s[m][c][x] = probability_of<kExact>(s[m][c][x], multiplier, offset);
            sum += s[m][c][x];
          }
        row_sum[m][r] += sum;
      }
  }

  // sink: -inf when there is none.
  template <class Score>
  TILEWISE_INLINE FinishedRow finish(int m, int r, const Score& score, float sink) const {
    float sum = row_sum[m][r];
    sum += ptx::shfl_xor(sum, 1);
    sum += ptx::shfl_xor(sum, 2);
    if constexpr (kExact) return finish_exact_row(sum, row_max[m][r] * score.natural, sink);
    return finish_row<true>(sum, offset_of<false>(row_max[m][r], score.multiplier), sink);
  }
};

}  // namespace tilewise
