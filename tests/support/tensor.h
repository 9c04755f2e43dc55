// A tensor for tests: any layout, storage with guard bytes around it, and a memory of what it held, so that
// a stray write is found wherever it lands.
#pragma once

#include <cstddef>
#include <new>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/problem.h"

namespace tilewise::test {

// Layouts, one letter each:
//   c contiguous    t heads before rows (BHSD view)   2 every second element      p last dim outermost in
//   memory n reversed (negative strides)   o starts one element off alignment   k slice of a wider row
//   (packed qkv) e expanded over heads (stride 0; inputs only)     z every stride 0 (inputs only)
inline constexpr char kInputLayouts[] = "ct2pnoke";
inline constexpr char kOutputLayouts[] = "ct2pnok";

// Storage on a 64-byte boundary wherever it is made: equal tensors then lie alike in it, on the device too.
template <class T>
struct Aligned {
  using value_type = T;
  static constexpr std::align_val_t kBoundary{64};
  Aligned() = default;
  template <class U>
  Aligned(const Aligned<U>&) {}
  T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), kBoundary)); }
  void deallocate(T* p, size_t) { ::operator delete(p, kBoundary); }
  template <class U>
  bool operator==(const Aligned<U>&) const {
    return true;
  }
};
using Storage = std::vector<std::byte, Aligned<std::byte>>;

class Tensor {
 public:
  Tensor() = default;
  Tensor(tw_dtype dtype, const std::vector<i64>& shape, char layout);

  tw_tensor view{};  // dtype TW_DTYPE_NONE when absent
  explicit operator bool() const { return view.dtype != TW_DTYPE_NONE; }

  double get(i64 a, i64 b = 0, i64 c = 0, i64 d = 0) const { return load(offset(a, b, c, d)); }
  void set(double x, i64 a, i64 b = 0, i64 c = 0, i64 d = 0) { store(offset(a, b, c, d), x); }

  void fill_storage(double x);             // every element of the storage, gaps and guards too
  void fill_elements(double x);            // the tensor's own elements only
  void copy_elements(const Tensor& from);  // of the same shape, in any layout
  std::vector<double> values() const;      // the tensor's own elements, dense
  std::vector<std::byte> bytes() const;    // the same, as bits

  void remember();
  // What changed since remember(): "" or a sentence. Outputs may change their own elements.
  std::string damage(const char* name, bool output) const;

  Storage& storage() { return storage_; }

 private:
  i64 offset(i64 a, i64 b, i64 c, i64 d) const {
    const i64* s = view.stride;
    return first_ + a * s[0] + b * s[1] + c * s[2] + d * s[3];
  }
  double load(i64 element) const;
  void store(i64 element, double x);
  template <class F>
  void each_offset(F&& f) const;

  Storage storage_, remembered_;
  i64 first_ = 0;  // element of the storage that index (0, ..., 0) stands for
};

}  // namespace tilewise::test
