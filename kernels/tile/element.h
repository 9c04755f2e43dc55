// Single elements of a global tensor as fp32, eight at a time where they lie side by side and 16-byte
// aligned.
#pragma once

#include "../ptx/convert.h"
#include "../ptx/memory.h"
#include "../shared/config.h"

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

// Eight elements from `at`, those at `count` and beyond as zeros. aligned: `at` and `step` allow 16-byte
// accesses and count >= 8.
template <Element E>
TILEWISE_INLINE void load_8(float (&x)[8], const void* data, i64 at, i64 step, int count, bool aligned) {
  if (aligned) {
    if constexpr (E == Element::fp32) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const ptx::Vec4 w =
            ptx::load_global(reinterpret_cast<const ptx::Vec4*>(static_cast<const float*>(data) + at) + half);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[half * 4 + i] = ptx::float_of(w.w[i]);
      }
    } else {
      const ptx::Vec4 w =
          ptx::load_global(reinterpret_cast<const ptx::Vec4*>(static_cast<const unsigned short*>(data) + at));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        x[2 * i] = E == Element::bf16 ? ptx::bf16_low(w.w[i]) : ptx::cvt_f32_f16(w.w[i] & 0xFFFFu);
        x[2 * i + 1] = E == Element::bf16 ? ptx::bf16_high(w.w[i]) : ptx::cvt_f32_f16(w.w[i] >> 16);
      }
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = i < count ? load_float<E>(data, at + i * step) : 0.0f;
  }
}

template <Element E>
TILEWISE_INLINE void store_8(const float (&x)[8], void* data, i64 at, i64 step, int count, bool aligned) {
  if (aligned) {
    if constexpr (E == Element::fp32) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        ptx::Vec4 w;
#pragma unroll
        for (int i = 0; i < 4; ++i) w.w[i] = ptx::bits_of(x[half * 4 + i]);
        ptx::store_global(reinterpret_cast<ptx::Vec4*>(static_cast<float*>(data) + at) + half, w);
      }
    } else {
      ptx::Vec4 w;
#pragma unroll
      for (int i = 0; i < 4; ++i)
        w.w[i] = E == Element::bf16 ? ptx::cvt_bf16x2(x[2 * i], x[2 * i + 1])
                                    : ptx::cvt_f16x2(x[2 * i], x[2 * i + 1]);
      ptx::store_global(reinterpret_cast<ptx::Vec4*>(static_cast<unsigned short*>(data) + at), w);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < count) store_float<E>(data, at + i * step, x[i]);
  }
}

// May rows of this tensor be read 16 bytes at a time?
template <Element E>
TILEWISE_INLINE bool rows_aligned(const void* data, const Strides& s) {
  constexpr u64 kSize = E == Element::fp32 ? 4 : 2;
  return s.d == 1 && ((u64(data) | u64(s.b) * kSize | u64(s.s) * kSize | u64(s.h) * kSize) & 15u) == 0;
}

}  // namespace tilewise::tile
