// The element types as MMA operands: packing accumulators into operands, and the product itself.
// Accumulator fragments are float[n][4], one m16n8 tile after the other (ptx/mma.h; the wgmma accumulator has
// the same order): lane l holds rows l / 4 (values 0, 1) and l / 4 + 8 (values 2, 3), columns 8 n + 2 (l % 4)
// + {0, 1}.
#pragma once

#include "../ptx/convert.h"
#include "../ptx/memory.h"
#include "../ptx/mma.h"
#include "../shared/config.h"

namespace tilewise {

template <Element e>
struct Number;

template <>
struct Number<Element::bf16> {
  using Storage = unsigned short;
  static TILEWISE_INLINE u32 pack(float low, float high) { return ptx::cvt_bf16x2(low, high); }
  static TILEWISE_INLINE u32 fma(u32 x, u32 y, u32 z) { return ptx::fma_bf16x2(x, y, z); }
  static TILEWISE_INLINE float low(u32 pair) { return ptx::bf16_low(pair); }
  static TILEWISE_INLINE float high(u32 pair) { return ptx::bf16_high(pair); }
  static TILEWISE_INLINE float value(Storage x) { return ptx::bf16_low(x); }
  static TILEWISE_INLINE Storage rounded(float x) { return Storage(ptx::cvt_bf16x2(x, 0.f)); }
  static TILEWISE_INLINE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    ptx::mma_bf16(c, a, b0, b1);
  }
};

template <>
struct Number<Element::fp16> {
  using Storage = unsigned short;
  static TILEWISE_INLINE u32 pack(float low, float high) { return ptx::cvt_f16x2(low, high); }
  static TILEWISE_INLINE u32 fma(u32 x, u32 y, u32 z) { return ptx::fma_f16x2(x, y, z); }
  static TILEWISE_INLINE float low(u32 pair) { return ptx::cvt_f32_f16(pair); }
  static TILEWISE_INLINE float high(u32 pair) { return ptx::cvt_f32_f16(pair >> 16); }
  static TILEWISE_INLINE float value(Storage x) { return ptx::cvt_f32_f16(x); }
  static TILEWISE_INLINE Storage rounded(float x) { return Storage(ptx::cvt_f16x2(x, 0.f)); }
  static TILEWISE_INLINE void mma(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    ptx::mma_f16(c, a, b0, b1);
  }
};

template <>
struct Number<Element::fp32> {
  using Storage = float;
  static TILEWISE_INLINE float value(Storage x) { return x; }
  static TILEWISE_INLINE Storage rounded(float x) { return x; }
};

constexpr int bytes_of(Element e) { return e == Element::fp32 ? 4 : 2; }

// An element of a tensor whose type is known at run time (bias).
TILEWISE_INLINE float load_element(const void* base, i64 index, Element e) {
  if (e == Element::fp32) return ptx::load_global(static_cast<const float*>(base) + index);
  const unsigned short bits = ptx::load_global(static_cast<const unsigned short*>(base) + index);
  return e == Element::bf16 ? Number<Element::bf16>::value(bits) : Number<Element::fp16>::value(bits);
}

TILEWISE_INLINE bool is_finite(float x) { return (ptx::bits_of(x) & 0x7F800000u) != 0x7F800000u; }

}  // namespace tilewise
