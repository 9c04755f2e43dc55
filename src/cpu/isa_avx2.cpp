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

  // 2^x = 2^(n / 8) 2^r with |r| <= 1/16: eight powers in a register, less their index where the exponent is
  // added, and a polynomial half as long as Base's.
  template <int Degree>
  TILEWISE_INLINE F exp2(F x) {
    x = max(set1(-127.f), x);
    const F magic = set1(0x1.8p20f), eighths = x + magic, r = x - (eighths - magic);
    const I powers = {0x3F800000, 0x3F7B95C2, 0x3F7837F0, 0x3F75FED7,
                      0x3F7504F3, 0x3F75672A, 0x3F7744FD, 0x3F7AC0C7};
    const I index = I(eighths), power = I(_mm256_permutevar8x32_epi32(__m256i(powers), __m256i(index)));
    const F t = F(power + (index << 20));
    const F p = Degree == 4 ? set1(6.933097839e-01f) + r * 2.401983291e-01f
                            : (r * 5.549890175e-02f + 2.402640730e-01f) * r + 6.931471825e-01f;
    return (t * r) * p + t;
  }
};

}  // namespace

extern const Kernels kAvx2Kernels;
constexpr Kernels kAvx2Kernels = make_table<Isa>("avx2");

}  // namespace tilewise::cpu
