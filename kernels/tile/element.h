// Single elements of a global tensor as fp32, eight at a time where they lie side by side and 16-byte
// aligned.
#pragma once

#include "../ptx/convert.h"
#include "../ptx/memory.h"
#include "../shared/config.h"
#include "../shared/params.h"

namespace tilewise::tile {

template <Element E>
TILEWISE_INLINE float load_float(const void* data, i64 at) {
  if constexpr (E == Element::fp32) return ptx::load_global(static_cast<const float*>(data) + at);
  const u32 x = ptx::load_global(static_cast<const unsigned short*>(data) + at);
  return E == Element::bf16 ? ptx::bf16_low(x) : ptx::cvt_f32_f16(x);
}

template <Element E>
TILEWISE_INLINE void store_float(void* data, i64 at, float x) {
  if constexpr (E == Element::fp32)
    ptx::store_global(static_cast<float*>(data) + at, x);
  else
    ptx::store_global(
        static_cast<unsigned short*>(data) + at,
        (unsigned short)(E == Element::bf16 ? ptx::cvt_bf16x2(x, 0.0f) : ptx::cvt_f16x2(x, 0.0f)));
}

// Eight elements side by side, as they lie in memory: asked for now, looked at later.
template <Element E>
struct Eight {
  static constexpr int kWords = E == Element::fp32 ? 2 : 1;
  ptx::Vec4 w[kWords];

  TILEWISE_INLINE void load(const void* data, i64 at) {
    constexpr int kSize = E == Element::fp32 ? 4 : 2;
    const auto* from = reinterpret_cast<const ptx::Vec4*>(static_cast<const char*>(data) + at * kSize);
#pragma unroll
    for (int i = 0; i < kWords; ++i) w[i] = ptx::load_global(from + i);
  }
  TILEWISE_INLINE float get(int i) const {
    if constexpr (E == Element::fp32) return ptx::float_of(w[i / 4].w[i % 4]);
    const u32 pair = w[0].w[i / 2];
    if constexpr (E == Element::bf16) return i % 2 ? ptx::bf16_high(pair) : ptx::bf16_low(pair);
    return ptx::cvt_f32_f16(i % 2 ? pair >> 16 : pair & 0xFFFFu);
  }
};

// May rows of this tensor be read 16 bytes at a time?
template <Element E>
TILEWISE_INLINE bool rows_aligned(const void* data, const Strides& s) {
  constexpr u64 kSize = E == Element::fp32 ? 4 : 2;
  return s.d == 1 && ((u64(data) | u64(s.b) * kSize | u64(s.s) * kSize | u64(s.h) * kSize) & 15u) == 0;
}

}  // namespace tilewise::tile
