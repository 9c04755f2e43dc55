#include "core/overlap.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>

#include "core/dtype.h"

namespace tilewise {
namespace {

struct Dim {
  int64_t size, step;  // step: |stride| in bytes
  int index;
};

struct Span {
  std::array<Dim, 4> dims;  // of size > 1, largest step first
  int n = 0;
  uintptr_t first;  // lowest byte
  int64_t element;
  // Bytes spanned by the dims from k on.
  int64_t inner(int k) const {
    int64_t bytes = element;
    for (int i = k; i < n; ++i) bytes += (dims[size_t(i)].size - 1) * dims[size_t(i)].step;
    return bytes;
  }
};

Span span_of(const tw_tensor& t) {
  Span s{};
  s.element = int64_t(size_of(tw_dtype(t.dtype)));
  s.first = reinterpret_cast<uintptr_t>(t.data);
  for (int i = 0; i < t.ndim; ++i) {
    if (t.size[i] < 2) continue;
    const int64_t bytes = t.stride[i] * s.element;
    if (bytes < 0) s.first += uintptr_t(bytes * (t.size[i] - 1));
    s.dims[size_t(s.n++)] = {t.size[i], std::abs(bytes), i};
  }

  for (int i = 1; i < s.n; ++i)
    for (int k = i; k > 0 && s.dims[size_t(k)].step > s.dims[size_t(k - 1)].step; --k)
      std::swap(s.dims[size_t(k)], s.dims[size_t(k - 1)]);
  return s;
}

}  // namespace

int self_overlap(const tw_tensor& t) {
  const Span s = span_of(t);
  for (int k = 0; k < s.n; ++k)
    if (s.dims[size_t(k)].step < s.inner(k + 1)) return s.dims[size_t(k)].index;
  return -1;
}

Extent extent_of(const tw_tensor& t) {
  if (!t.data) return {};
  const uintptr_t element = size_of(tw_dtype(t.dtype)), data = reinterpret_cast<uintptr_t>(t.data);
  uintptr_t below = 0, above = element;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.size[i] == 0) return {};
    if (t.size[i] == 1) continue;
    const uintptr_t step = uintptr_t(t.stride[i] < 0 ? -t.stride[i] : t.stride[i]) * element;
    (t.stride[i] < 0 ? below : above) += uintptr_t(t.size[i] - 1) * step;
  }
  return {below > data ? 0 : data - below, above > UINTPTR_MAX - data ? UINTPTR_MAX : data + above};
}

bool may_overlap(const tw_tensor& ta, const tw_tensor& tb) {
  Span a = span_of(ta), b = span_of(tb);
  if (b.first < a.first) std::swap(a, b);
  const uint64_t gap = b.first - a.first;
  if (gap >= uint64_t(a.inner(0))) return false;
  // Both repeat with a common period g in their outer dimensions: they are disjoint when one period holds
  // both apart.
  for (int ka = 1; ka <= a.n; ++ka)
    for (int kb = 1; kb <= b.n; ++kb) {
      int64_t g = 0;
      for (int i = 0; i < ka; ++i) g = std::gcd(g, a.dims[size_t(i)].step);
      for (int i = 0; i < kb; ++i) g = std::gcd(g, b.dims[size_t(i)].step);
      if (!g) continue;
      const int64_t r = int64_t(gap % uint64_t(g));
      if (r >= a.inner(ka) && r + b.inner(kb) <= g) return false;
    }
  return true;
}

}  // namespace tilewise
