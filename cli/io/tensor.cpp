#include "cli/io/tensor.h"

#include <limits>

#include "core/error.h"

namespace tilewise::cli {

size_t size_of(FileType type) {
  switch (type) {
    case FileType::fp64:
    case FileType::int64: return 8;
    case FileType::fp32:
    case FileType::int32: return 4;
    case FileType::fp16:
    case FileType::bf16:
    case FileType::bits16: return 2;
    case FileType::boolean: return 1;
    case FileType::other: return 0;
  }
  return 0;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

int64_t count_elements(const std::string& name, const std::vector<int64_t>& shape, size_t element_size) {
  int64_t bytes = int64_t(element_size), count = 1;
  bool empty = false;
  for (int64_t n : shape) {
    if (n < 0) invalid(name, ": shape ", shape_text(shape), "; sizes must be at least 0");
    empty = empty || n == 0;
  }
  if (empty) return 0;
  for (int64_t n : shape) {
    if (__builtin_mul_overflow(bytes, n, &bytes))
      invalid(name, ": shape ", shape_text(shape), " overflows; at most ",
              std::numeric_limits<int64_t>::max(), " bytes");
    count *= n;
  }
  return count;
}

HostTensor::HostTensor(const std::string& name, tw_dtype type, std::vector<int64_t> sizes)
    : dtype(type), shape(std::move(sizes)) {
  const size_t size = tilewise::size_of(type);
  data = Buffer(size_t(count_elements(name, shape, size)) * size);
}

int64_t HostTensor::elements() const { return dtype ? int64_t(data.size() / tilewise::size_of(dtype)) : 0; }

tw_tensor HostTensor::view() const {
  tw_tensor t{};
  if (!dtype) return t;
  t.data = data.data();
  t.dtype = dtype;
  t.device_type = TW_CPU;
  t.ndim = int32_t(shape.size());
  if (shape.empty() || shape.size() > 4) return t;  // the library refuses the ndim
  int64_t stride = 1;
  const size_t n = shape.size();
  for (size_t step = 0; step < n; ++step) {
    const size_t i = fortran ? step : n - 1 - step;
    t.size[i] = shape[i];
    t.stride[i] = stride;
    stride *= shape[i] > 0 ? shape[i] : 1;
  }
  return t;
}

tw_tensor HostTensor::shape_only() const {
  tw_tensor t = view();
  t.data = nullptr;
  return t;
}

namespace {

template <class T>
double load(const std::byte* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  if constexpr (std::is_same_v<T, double>)
    return value;
  else
    return to_float(value);
}

// fp64 to a 16-bit type in one rounding: a nearest-even double rounding through fp32 is avoided by rounding
// to odd.
float to_float_odd(double x) {
  const float nearest = float(x);
  if (double(nearest) == x || std::isnan(x) || std::isinf(nearest)) return nearest;
  const float toward_zero = std::abs(nearest) > std::abs(x) ? std::nextafter(nearest, 0.0f) : nearest;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(toward_zero) | 1);
}

template <class From, class To>
void convert_elements(const std::byte* from, To* to, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const double x = load<From>(from + size_t(i) * sizeof(From));
    if constexpr (std::is_same_v<To, float>)
      to[i] = float(x);
    else
      to[i] = from_float<To>(to_float_odd(x));
  }
}

bool same(FileType type, tw_dtype to) {
  switch (type) {
    case FileType::fp32: return to == TW_FP32;
    case FileType::fp16: return to == TW_FP16;
    case FileType::bf16:
    case FileType::bits16: return to == TW_BF16;
    case FileType::boolean: return to == TW_BOOL;
    case FileType::int32: return to == TW_INT32;
    case FileType::int64: return to == TW_INT64;
    default: return false;
  }
}

}  // namespace

HostTensor convert(FileTensor file, tw_dtype to) {
  HostTensor t;
  t.dtype = to;
  t.shape = std::move(file.shape);
  t.fortran = file.fortran;
  if (same(file.type, to)) {
    t.data = std::move(file.data);
    return t;
  }
  const int64_t n = int64_t(file.data.size() / size_of(file.type));
  t.data = Buffer(size_t(n) * tilewise::size_of(to));
  with_type(to, [&](auto target) {
    using To = decltype(target);
    To* out = t.as<To>();
    switch (file.type) {
      case FileType::fp64: convert_elements<double>(file.data.data(), out, n); break;
      case FileType::fp32: convert_elements<float>(file.data.data(), out, n); break;
      case FileType::fp16: convert_elements<fp16>(file.data.data(), out, n); break;
      default: convert_elements<bf16>(file.data.data(), out, n); break;
    }
  });
  return t;
}

}  // namespace tilewise::cli
