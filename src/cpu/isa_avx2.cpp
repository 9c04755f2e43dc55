// AVX2 with FMA and F16C: 8 lanes, 16 registers.
#include <immintrin.h>

#include "cpu/generic/table.h"

namespace tilewise::cpu {
namespace {

struct Isa : Base<Isa, 8> {
  using Base::narrow;
  using Base::widen;
  static constexpr int kRows = 4, kVectors = 3, kQueries = kVectors * W, kKeys = 128;
  TILEWISE_INLINE F pin(F x) {
    asm("" : "+x"(x));
    return x;
  }
  TILEWISE_INLINE F max(F a, F b) { return F(_mm256_max_ps(__m256(a), __m256(b))); }
  TILEWISE_INLINE bool any(I x) { return _mm256_movemask_ps(__m256(x)) != 0; }
  TILEWISE_INLINE F widen(const fp16* p) { return F(_mm256_cvtph_ps(load<__m128i>(p))); }
  TILEWISE_INLINE void narrow(fp16* p, F x) {
    store(p, _mm256_cvtps_ph(__m256(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  TILEWISE_INLINE U64 multiply_even(U a, U b) { return U64(_mm256_mul_epu32(__m256i(a), __m256i(b))); }
};

}  // namespace

extern const Kernels kAvx2Kernels;
constexpr Kernels kAvx2Kernels = make_table<Isa>("avx2");

}  // namespace tilewise::cpu
