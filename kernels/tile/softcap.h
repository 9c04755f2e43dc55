// cap tanh(s / cap), and its derivative, through one exponential of a number that is not positive: both keep
// their relative accuracy where the cap has long been reached.
#pragma once

#include "../ptx/math.h"

namespace tilewise {

struct Tanh {
  float value, slope;
};

// kPrecise: fp32 takes a polynomial where (1 - e) loses relative accuracy.
template <bool kPrecise>
TILEWISE_INLINE Tanh tanh_of(float x) {
  constexpr float kMinusTwoLog2e = -2.885390081777927f;
  const float size = x < 0 ? -x : x;
  const float e = ptx::ex2(kMinusTwoLog2e * size), r = ptx::rcp(1.f + e), y = (1.f - e) * r;
  const Tanh t{x < 0 ? -y : y, 4.f * e * r * r};
  if constexpr (!kPrecise) return t;
  // x + x^3 P(x^2), fitted over [0, 0.625] to half a unit in the last place.
  const float z = x * x;
  float poly = ptx::fma(-0.005704981f, z, 0.020639082f);
  poly = ptx::fma(poly, z, -0.05373971f), poly = ptx::fma(poly, z, 0.13331442f);
  poly = ptx::fma(poly, z, -0.3333328f);
  const float small = ptx::fma(z * poly, x, x);
  return size < 0.625f ? Tanh{small, ptx::fma(-small, small, 1.f)} : t;
}

}  // namespace tilewise
