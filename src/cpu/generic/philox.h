// Dropout's random bits for a vector of queries: kernels/shared/philox.h, lane by lane.
#pragma once

#include "cpu/generic/vec.h"
#include "cpu/task.h"

namespace tilewise::cpu {

template <class V>
TILEWISE_INLINE void multiply_wide(typename V::U a, u32 b, typename V::U& low, typename V::U& high) {
  const typename V::U factor = b + typename V::U{};
  const typename V::U64 even = V::multiply_even(a, factor),
                        odd = V::multiply_even(typename V::U(typename V::U64(a) >> 32), factor);
  low = a * factor;
  high = typename V::U(even >> 32) | typename V::U(odd & 0xFFFFFFFF00000000ul);
}

// keep[0], keep[1]: are elements (i + lane, j) and (i + lane, j + 1) kept? j is even.
template <class V>
TILEWISE_INLINE void dropout_keeps(const ScoreOptions& o, i32 i, i32 j, typename V::I (&keep)[2]) {
  using U = typename V::U;
  const U row = U(V::lane_numbers() + i), zero{};
  U c0 = zero + u32(j >> 1), c1 = (row >> 4) * 8u + (row & 7u), c2 = zero + o.dropout_h,
    c3 = zero + o.dropout_b;
  u32 k0 = o.dropout_k0, k1 = o.dropout_k1;
  for (int round = 0; round < 10; ++round) {
    U low0, high0, low1, high1;
    multiply_wide<V>(c0, 0xD2511F53u, low0, high0);
    multiply_wide<V>(c2, 0xCD9E8D57u, low1, high1);
    c0 = high1 ^ c1 ^ k0;
    c2 = high0 ^ c3 ^ k1;
    c1 = low1;
    c3 = low0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const typename V::I upper = typename V::I((row >> 3 & 1u) != 0u);
  keep[0] = typename V::I((upper ? c2 : c0) >= o.dropout_threshold);
  keep[1] = typename V::I((upper ? c3 : c1) >= o.dropout_threshold);
}

}  // namespace tilewise::cpu
