// Online softmax of one warpgroup's block of scores. It differs from tile/softmax.h in its moments: O belongs
// to a product that may still be running, so the caller rescales it later; and each row's maximum and sum are
// built in four independent chains, because one warp a scheduler cannot hide the latency of one.
#pragma once

#include "../tile/softmax.h"

namespace tilewise::wgmma {

struct RowStats : OnlineSoftmax<1> {
  float alpha[2];  // what O must be multiplied with when update() says so

  // S becomes P = exp2(multiplier (S - row_max)). True if a row of the warp has moved its maximum.
  template <int n>
  TILEWISE_INLINE bool update(float (&s)[n][4], float multiplier) {
    float raised[2];
    bool behind = false;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float m[4] = {s[0][2 * r], s[0][2 * r + 1], s[1][2 * r], s[1][2 * r + 1]};
#pragma unroll
      for (int x = 4; x < 2 * n; ++x) m[x % 4] = ptx::max(m[x % 4], s[x / 2][2 * r + x % 2]);
      float x = ptx::max(ptx::max(m[0], m[1]), ptx::max(m[2], m[3]));
      x = ptx::max(x, ptx::shfl_xor(x, 1));
      x = ptx::max(x, ptx::shfl_xor(x, 2));
      raised[r] = ptx::max(row_max[0][r], x);
      behind |= (raised[r] - row_max[0][r]) * multiplier > kSlack;
    }
    const bool moved = ptx::vote_any(behind);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float reference = moved ? raised[r] : row_max[0][r];
      const float offset = reference == -infinity() ? 0.f : reference * multiplier;
      alpha[r] = moved ? ptx::ex2(ptx::fma(row_max[0][r], multiplier, -offset)) : 1.f;
      row_max[0][r] = reference;
      float sum[4] = {};
#pragma unroll
      for (int x = 0; x < 2 * n; ++x) {
        float& p = s[x / 2][2 * r + x % 2];
        p = ptx::ex2(ptx::fma(p, multiplier, -offset));
        sum[x % 4] += p;
      }
      row_sum[0][r] = ptx::fma(row_sum[0][r], alpha[r], (sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    return moved;
  }
};

}  // namespace tilewise::wgmma
