// Scalar fp32 arithmetic whose exact instruction matters.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// ex2.approx.ftz.f32: 2^x; -inf gives 0
TILEWISE_INSTRUCTION float ex2(float x) TILEWISE_PTX({
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
});

// lg2.approx.f32: log2(x)
TILEWISE_INSTRUCTION float lg2(float x) TILEWISE_PTX({
  float y;
  asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
});

// rcp.approx.ftz.f32
TILEWISE_INSTRUCTION float rcp(float x) TILEWISE_PTX({
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
});

// div.rn.f32
TILEWISE_INSTRUCTION float div(float x, float y) TILEWISE_PTX({
  float z;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
});

// fma.rn.f32
TILEWISE_INSTRUCTION float fma(float x, float y, float z) TILEWISE_PTX({
  float r;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(r) : "f"(x), "f"(y), "f"(z));
  return r;
});

// max.f32: a NaN operand loses against a number
TILEWISE_INSTRUCTION float max(float x, float y) TILEWISE_PTX({
  float r;
  asm("max.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
  return r;
});

}  // namespace tilewise::ptx
