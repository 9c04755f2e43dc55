// cap tanh(s / cap) and the derivative of tanh, through one exponential of a number that is not positive:
// both keep their relative accuracy where the cap has long been reached.
#pragma once

#include "../ptx/math.h"

namespace tilewise {

struct Capped {
  float value, slope;
};

// x = s / cap. kPrecise: for fp32.
template <bool kPrecise>
TILEWISE_INLINE Capped softcapped(float cap, float x) {
  constexpr float kMinusTwoLog2e = -2.885390081777927f;
  const float size = x < 0 ? -x : x;
  const float e = ptx::ex2(kMinusTwoLog2e * size), r = ptx::rcp(1.f + e);
  if constexpr (!kPrecise) {
    const float y = (1.f - e) * r;
    return {cap * (x < 0 ? -y : y), 4.f * e * r * r};
  }
  // What is missing from the cap is small and carries the errors of e and r: one rounding of the result is
  // left. Near 0, where it is not small, x + x^3 P(x^2), fitted over [0, 0.625] to half a unit in the last
  // place.
  const float edge = x < 0 ? -cap : cap, slope = 4.f * e * r * r;
  const float z = x * x;
  float poly = ptx::fma(-0.005704981f, z, 0.020639082f);
  poly = ptx::fma(poly, z, -0.05373971f), poly = ptx::fma(poly, z, 0.13331442f);
  poly = ptx::fma(poly, z, -0.3333328f);
  const float small = ptx::fma(z * poly, x, x);
  const bool far = size >= 0.625f;  // both are made: a branch for each of many scores takes NVRTC seconds
  return {far ? ptx::fma(-2.f * e * r, edge, edge) : cap * small, far ? slope : ptx::fma(-small, small, 1.f)};
}

}  // namespace tilewise
