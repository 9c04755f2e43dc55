// Element types: sizes, names, and the exact conversions that everything else is judged by (round to nearest
// even).
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tilewise/tilewise.h"

namespace tilewise {

constexpr size_t size_of(tw_dtype t) {
  switch (t) {
    case TW_FP32:
    case TW_INT32: return 4;
    case TW_FP16:
    case TW_BF16: return 2;
    case TW_BOOL: return 1;
    case TW_INT64: return 8;
    default: return 0;
  }
}

constexpr const char* name_of(tw_dtype t) {
  switch (t) {
    case TW_FP32: return "fp32";
    case TW_FP16: return "fp16";
    case TW_BF16: return "bf16";
    case TW_BOOL: return "bool";
    case TW_INT32: return "int32";
    case TW_INT64: return "int64";
    default: return "none";
  }
}

constexpr bool is_floating(tw_dtype t) { return t == TW_FP32 || t == TW_FP16 || t == TW_BF16; }

struct fp16 {
  uint16_t bits;
};
struct bf16 {
  uint16_t bits;
};

inline float to_float(float x) { return x; }

inline float to_float(bf16 x) { return std::bit_cast<float>(uint32_t(x.bits) << 16); }

inline float to_float(fp16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, exponent = (x.bits >> 10) & 31,
                 mantissa = x.bits & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
    const float magnitude = float(mantissa) * 0x1p-24f;
    return sign ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

template <class T>
T from_float(float x);

template <>
inline float from_float<float>(float x) {
  return x;
}

template <>
inline bf16 from_float<bf16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return {uint16_t((u >> 16) | 0x40)};  // NaN stays NaN
  return {uint16_t((u + 0x7FFFu + ((u >> 16) & 1)) >> 16)};
}

template <>
inline fp16 from_float<fp16>(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), magnitude = u & 0x7FFFFFFFu;
  const uint16_t sign = uint16_t((u >> 16) & 0x8000);
  if (magnitude > 0x7F800000u) return {uint16_t(sign | 0x7E00)};
  if (magnitude >= 0x477FF000u) return {uint16_t(sign | 0x7C00)};  // rounds to 65520 or more: infinity
  if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, a multiple of 2^-24, rounded by the fp32 adder
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return {uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3F000000u))};
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1);
  return {uint16_t(sign | ((rounded - 0x38000000u) >> 13))};
}

// Calls f with a value of the C++ type that stands for a floating dtype.
template <class F>
decltype(auto) with_type(tw_dtype t, F&& f) {
  switch (t) {
    case TW_FP16: return f(fp16{});
    case TW_BF16: return f(bf16{});
    default: return f(float{});
  }
}

}  // namespace tilewise
