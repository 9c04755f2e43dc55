// Merges partial results over disjoint sets of keys, in fp32: lse = log sum exp(lse_n), out = sum exp(lse_n -
// lse) out_n. An lse of -inf is an empty part: it changes nothing, whatever its out holds, and a single other
// part leaves bit for bit as it came. One warp a row reads every part of an element before it writes it, so
// that the result may lie in the place of a part.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/math.h"
#include "../ptx/special.h"
#include "../ptx/warp.h"
#include "../shared/config.h"
#include "../tile/element.h"
#include "combine_splits.h"

namespace tilewise::common {

TILEWISE_INLINE float load_any(const void* data, i64 at, i32 element) {
  if (element == i32(Element::fp32)) return tile::load_float<Element::fp32>(data, at);
  return element == i32(Element::bf16) ? tile::load_float<Element::bf16>(data, at)
                                       : tile::load_float<Element::fp16>(data, at);
}

template <Config C>
TILEWISE_KERNEL(kCombineThreads, 1)
combine_splits(const TILEWISE_GRID_CONSTANT CombineParams p) {
  constexpr float kLog2OfE = 1.44269504088896341f, kLnOf2 = 0.693147180559945309f;
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
  const i32 thread = i32(ptx::thread_index()), lane = thread % 32;
  const i64 row = i64(ptx::block_number()) * (kCombineThreads / 32) + thread / 32;
  if (row >= p.B * p.S * p.H) return;
  const i64 h = row % p.H, s = row / p.H % p.S, b = row / p.H / p.S;

  const auto part_lse = [&](i32 n) {
    if (n == 0)
      return ptx::load_global(p.first_lse + b * p.first_lse_b + h * p.first_lse_h + s * p.first_lse_s);
    return ptx::load_global(p.more_lse + (n - 1) * p.lse_step + b * p.more_lse_b + h * p.more_lse_h +
                            s * p.more_lse_s);
  };
  float largest = -kInfinity;
  for (i32 n = 0; n < p.parts; ++n)
    largest = ptx::max(largest, part_lse(n));  // a NaN comes back with the sum
  float sum = 0.0f;
  for (i32 n = 0; n < p.parts; ++n) {
    const float lse = part_lse(n);
    if (lse != -kInfinity) sum += ptx::ex2((lse - largest) * kLog2OfE);
  }
  // No part: nothing was added and the result is empty. One part: its weight and the sum are exactly 1.
  const float inverse = sum == 0.0f ? 0.0f : ptx::div(1.0f, sum);
  const float total = sum == 0.0f ? -kInfinity : sum == 1.0f ? largest : largest + ptx::lg2(sum) * kLnOf2;

  for (i32 d = lane; d < p.Dv; d += 32) {
    float out = 0.0f;
    for (i32 n = 0; n < p.parts; ++n) {
      const float lse = part_lse(n);
      if (lse == -kInfinity) continue;
      const Strides& t = n == 0 ? p.first_stride : p.more_stride;
      const i64 at = b * t.b + s * t.s + h * t.h + d * t.d + (n == 0 ? 0 : (n - 1) * p.out_step);
      const float x = load_any(n == 0 ? p.first_out : p.more_out, at, p.part_element);
      out += ptx::ex2((lse - largest) * kLog2OfE) * inverse * x;
    }
    tile::store_float<C.element>(
        p.out, b * p.out_stride.b + s * p.out_stride.s + h * p.out_stride.h + d * p.out_stride.d, out);
  }
  ptx::sync_warp();  // every lane has read the parts' lse
  if (p.lse && lane == 0) ptx::store_global(p.lse + b * p.lse_b + h * p.lse_h + s * p.lse_s, total);
}

}  // namespace tilewise::common
