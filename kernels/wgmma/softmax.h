// Online softmax of one warpgroup's block of scores. It differs from tile/softmax.h in its moments: O belongs
// to a product that may still be running, so the caller rescales it later; and one warp a scheduler cannot
// hide latencies by itself, so no exponential waits for a maximum: a block is exponentiated with the offset
// that the row has, and only its sum tells whether that was far off.
#pragma once

#include "../tile/softmax.h"

namespace tilewise::wgmma {

// A lane's two rows, r = 0, 1: probabilities are exp2(multiplier S - offset), kExact (Scores::kExact)
// exp2(multiplier (S - offset)), the sums of them this lane's part.
template <bool kExact>
struct RowStats {
  float offset[2];  // in log2 units, kExact natural ones; -inf while the row has seen no key
  float sum[2];
  float alpha[2];  // what O must be multiplied with when the offsets have moved

  // A tile's first block: S becomes P with the maxima as offsets.
  template <int n>
  TILEWISE_INLINE void begin(float (&s)[n][4], float multiplier) {
#pragma unroll
    for (int r = 0; r < 2; ++r) offset[r] = quad_max(lane_max(s, r)) * (kExact ? 1.f : multiplier);
#pragma unroll
    for (int r = 0; r < 2; ++r)
      sum[r] = exponentiate(s, r, multiplier, offset[r] == -infinity() ? 0.f : offset[r]);
  }

  // S becomes P with the offsets as they are: all rows must have one. True if that made some sum too large:
  // then settle() must follow.
  template <int n>
  TILEWISE_INLINE bool guess(float (&s)[n][4], float multiplier) {
#pragma unroll
    for (int r = 0; r < 2; ++r) block_sum[r] = exponentiate(s, r, multiplier, offset[r]);
    const bool wrong = ptx::vote_any(!(block_sum[0] <= kLargest && block_sum[1] <= kLargest));
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] += wrong ? 0.f : block_sum[r];
    return wrong;
  }

  // After a wrong guess: offsets grow by whole numbers of log2 units, so that P and the sums shrink exactly.
  // False if P may have left the range of fp32, or an offset is too large to grow so: nothing has changed
  // then, and update() on S itself must follow.
  template <int n>
  TILEWISE_INLINE bool settle(float (&s)[n][4]) {
    float top[2];
    bool lost = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = quad_max(block_sum[r]);
      lost |= top[r] > kRange;
      if constexpr (kExact) lost |= ptx::max(offset[r], -offset[r]) > kWhole;
    }
    if (ptx::vote_any(lost)) return false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const u32 exponent = top[r] > kLargest ? ptx::bits_of(top[r]) >> 23 : 127u;
      alpha[r] = ptx::float_of((254u - exponent) << 23);
      offset[r] += float(i32(exponent) - 127) * (kExact ? kLn2 : 1.f);
      sum[r] = (sum[r] + block_sum[r]) * alpha[r];
#pragma unroll
      for (int x = 0; x < 2 * n; ++x) s[x / 2][2 * r + x % 2] *= alpha[r];
    }
    return true;
  }

  // S becomes P with the offsets raised to the maxima first, where one of the warp's rows has fallen behind.
  template <int n>
  TILEWISE_INLINE void update(float (&s)[n][4], float multiplier) {
    float raised[2];
    bool behind = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      raised[r] = ptx::max(offset[r], quad_max(lane_max(s, r)) * (kExact ? 1.f : multiplier));
      behind |= raised[r] - offset[r] > kSlack * (kExact ? kLn2 : 1.f);
    }
    const bool moved = ptx::vote_any(behind);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = moved ? raised[r] : offset[r];
      const float subtracted = reference == -infinity() ? 0.f : reference;
      alpha[r] = moved ? ptx::ex2((offset[r] - subtracted) * (kExact ? multiplier : 1.f)) : 1.f;
      offset[r] = reference;
      sum[r] = ptx::fma(sum[r], alpha[r], exponentiate(s, r, multiplier, subtracted));
    }
  }

  // Every row of the warp has an offset.
  TILEWISE_INLINE bool placed() const {
    return !ptx::vote_any(offset[0] == -infinity() || offset[1] == -infinity());
  }

  // sink: -inf when there is none.
  TILEWISE_INLINE FinishedRow finish(int r, float sink) const {
    float total = sum[r];
    total += ptx::shfl_xor(total, 1);
    total += ptx::shfl_xor(total, 2);
    if constexpr (kExact) return finish_exact_row(total, offset[r], sink);
    return finish_row<false>(total, offset[r] == -infinity() ? 0.f : offset[r], sink);
  }

 private:
  static constexpr float kLargest = 1024.f;  // of a lane's sum of a block: fp16 holds each P
  static constexpr float kRange = 0x1p100f;
  static constexpr float kWhole = 0x1p14f;  // offsets up to here hold whole numbers and a good deal more
  float block_sum[2];

  static TILEWISE_INLINE float quad_max(float x) {
    x = ptx::max(x, ptx::shfl_xor(x, 1));
    return ptx::max(x, ptx::shfl_xor(x, 2));
  }

  template <int n>
  static TILEWISE_INLINE float lane_max(const float (&s)[n][4], int r) {
    float m[4] = {s[0][2 * r], s[0][2 * r + 1], s[1][2 * r], s[1][2 * r + 1]};
#pragma unroll
    for (int x = 4; x < 2 * n; ++x) m[x % 4] = ptx::max(m[x % 4], s[x / 2][2 * r + x % 2]);
    return ptx::max(ptx::max(m[0], m[1]), ptx::max(m[2], m[3]));
  }

  // Row r of s, in place; this lane's part of its sum.
  template <int n>
  static TILEWISE_INLINE float exponentiate(float (&s)[n][4], int r, float multiplier, float offset) {
    float sum[4] = {};
#pragma unroll
    for (int x = 0; x < 2 * n; ++x) {
      float& p = s[x / 2][2 * r + x % 2];
      p = probability_of<kExact>(p, multiplier, offset);
      sum[x % 4] += p;
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
  }
};

}  // namespace tilewise::wgmma
