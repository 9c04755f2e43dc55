// The matrix products of the backward: c (rows, 16 NV columns) = or += A B with A broadcast and B in vectors,
// as in gemm.h, for any number of rows and vectors.
#pragma once

#include "cpu/generic/gemm.h"

namespace tilewise::cpu {

// Where A lies: a[r * stride + t] (Along::rows) or a[t * stride + r] (Along::columns).
template <class Dot>
struct Left {
  const typename Dot::Element* data;
  i64 stride;
};

template <class V, class Dot, Along along, bool add, int R, int NV>
[[gnu::noinline]] static void product_kernel(const typename Dot::Element* a, i64 stride, const float* b,
                                             i64 ldb, int n, float* c, i64 ldc) {
  typename V::F acc[R][NV];
  unroll<R * NV>([&]<int i>() TILEWISE_INLINED {
    constexpr int r = i / NV, v = i % NV;
    acc[r][v] = add ? V::load(c + r * ldc + v * V::W) : typename V::F{};
  });
  multiply<V, Dot, along, R, NV>(acc, a, stride, b, ldb, n);
  unroll<R * NV>([&]<int i>() TILEWISE_INLINED {
    constexpr int r = i / NV, v = i % NV;
    V::store(c + r * ldc + v * V::W, acc[r][v]);
  });
}

template <class V, class Dot, Along along, bool add, int NV>
static void product_panel(i64 rows, int n, Left<Dot> a, const float* b, i64 ldb, float* c, i64 ldc) {
  row_blocks<V::kRows>(rows, [&]<int R>(i64 r) {
    const auto* from = a.data + (along == Along::rows ? r * a.stride : r);
    product_kernel<V, Dot, along, add, R, NV>(from, a.stride, b, ldb, n, c + r * ldc, ldc);
  });
}

// c[rows][vectors] (+)= A[rows][n] b[n][vectors]. Columns go in panels of at most 3 vectors, 2 + 2 rather
// than 3 + 1.
template <class V, class Dot, Along along, bool add>
static void product(i64 rows, int vectors, int n, Left<Dot> a, const float* b, i64 ldb, float* c, i64 ldc) {
  for (int panels = (vectors + 2) / 3; panels > 0; --panels) {
    const int nv = (vectors + panels - 1) / panels;
    if (nv == 3) product_panel<V, Dot, along, add, 3>(rows, n, a, b, ldb, c, ldc);
    if (nv == 2) product_panel<V, Dot, along, add, 2>(rows, n, a, b, ldb, c, ldc);
    if (nv == 1) product_panel<V, Dot, along, add, 1>(rows, n, a, b, ldb, c, ldc);
    vectors -= nv;
    b += nv * V::W;
    c += nv * V::W;
  }
}

}  // namespace tilewise::cpu
