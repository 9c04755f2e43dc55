// Tilewise for C++20: a thin layer of ownership and exceptions over tilewise.h.
//
//     tw::Attention a;
//     a.q = tw::tensor(q.data(), {B, S, H, D});
//     a.k = tw::tensor(k.data(), {B, S, H, D});
//     a.v = tw::tensor(v.data(), {B, S, H, D});
//     a.out = tw::tensor(out.data(), {B, S, H, D});
//     a.options.causal = 1;
//     tw::run(a);
//
// Every failure is a tw::Error that carries the library's status and sentence.
#pragma once

#include <initializer_list>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "tilewise/tilewise.h"

namespace tw {

class Error : public std::runtime_error {
 public:
  explicit Error(tw_status status) : std::runtime_error(tw_last_error()), status_(status) {}
  tw_status status() const noexcept { return status_; }

 private:
  tw_status status_;
};

inline void check(tw_status status) {
  if (status != TW_OK) throw Error(status);
}

// A row-major view of memory, on the CPU unless a device is named. More than 4 sizes make a view that is
// refused by its ndim.
inline tw_tensor tensor(const void* data, tw_dtype dtype, std::span<const int64_t> size,
                        tw_device_type device = TW_CPU, int device_index = 0) {
  tw_tensor t{};
  t.data = const_cast<void*>(data);
  t.dtype = dtype;
  t.ndim = static_cast<int32_t>(size.size());
  t.device_type = device;
  t.device_index = device_index;
  int64_t stride = 1;
  for (size_t i = size.size() <= 4 ? size.size() : 0; i-- > 0;) {
    t.size[i] = size[i];
    t.stride[i] = stride;
    stride *= size[i] > 0 ? size[i] : 1;
  }
  return t;
}

inline tw_tensor tensor(const void* data, tw_dtype dtype, std::initializer_list<int64_t> size) {
  return tensor(data, dtype, std::span<const int64_t>(size.begin(), size.size()));
}

// The dtype follows from the pointer: float, bool, int32_t or int64_t. 16-bit floats name their dtype.
template <class T>
tw_tensor tensor(T* data, std::initializer_list<int64_t> size) {
  using Element = std::remove_const_t<T>;
  static_assert(std::is_same_v<Element, float> || std::is_same_v<Element, bool> ||
                    std::is_same_v<Element, int32_t> || std::is_same_v<Element, int64_t>,
                "tw::tensor: give the dtype of this pointer, tw::tensor(data, TW_FP16, {...})");
  constexpr tw_dtype kDtype = std::is_same_v<Element, float>     ? TW_FP32
                              : std::is_same_v<Element, bool>    ? TW_BOOL
                              : std::is_same_v<Element, int32_t> ? TW_INT32
                                                                 : TW_INT64;
  return tensor(data, kDtype, size);
}

// A problem with every option at its default.
struct Attention : tw_attention {
  Attention() { check(tw_attention_init(this, sizeof(tw_attention))); }
};

// Host memory for a workspace. Grows, never shrinks.
class Workspace {
 public:
  void* data() const noexcept { return memory_.get(); }
  size_t size() const noexcept { return size_; }
  void reserve(size_t bytes) {
    if (bytes <= size_) return;
    memory_.reset();
    size_ = 0;
    memory_.reset(::operator new(bytes, std::align_val_t(256)));
    size_ = bytes;
  }

 private:
  struct Free {
    void operator()(void* p) const { ::operator delete(p, std::align_val_t(256)); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t size_ = 0;
};

// A decision that can be run many times, also from several threads at once (each with its own workspace).
class Plan {
 public:
  explicit Plan(const tw_attention& a, tw_pass pass = TW_FORWARD) {
    tw_plan* plan = nullptr;
    check(tw_plan_create(&a, pass, &plan));
    plan_.reset(plan);
  }
  size_t workspace() const { return tw_plan_workspace(plan_.get()); }
  void prepare() const { check(tw_plan_prepare(plan_.get())); }
  void execute(const tw_attention& a, void* workspace, size_t bytes, void* stream = nullptr) const {
    check(tw_plan_execute(plan_.get(), &a, workspace, bytes, stream));
  }
  void execute(const tw_attention& a, Workspace& workspace) const {
    workspace.reserve(this->workspace());
    execute(a, workspace.data(), workspace.size());
  }
  std::string explain() const {
    size_t length = 0;
    check(tw_plan_explain(plan_.get(), nullptr, 0, &length));
    std::string text(length, '\0');
    check(tw_plan_explain(plan_.get(), text.data(), length + 1, nullptr));
    return text;
  }

 private:
  struct Destroy {
    void operator()(tw_plan* plan) const { tw_plan_destroy(plan); }
  };
  std::unique_ptr<tw_plan, Destroy> plan_;
};

// Plans and runs tensors in host memory once.
inline void run(const tw_attention& a, tw_pass pass = TW_FORWARD) {
  Workspace workspace;
  Plan(a, pass).execute(a, workspace);
}

inline std::string info() {
  size_t length = 0;
  check(tw_info(nullptr, 0, &length));
  std::string text(length, '\0');
  check(tw_info(text.data(), length + 1, nullptr));
  return text;
}

}  // namespace tw
