// Copies a (B, S, H, D) tensor between any two layouts: into workspace, where rows are contiguous and 16-byte
// aligned as the fast kernels need them, and back. One thread an element; bound by memory, and only on the
// way of tensors with unusual strides.
#pragma once

#include "../shared/config.h"
#include "copy.h"

namespace tilewise::common {

template <Config C>
struct CopyElement {
  using type = unsigned short;
};
template <Config C>
requires(C.element == Element::fp32) struct CopyElement<C> {
  using type = u32;
};

template <Config C>
__global__ void __launch_bounds__(kCopyThreads) copy(const CopyParams p) {
  using T = typename CopyElement<C>::type;
  const i64 elements = p.elements(), step = i64(gridDim.x) * kCopyThreads;
  for (i64 n = i64(blockIdx.x) * kCopyThreads + threadIdx.x; n < elements; n += step) {
    i64 row = n / p.padded_columns;
    const i64 d = n - row * p.padded_columns;
    const i64 h = row % p.H;
    row /= p.H;
    const i64 b = row / p.S, s = row - b * p.S;
    const Strides f = p.from_stride, t = p.to_stride;
    T x{};
    if (d < p.columns) x = static_cast<const T*>(p.from)[b * f.b + s * f.s + h * f.h + d * f.d];
    static_cast<T*>(p.to)[b * t.b + s * t.s + h * t.h + d * t.d] = x;
  }
}

}  // namespace tilewise::common
