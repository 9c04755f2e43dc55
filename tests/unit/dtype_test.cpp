// fp16 and bf16 conversions: all 65536 values of each, and the rounding around every one of them.
#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tilewise {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The value of a 16-bit float from the definition of its format.
double value_of(uint16_t bits, int exponent_bits, int mantissa_bits) {
  const int sign = bits >> 15, exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  double x;
  if (exponent == (1 << exponent_bits) - 1)
    x = mantissa ? std::nan("") : std::numeric_limits<double>::infinity();
  else if (exponent == 0)
    x = std::ldexp(double(mantissa), 1 - bias - mantissa_bits);
  else
    x = std::ldexp(double(mantissa + (1 << mantissa_bits)), exponent - bias - mantissa_bits);
  return sign ? -x : x;
}

template <class T>
void check_every_value(int exponent_bits, int mantissa_bits) {
  for (int bits = 0; bits < 65536; ++bits) {
    const double want = value_of(uint16_t(bits), exponent_bits, mantissa_bits);
    const float x = to_float(T{uint16_t(bits)});
    if (std::isnan(want)) {
      ASSERT_TRUE(std::isnan(x)) << bits;
      ASSERT_TRUE(std::isnan(to_float(from_float<T>(x)))) << bits;
      continue;
    }
    ASSERT_EQ(double(x), want) << bits;
    ASSERT_EQ(std::signbit(x), std::signbit(want)) << bits;
    ASSERT_EQ(from_float<T>(x).bits, bits);
  }
}

// Between two neighbours: below the midpoint rounds down, above it up, on it to the even one.
template <class T>
void check_rounding(int infinity_bits) {
  for (int bits = 0; bits + 1 < infinity_bits; ++bits) {
    const float low = to_float(T{uint16_t(bits)}), high = to_float(T{uint16_t(bits + 1)});
    const float middle = float((double(low) + double(high)) / 2);
    for (int sign : {0, 0x8000}) {
      auto rounded = [&](float x) { return int(from_float<T>(sign ? -x : x).bits); };
      ASSERT_EQ(rounded(middle), (bits % 2 ? bits + 1 : bits) | sign) << bits;
      ASSERT_EQ(rounded(std::nextafter(middle, 0.f)), bits | sign) << bits;
      ASSERT_EQ(rounded(std::nextafter(middle, kInf)), (bits + 1) | sign) << bits;
    }
  }
}

TEST(Dtype, EveryFp16Value) { check_every_value<fp16>(5, 10); }
TEST(Dtype, EveryBf16Value) { check_every_value<bf16>(8, 7); }
TEST(Dtype, Fp16RoundsToNearestEven) { check_rounding<fp16>(0x7C00); }
TEST(Dtype, Bf16RoundsToNearestEven) { check_rounding<bf16>(0x7F80); }

TEST(Dtype, OverflowGoesToInfinity) {
  EXPECT_EQ(to_float(from_float<fp16>(65504)), 65504);
  EXPECT_EQ(to_float(from_float<fp16>(std::nextafter(65520.f, 0.f))), 65504);
  EXPECT_EQ(to_float(from_float<fp16>(65520)), kInf);
  EXPECT_EQ(to_float(from_float<fp16>(-1e30f)), -kInf);
  EXPECT_EQ(to_float(from_float<bf16>(std::numeric_limits<float>::max())), kInf);
  EXPECT_EQ(from_float<fp16>(1e-30f).bits, 0);
  EXPECT_EQ(from_float<fp16>(-1e-30f).bits, 0x8000);
}

TEST(Dtype, SizesAndNames) {
  EXPECT_EQ(size_of(TW_FP32), 4u);
  EXPECT_EQ(size_of(TW_FP16), 2u);
  EXPECT_EQ(size_of(TW_BF16), 2u);
  EXPECT_EQ(size_of(TW_BOOL), 1u);
  EXPECT_EQ(size_of(TW_INT32), 4u);
  EXPECT_EQ(size_of(TW_INT64), 8u);
  EXPECT_EQ(size_of(TW_DTYPE_NONE), 0u);
  EXPECT_STREQ(name_of(TW_BF16), "bf16");
  EXPECT_FALSE(is_floating(TW_INT32));
}

}  // namespace
}  // namespace tilewise
