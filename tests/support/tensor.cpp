#include "support/tensor.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace tilewise::test {
namespace {

constexpr i64 kGuard = 64;  // elements before and after

// Memory order of the dims, outermost first.
std::vector<int> memory_order(int n, char layout) {
  std::vector<int> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  if (layout == 't' && n >= 3) std::swap(order[size_t(n - 2)], order[size_t(n - 3)]);
  if (layout == 'p') std::rotate(order.begin(), order.end() - 1, order.end());
  return order;
}

}  // namespace

Tensor::Tensor(tw_dtype dtype, const std::vector<i64>& shape, char layout) {
  view.dtype = dtype;
  view.device_type = TW_CPU;
  view.ndim = int32_t(shape.size());
  std::copy(shape.begin(), shape.end(), view.size);
  const int n = view.ndim;
  i64 step = layout == '2' ? 2 : 1;
  first_ = kGuard + (layout == 'o');
  for (const std::vector<int> order = memory_order(n, layout); int dim : {3, 2, 1, 0}) {
    if (dim >= n) continue;
    const int x = order[size_t(dim)];
    const bool expanded = layout == 'z' || (layout == 'e' && n >= 2 && x == n - 2);
    view.stride[x] = expanded ? 0 : layout == 'n' ? -step : step;
    if (layout == 'n') first_ += (std::max<i64>(view.size[x], 1) - 1) * step;
    if (expanded) continue;
    step *= std::max<i64>(view.size[x], 1);
    if (layout == 'k' && dim == n - 1) step = step * 3 + 1;
  }
  const size_t element = size_of(dtype);
  storage_.assign(size_t(step + 2 * kGuard + 1) * element, std::byte{0xA5});
  view.data = storage_.data() + size_t(first_) * element;
}

double Tensor::load(i64 element) const {
  const std::byte* at = storage_.data() + size_t(element) * size_of(tw_dtype(view.dtype));
  switch (view.dtype) {
    case TW_BOOL: return double(*reinterpret_cast<const unsigned char*>(at));
    case TW_INT32: return double(*reinterpret_cast<const int32_t*>(at));
    case TW_INT64: return double(*reinterpret_cast<const int64_t*>(at));
    default:
      return with_type(tw_dtype(view.dtype),
                       [&](auto t) { return double(to_float(*reinterpret_cast<const decltype(t)*>(at))); });
  }
}

void Tensor::store(i64 element, double x) {
  std::byte* at = storage_.data() + size_t(element) * size_of(tw_dtype(view.dtype));
  switch (view.dtype) {
    case TW_BOOL: *reinterpret_cast<unsigned char*>(at) = static_cast<unsigned char>(x); break;
    case TW_INT32: *reinterpret_cast<int32_t*>(at) = int32_t(x); break;
    case TW_INT64: *reinterpret_cast<int64_t*>(at) = int64_t(x); break;
    default:
      with_type(tw_dtype(view.dtype),
                [&](auto t) { *reinterpret_cast<decltype(t)*>(at) = from_float<decltype(t)>(float(x)); });
  }
}

template <class F>
void Tensor::each_offset(F&& f) const {
  i64 n[4] = {1, 1, 1, 1};
  std::copy(view.size, view.size + view.ndim, n);
  for (i64 a = 0; a < n[0]; ++a)
    for (i64 b = 0; b < n[1]; ++b)
      for (i64 c = 0; c < n[2]; ++c)
        for (i64 d = 0; d < n[3]; ++d) f(offset(a, b, c, d));
}

void Tensor::fill_storage(double x) {
  for (size_t i = 0; i < storage_.size() / size_of(tw_dtype(view.dtype)); ++i) store(i64(i), x);
}

void Tensor::fill_elements(double x) {
  each_offset([&](i64 at) { store(at, x); });
}

void Tensor::copy_elements(const Tensor& from) {
  const std::vector<double> dense = from.values();
  size_t index = 0;
  each_offset([&](i64 at) { store(at, dense[index++]); });
}

std::vector<double> Tensor::values() const {
  std::vector<double> all;
  each_offset([&](i64 at) { all.push_back(load(at)); });
  return all;
}

std::vector<std::byte> Tensor::bytes() const {
  std::vector<std::byte> all;
  const size_t element = size_of(tw_dtype(view.dtype));
  each_offset([&](i64 at) {
    const std::byte* from = storage_.data() + size_t(at) * element;
    all.insert(all.end(), from, from + element);
  });
  return all;
}

void Tensor::remember() { remembered_ = storage_; }

std::string Tensor::damage(const char* name, bool output) const {
  if (remembered_.empty()) return "";
  std::vector<bool> free(storage_.size(), false);
  const size_t element = size_of(tw_dtype(view.dtype));
  if (output)
    each_offset([&](i64 at) { std::fill_n(free.begin() + i64(size_t(at) * element), element, true); });
  for (size_t i = 0; i < storage_.size(); ++i)
    if (!free[i] && storage_[i] != remembered_[i])
      return cat(name, ": byte ", i64(i) - first_ * i64(element),
                 " from the first element, which is not the ", output ? "tensor's own" : "call's to change",
                 ", was overwritten");
  return "";
}

}  // namespace tilewise::test
