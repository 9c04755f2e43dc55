// Online softmax of one warpgroup's block of scores. It differs from tile/softmax.h in its moments: O belongs
// to a product that may still be running, so the caller rescales it later; and one warp a scheduler cannot
// hide latencies by itself, so maxima and sums are built in independent chains, and no exponential waits for
// them.
#pragma once

#include "../tile/softmax.h"

namespace tilewise::wgmma {

struct RowStats : OnlineSoftmax<1> {
  float alpha[2];  // what O must be multiplied with when the maxima have moved

  // S becomes P = exp2(multiplier S - offset) with the maxima as they were before this block, while the
  // block's are still being found. True if they should have been raised first: then settle() must follow.
  template <int n>
  TILEWISE_INLINE bool guess(float (&s)[n][4], float multiplier) {
    bool behind = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float offset = offset_of(row_max[0][r], multiplier);
      raised[r] = ptx::max(row_max[0][r], block_max(s, r));
      block_sum[r] = exponentiate(s, r, multiplier, offset);
      behind |= raised[r] * multiplier - offset > kSlack ||
                (row_max[0][r] == -infinity() && raised[r] > -infinity());
    }
    const bool wrong = ptx::vote_any(behind);
#pragma unroll
    for (int r = 0; r < 2; ++r) row_sum[0][r] += wrong ? 0.f : block_sum[r];
    return wrong;
  }

  // After a wrong guess: P and the sums become what they would be with the maxima raised. False if P may have
  // left the range of fp32: nothing has changed then, and update() on S itself must follow.
  template <int n>
  TILEWISE_INLINE bool settle(float (&s)[n][4], float multiplier) {
    constexpr float kRange = 64;
    float shift[2];
    bool lost = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      shift[r] = offset_of(row_max[0][r], multiplier) - offset_of(raised[r], multiplier);
      lost |= !(shift[r] >= -kRange && shift[r] <= kRange);
    }
    if (ptx::vote_any(lost)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      alpha[r] = ptx::ex2(shift[r]);
      row_sum[0][r] = (row_sum[0][r] + block_sum[r]) * alpha[r];
      row_max[0][r] = raised[r];
#pragma unroll
      for (int x = 0; x < 2 * n; ++x) s[x / 2][2 * r + x % 2] *= alpha[r];
    }
    return true;
  }

  // S becomes P with the maxima raised first, where one of the warp's rows has fallen behind. True if they
  // have moved.
  template <int n>
  TILEWISE_INLINE bool update(float (&s)[n][4], float multiplier) {
    bool behind = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raised[r] = ptx::max(row_max[0][r], block_max(s, r));
      behind |= (raised[r] - row_max[0][r]) * multiplier > kSlack;
    }
    const bool moved = ptx::vote_any(behind);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = moved ? raised[r] : row_max[0][r], offset = offset_of(reference, multiplier);
      alpha[r] = moved ? ptx::ex2(ptx::fma(row_max[0][r], multiplier, -offset)) : 1.f;
      row_max[0][r] = reference;
      row_sum[0][r] = ptx::fma(row_sum[0][r], alpha[r], exponentiate(s, r, multiplier, offset));
    }
    return moved;
  }

 private:
  float raised[2], block_sum[2];

  // A row that has seen no key has a maximum of -inf: subtract 0 instead.
  static TILEWISE_INLINE float offset_of(float maximum, float multiplier) {
    return maximum == -infinity() ? 0.f : maximum * multiplier;
  }

  template <int n>
  static TILEWISE_INLINE float block_max(const float (&s)[n][4], int r) {
    float m[4] = {s[0][2 * r], s[0][2 * r + 1], s[1][2 * r], s[1][2 * r + 1]};
#pragma unroll
    for (int x = 4; x < 2 * n; ++x) m[x % 4] = ptx::max(m[x % 4], s[x / 2][2 * r + x % 2]);
    float x = ptx::max(ptx::max(m[0], m[1]), ptx::max(m[2], m[3]));
    x = ptx::max(x, ptx::shfl_xor(x, 1));
    return ptx::max(x, ptx::shfl_xor(x, 2));
  }

  // Row r of s, in place; this lane's part of its sum.
  template <int n>
  static TILEWISE_INLINE float exponentiate(float (&s)[n][4], int r, float multiplier, float offset) {
    float sum[4] = {};
#pragma unroll
    for (int x = 0; x < 2 * n; ++x) {
      float& p = s[x / 2][2 * r + x % 2];
      p = ptx::ex2(ptx::fma(p, multiplier, -offset));
      sum[x % 4] += p;
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
};

}  // namespace tilewise::wgmma
