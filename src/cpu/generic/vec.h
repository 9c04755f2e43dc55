// The SIMD layer of the CPU kernels. A kernel is a template on V, a struct that stands for one instruction
// set and lives in the anonymous namespace of its isa_*.cpp: every instantiation then has internal linkage,
// so the linker can never give one instruction set's code to another. For the same reason nothing here calls
// inline functions of std:: or of other headers.
//
// Base<V, W> has what vector extensions express for any W; V hides what its instructions do better.
#pragma once

#include <utility>

#include "core/dtype.h"
#include "kernels/shared/types.h"

namespace tilewise::cpu {

template <int Lanes>
struct VectorTypes {
  typedef float F __attribute__((vector_size(4 * Lanes)));
  typedef i32 I __attribute__((vector_size(4 * Lanes)));
  typedef u32 U __attribute__((vector_size(4 * Lanes)));
  typedef u64 U64 __attribute__((vector_size(4 * Lanes)));
  typedef uint16_t Half __attribute__((vector_size(2 * Lanes)));
};

#define TILEWISE_INLINE [[gnu::always_inline]] static inline

template <class V, int Lanes>
struct Base : VectorTypes<Lanes> {
  using typename VectorTypes<Lanes>::F;
  using typename VectorTypes<Lanes>::I;
  using typename VectorTypes<Lanes>::U;
  using typename VectorTypes<Lanes>::U64;
  using typename VectorTypes<Lanes>::Half;
  static constexpr int W = Lanes;
  static constexpr int kForwardKeys = 256;  // keys of the forward's blocks (kKeys: of the backward's)
  static constexpr bool kPairs = false;     // bf16 dot products of pairs (V::dot_pairs)

  template <class T = F>
  TILEWISE_INLINE T load(const void* p) {
    T x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  template <class T>
  TILEWISE_INLINE void store(void* p, T x) {
    __builtin_memcpy(p, &x, sizeof x);
  }
  TILEWISE_INLINE F set1(float x) { return x - F{}; }  // x + F{} would have to turn -0 into +0
  TILEWISE_INLINE I set1i(i32 x) { return x + I{}; }
  TILEWISE_INLINE I lane_numbers() {
    I x;
    for (int i = 0; i < W; ++i) x[i] = i;
    return x;
  }

  // a > b ? a : b, so b when either is NaN.
  TILEWISE_INLINE F max(F a, F b) { return a > b ? a : b; }
  TILEWISE_INLINE F select(I where, F a, F b) { return where ? a : b; }
  TILEWISE_INLINE F abs(F x) { return F(I(x) & 0x7FFFFFFF); }
  TILEWISE_INLINE F to_float(I x) { return __builtin_convertvector(x, F); }
  TILEWISE_INLINE bool any(I x) {
    i32 r = 0;
    for (int i = 0; i < W; ++i) r |= x[i];
    return r != 0;
  }

  // Widening loads of W elements and rounding stores (to nearest even).
  TILEWISE_INLINE F widen(const float* p) { return load(p); }
  TILEWISE_INLINE F widen(const bf16* p) { return F(__builtin_convertvector(load<Half>(p), U) << 16); }
  TILEWISE_INLINE F widen(const fp16* p) {
    const U h = __builtin_convertvector(load<Half>(p), U), magnitude = h & 0x7FFF;
    const F finite = F(magnitude << 13) * 0x1p112f;  // exact, subnormals too
    const U special = (magnitude << 13) | 0x7F800000u;
    return F((magnitude >= 0x7C00 ? special : U(finite)) | (h & 0x8000) << 16);
  }
  TILEWISE_INLINE void narrow(float* p, F x) { store(p, x); }
  TILEWISE_INLINE void narrow(bf16* p, F x) {
    const U u = U(x), rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16, nan = u >> 16 | 0x40;
    store(p, __builtin_convertvector((u & 0x7FFFFFFFu) > 0x7F800000u ? nan : rounded, Half));
  }
  TILEWISE_INLINE void narrow(fp16* p, F x) {
    const U u = U(x), magnitude = u & 0x7FFFFFFFu, sign = u >> 16 & 0x8000;
    const U normal = (magnitude + 0xFFFu + (magnitude >> 13 & 1) - 0x38000000u) >> 13;
    const U subnormal = U(F(magnitude) + 0.5f) - 0x3F000000u;  // the fp32 adder rounds to multiples of 2^-24
    U r = magnitude < 0x38800000u ? subnormal : normal;
    r = magnitude >= 0x477FF000u ? U{} + 0x7C00u : r;
    r = magnitude > 0x7F800000u ? U{} + 0x7E00u : r;
    store(p, __builtin_convertvector(r | sign, Half));
  }
  TILEWISE_INLINE float widen1(const float* p) { return *p; }
  TILEWISE_INLINE float widen1(const bf16* p) { return __builtin_bit_cast(float, u32(p->bits) << 16); }
  TILEWISE_INLINE float widen1(const fp16* p) {
    fp16 x[W] = {*p};
    return V::widen(x)[0];
  }
  // The first n elements, then zeros; nothing behind them is read.
  template <class T>
  TILEWISE_INLINE F widen_first(const T* p, int n) {
    T x[W] = {};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return V::widen(x);
  }
  template <class T>
  TILEWISE_INLINE void narrow1(T* p, float x) {
    T y[W];
    V::narrow(y, V::set1(x));
    *p = y[0];
  }

  // 2^x for x <= 0 or NaN; 0 below -126.5, 2^-inf included. Degree 6 is good to 1 ulp of fp32, degree 4 to
  // 4e-6.
  template <int Degree>
  TILEWISE_INLINE F exp2(F x) {
    x = V::max(V::set1(-127.f), x);  // in this order a NaN stays
    const F magic = V::set1(0x1.8p23f), z = x + magic, n = z - magic;
    return exp2_poly<Degree>(x - n) * F((I(z) << 23) + (127 << 23));
  }
  // 2^r on [-0.5, 0.5], minimax.
  template <int Degree>
  TILEWISE_INLINE F exp2_poly(F r) {
    if constexpr (Degree == 4) {
      F p = r * 9.782912553e-03f + 5.597688363e-02f;
      p = p * r + 2.402071108e-01f;
      p = p * r + 6.931136044e-01f;
      return p * r + 1.f;
    } else {
      F p = r * 1.559467759e-04f + 1.340664391e-03f;
      p = p * r + 9.617692975e-03f;
      p = p * r + 5.550310551e-02f;
      p = p * r + 2.402265278e-01f;
      p = p * r + 6.931472150e-01f;
      return p * r + 1.f;
    }
  }

  // tanh to 2 ulp, its limits at infinity, NaN for NaN.
  TILEWISE_INLINE F tanh(F x) {
    const F a = abs(x), z = x * x;
    F p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    const F small = p * z * x + x;
    const F e = V::template exp2<6>(a * -2.885390082f);  // e^-2a
    const F large = (1.f - e) / (1.f + e);
    return a < 0.625f ? small : F(I(large) | (I(x) & i32(0x80000000)));
  }

  // 32 x 32 -> 64 bit products of the even lanes.
  TILEWISE_INLINE U64 multiply_even(U a, U b) { return (U64(a) & 0xFFFFFFFFu) * (U64(b) & 0xFFFFFFFFu); }
};

// In-register W x W transpose of 32-bit elements: log2 W rounds swap off-diagonal blocks.
template <class V, int Block, int... Lane>
TILEWISE_INLINE void swap_blocks(typename V::F& a, typename V::F& b, std::integer_sequence<int, Lane...>) {
  const typename V::F x = a, y = b;
  a = __builtin_shufflevector(x, y, ((Lane & Block) ? V::W + Lane - Block : Lane)...);
  b = __builtin_shufflevector(x, y, ((Lane & Block) ? V::W + Lane : Lane + Block)...);
}

template <class V, int Block = V::W / 2>
TILEWISE_INLINE void transpose(typename V::F (&rows)[V::W]) {
  for (int r = 0; r < V::W; ++r)
    if (!(r & Block))
      swap_blocks<V, Block>(rows[r], rows[r + Block], std::make_integer_sequence<int, V::W>{});
  if constexpr (Block > 1) transpose<V, Block / 2>(rows);
}

// Lane r of the result is the sum of rows[r], all of them at once: the transpose's rounds, added up after
// each.
template <class V, int Block = V::W / 2>
TILEWISE_INLINE typename V::F sums(typename V::F (&rows)[V::W]) {
  for (int r = 0; r < Block; ++r) {
    swap_blocks<V, Block>(rows[r], rows[r + Block], std::make_integer_sequence<int, V::W>{});
    rows[r] += rows[r + Block];
  }
  if constexpr (Block > 1)
    return sums<V, Block / 2>(rows);
  else
    return rows[0];
}

}  // namespace tilewise::cpu
