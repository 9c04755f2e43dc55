// Micro-kernels: C[R rows][NV vectors] = sum over t of A(r, t) * B[t][NV vectors], with one accumulator
// register per (row, vector). A's elements are broadcast from where they lie, B's rows are vectors. Each
// kernel that calls multiply() is a noinline function: inlined into a larger loop, GCC spills the
// accumulators.
#pragma once

#include "cpu/generic/vec.h"

namespace tilewise::cpu {

// What one step of a dot product is: fp32 fused multiply-add, or a pair of bf16 (32 bits) added to fp32.
template <class V>
struct Fp32Dot {
  using Element = float;
  TILEWISE_INLINE typename V::F step(typename V::F acc, float a, typename V::F b) { return acc + a * b; }
};
template <class V>
struct PairDot {
  using Element = u32;
  TILEWISE_INLINE typename V::F step(typename V::F acc, u32 a, typename V::F b) {
    return V::dot_pairs(acc, a, b);
  }
};

// Where A(r, t) lies: a[r * stride + t] (rows of A are contiguous) or a[t * stride + r].
enum class Along { rows, columns };

// f<0>(), f<1>(), ... f<N - 1>(): unrolled before the compiler decides what lives in registers.
template <class F, int... I>
TILEWISE_INLINE void unroll(F&& f, std::integer_sequence<int, I...>) {
  (f.template operator()<I>(), ...);
}
template <int N, class F>
TILEWISE_INLINE void unroll(F&& f) {
  unroll(f, std::make_integer_sequence<int, N>{});
}
#define TILEWISE_INLINED __attribute__((always_inline))

template <class V, class Dot, Along along, int R, int NV>
TILEWISE_INLINE void multiply(typename V::F (&acc)[R][NV], const typename Dot::Element* a, i64 stride,
                              const float* b, i64 ldb, int n) {
  for (int t = 0; t < n; ++t) {
    typename V::F row[NV];
    // pinned: else GCC folds the load into each of the R multiply-adds
    unroll<NV>([&]<int v>() TILEWISE_INLINED { row[v] = V::pin(V::load(b + v * V::W)); });
    unroll<R>([&]<int r>() TILEWISE_INLINED {
      using Element = typename Dot::Element;
      const Element x = V::template load<Element>(along == Along::rows ? a + r * stride : a + r);
      unroll<NV>([&]<int v>() TILEWISE_INLINED { acc[r][v] = Dot::step(acc[r][v], x, row[v]); });
    });
    a += along == Along::rows ? 1 : stride;
    b += ldb;
  }
}

// s[r] = A(r, :) B for R rows, and the running maximum over rows; NaNs do not enter the maximum.
template <class V, class Dot, int R, int NV>
[[gnu::noinline]] static void scores_kernel(const typename Dot::Element* a, i64 stride, const float* b, int n,
                                            float* s, float* running_max) {
  constexpr int ld = V::kQueries;
  typename V::F acc[R][NV];
  unroll<R * NV>([&]<int i>() TILEWISE_INLINED { acc[i / NV][i % NV] = typename V::F{}; });
  multiply<V, Dot, Along::rows, R, NV>(acc, a, stride, b, ld, n);
  unroll<NV>([&]<int v>() TILEWISE_INLINED {
    typename V::F m = V::load(running_max + v * V::W);
    unroll<R>([&]<int r>() TILEWISE_INLINED {
      V::store(s + r * ld + v * V::W, acc[r][v]);
      m = V::max(acc[r][v], m);
    });
    V::store(running_max + v * V::W, m);
  });
}

// c[r] = alpha * c[r] + A(r, :) B for R rows, A(r, t) = a[t * stride + r].
template <class V, class Dot, int R, int NV>
[[gnu::noinline]] static void values_kernel(const typename Dot::Element* a, i64 stride, const float* b, int n,
                                            float* c, const float* alpha) {
  constexpr int ld = V::kQueries;
  typename V::F acc[R][NV];
  unroll<NV>([&]<int v>() TILEWISE_INLINED {
    const typename V::F scale = V::load(alpha + v * V::W);
    unroll<R>([&]<int r>() TILEWISE_INLINED { acc[r][v] = V::load(c + r * ld + v * V::W) * scale; });
  });
  multiply<V, Dot, Along::columns, R, NV>(acc, a, stride, b, ld, n);
  unroll<R * NV>([&]<int i>()
                     TILEWISE_INLINED { V::store(c + i / NV * ld + i % NV * V::W, acc[i / NV][i % NV]); });
}

// Calls f.template operator()<R>(first row) for blocks of V::kRows rows, then for the rest in powers of two.
template <int R, class F>
TILEWISE_INLINE void row_blocks(i64 rows, F&& f, i64 first = 0) {
  for (; first + R <= rows; first += R) f.template operator()<R>(first);
  if constexpr (R > 1) row_blocks<R / 2>(rows, f, first);
}

}  // namespace tilewise::cpu
