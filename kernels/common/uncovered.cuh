// Writes 0 (and an lse of -inf) to the rows of an output that no sequence covers. One warp a row: it finds
// the row's sequence by bisection of the offsets and writes only when the row lies past the sequence's used
// length.
#pragma once

#include "../shared/config.h"
#include "../tile/sequence.h"
#include "uncovered.h"

namespace tilewise::common {

struct RowPlace {
  i64 b, s;  // batch entry of the tensor (0 when packed) and row in it
  bool covered;
};

__device__ __forceinline__ RowPlace place_row(const UncoveredParams& p, i64 row) {
  if (!p.offsets) {
    const i64 b = row / p.S, s = row - b * p.S;
    return {b, s, p.used && s < load_index(p.used, p.used_are_64, b * p.used_stride)};
  }
  if (p.B == 0) return {0, row, false};
  const i32 at = sequence_at(row, p.B, p.offsets, p.offsets_are_64, p.offsets_stride);
  const auto offset = [&](i64 b) { return load_index(p.offsets, p.offsets_are_64, b * p.offsets_stride); };
  const i64 begin = offset(at), slot = offset(at + 1) - begin;
  const i64 length = p.used ? min(load_index(p.used, p.used_are_64, at * p.used_stride), slot) : slot;
  return {0, row, row >= begin && row - begin < length};
}

template <Config C>
__global__ void __launch_bounds__(kUncoveredThreads) uncovered(const UncoveredParams p) {
  const i32 lane = threadIdx.x % 32;
  const i64 step = i64(gridDim.x) * kUncoveredRows;
  for (i64 row = i64(blockIdx.x) * kUncoveredRows + threadIdx.x / 32; row < p.rows; row += step) {
    const RowPlace place = place_row(p, row);
    if (place.covered) continue;
    for (i64 h = 0; h < p.H; ++h) {
      const i64 base = place.b * p.stride.b + place.s * p.stride.s + h * p.stride.h;
      for (i64 d = lane; d < p.columns; d += 32) {
        if constexpr (C.element == Element::fp32)
          static_cast<float*>(p.tensor)[base + d * p.stride.d] = 0.0f;
        else
          static_cast<unsigned short*>(p.tensor)[base + d * p.stride.d] = 0;
      }
      if (p.lse && lane == 0)
        p.lse[place.b * p.lse_b + h * p.lse_h + place.s * p.lse_s] = __int_as_float(0xFF800000);
    }
  }
}

}  // namespace tilewise::common
