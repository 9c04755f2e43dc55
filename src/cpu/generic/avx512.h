// AVX-512 (F, BW, DQ, VL): 16 lanes, 32 registers. Shared by the files with and without native bf16.
#pragma once

#include <immintrin.h>

#include "cpu/generic/vec.h"

namespace tilewise::cpu {

template <class V>
struct Avx512 : Base<V, 16> {
  using B = Base<V, 16>;
  using B::narrow;
  using B::widen;
  using typename B::F;
  using typename B::I;
  using typename B::U;
  using typename B::U64;
  static constexpr int kRows = 8, kVectors = 3, kQueries = kVectors * B::W, kKeys = 128;
  TILEWISE_INLINE F pin(F x) {
    asm("" : "+v"(x));
    return x;
  }
  TILEWISE_INLINE F max(F a, F b) { return F(_mm512_max_ps(__m512(a), __m512(b))); }
  TILEWISE_INLINE bool any(I x) { return _mm512_test_epi32_mask(__m512i(x), __m512i(x)) != 0; }
  TILEWISE_INLINE F widen(const fp16* p) { return F(_mm512_cvtph_ps(B::template load<__m256i>(p))); }
  TILEWISE_INLINE void narrow(fp16* p, F x) {
    B::store(p, _mm512_cvtps_ph(__m512(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  TILEWISE_INLINE U64 multiply_even(U a, U b) { return U64(_mm512_mul_epu32(__m512i(a), __m512i(b))); }

  // scalef gives 0 for n = -inf even though r is then NaN, and NaN for a NaN x.
  template <int Degree>
  TILEWISE_INLINE F exp2(F x) {
    const F n = F(_mm512_roundscale_ps(__m512(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return F(_mm512_scalef_ps(__m512(B::template exp2_poly<Degree>(x - n)), __m512(n)));
  }
};

}  // namespace tilewise::cpu
