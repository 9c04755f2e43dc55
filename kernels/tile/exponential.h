// exp(x) for fp32: ex2 of x log2 e, and what the rounding of that product took, which far from 0 is more than
// a last place of the result, comes back as a factor.
#pragma once

#include "../ptx/math.h"

namespace tilewise {

// more: added to x, far smaller than 1.
TILEWISE_INLINE float exp_of(float x, float more = 0.f) {
  constexpr float kLog2OfE = 1.4426950408889634f, kLnOf2 = 0.6931471805599453f;
  constexpr float kCut = 1.3349758e-8f;  // what the constant's own rounding took, per x
  const float exponent = x * kLog2OfE, e = ptx::ex2(exponent);
  const float rest = ptx::fma(ptx::fma(x, kLog2OfE, -exponent), kLnOf2, ptx::fma(x, kCut, more));
  return e == 0.f ? 0.f : ptx::fma(e, rest, e);
}

}  // namespace tilewise
