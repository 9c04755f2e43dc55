// cap tanh(s / cap), and its derivative, through one exponential of a number that is not positive: both keep
// their relative accuracy where the cap has long been reached.
#pragma once

#include "../ptx/math.h"

namespace tilewise {

struct Tanh {
  float value, slope;
};

// kPrecise: fp32 inputs take the series where (1 - e) loses relative accuracy.
template <bool kPrecise>
TILEWISE_INLINE Tanh tanh_of(float x) {
  constexpr float kMinusTwoLog2e = -2.885390081777927f;
  const float size = x < 0 ? -x : x;
  const float e = ptx::ex2(kMinusTwoLog2e * size), r = ptx::rcp(1.f + e), y = (1.f - e) * r;
  const Tanh t{x < 0 ? -y : y, 4.f * e * r * r};
  if constexpr (!kPrecise) return t;
  const float x2 = x * x;
  const float series =
      x * (1.f + x2 * (-1.f / 3 + x2 * (2.f / 15 + x2 * (-17.f / 315 + x2 * (62.f / 2835)))));
  return x2 < 0.09f ? Tanh{series, 1.f - series * series} : t;
}

}  // namespace tilewise
