// Conversions between fp32 and the 16-bit types; a packed pair holds the first element in its low half.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// mov.b32
TILEWISE_INLINE u32 bits_of(float x) { return __builtin_bit_cast(u32, x); }
TILEWISE_INLINE float float_of(u32 x) { return __builtin_bit_cast(float, x); }

// cvt.rn.bf16x2.f32
TILEWISE_INSTRUCTION u32 cvt_bf16x2(float low, float high) TILEWISE_PTX({
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
});

// cvt.rn.f16x2.f32
TILEWISE_INSTRUCTION u32 cvt_f16x2(float low, float high) TILEWISE_PTX({
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
});

// fma.rn.bf16x2
TILEWISE_INSTRUCTION u32 fma_bf16x2(u32 x, u32 y, u32 z) TILEWISE_PTX({
  u32 pair;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z));
  return pair;
});

// fma.rn.f16x2
TILEWISE_INSTRUCTION u32 fma_f16x2(u32 x, u32 y, u32 z) TILEWISE_PTX({
  u32 pair;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(x), "r"(y), "r"(z));
  return pair;
});

// cvt.f32.f16 of the low half
TILEWISE_INSTRUCTION float cvt_f32_f16(u32 half) TILEWISE_PTX({
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)half));
  return x;
});

// cvt.rna.tf32.f32: 10 explicit mantissa bits, the lower 13 zero
TILEWISE_INSTRUCTION u32 cvt_tf32(float x) TILEWISE_PTX({
  u32 y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
});

// bf16 to fp32 is exact: the upper half of the word.
TILEWISE_INLINE float bf16_low(u32 pair) { return float_of(pair << 16); }
TILEWISE_INLINE float bf16_high(u32 pair) { return float_of(pair & 0xFFFF0000u); }

}  // namespace tilewise::ptx
