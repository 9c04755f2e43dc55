// A problem whose offsets exceed 32 bits, in few pages: its tensors spread over one span of memory.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/error.h"
#include "support/case.h"

namespace tilewise::test {

// Memory of the host, as cuda::DeviceBuffer is a device's: only the pages that are written cost anything.
class HostBuffer {
 public:
  explicit HostBuffer(size_t bytes)
      : data_(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
        bytes_(bytes) {
    if (data_ == MAP_FAILED) fail(TW_OUT_OF_MEMORY, "mapping ", bytes, " bytes");
  }
  HostBuffer(const HostBuffer&) = delete;
  ~HostBuffer() { munmap(data_, bytes_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  void upload(const void* from, size_t bytes, size_t at) const { std::memcpy(data() + at, from, bytes); }
  void download(void* to, size_t bytes, size_t at) const { std::memcpy(to, data() + at, bytes); }

 private:
  void* data_;
  size_t bytes_;
};

// The tensors of a problem in one span of memory. One dimension of each, `far` or the next that has a second
// element, reaches more than 2^32 elements away; the others lie close together. The far strides are multiples
// of a period, whose start, a window, has a place for each tensor and NaNs around them: where an offset
// that lost its upper 32 bits points to, too.
template <class Buffer>
class Spread {
 public:
  static constexpr i64 kPeriods = 10, kShift = i64{1} << 16, kPeriod = (i64{1} << 31) + kShift;
  static constexpr i64 kWindow = kPeriods * kShift, kBytes = (kPeriods - 1) * kPeriod + kWindow;

  Spread(Attention& x, const Buffer& memory, int far) : x_(x), memory_(memory), windows_(all(), 0xFF) {
    i64 free = kPlace;
    for (const Attention::Named& t : x.tensors()) {
      const tw_tensor& dense = t.tensor->view;
      if (!*t.tensor || dense.ndim < 2) continue;
      Place place{t, free, {}, i64(size_of(tw_dtype(dense.dtype)))};
      int at = far % dense.ndim;
      while (dense.size[at] < 2) at = (at + 1) % dense.ndim;
      i64 step = place.element;
      for (int i = dense.ndim - 1; i >= 0; --i)
        if (i != at) place.stride[i] = step, step *= dense.size[i];
      const i64 reach = (place.element << 32) / (dense.size[at] - 1);
      place.stride[at] = (reach + kPeriod - 1) / kPeriod * kPeriod;
      if ((dense.size[at] - 1) * place.stride[at] > (kPeriods - 1) * kPeriod || step > kPlace / 2)
        throw std::logic_error(cat(t.name, " is too large for its place"));
      free += kPlace;
      tw_tensor& view = x.a.*t.view;
      view.data = memory.data() + place.start;
      for (int i = 0; i < dense.ndim; ++i) view.stride[i] = place.stride[i] / place.element;
      each(place, [&](std::byte* dense_element, i64 address) {
        std::memcpy(window(windows_, address), dense_element, size_t(place.element));
      });
      places_.push_back(place);
    }
    for (i64 n = 0; n < kPeriods; ++n)
      memory.upload(&windows_[size_t(n * kWindow)], kWindow, size_t(n * kPeriod));
  }

  // Brings the results to the problem's own tensors, and binds it to them. What else has changed.
  std::string collect(bool backward) {
    std::vector<unsigned char> now(all());
    for (i64 n = 0; n < kPeriods; ++n)
      memory_.download(&now[size_t(n * kWindow)], kWindow, size_t(n * kPeriod));
    for (const Place& place : places_)
      if (place.of.forward_output || (backward && place.of.backward_output))
        each(place, [&](std::byte* dense_element, i64 address) {
          std::memcpy(dense_element, window(now, address), size_t(place.element));
          std::memcpy(window(windows_, address), dense_element, size_t(place.element));
        });
    x_.bind();
    const auto [was, is] = std::mismatch(windows_.begin(), windows_.end(), now.begin());
    const i64 at = was - windows_.begin();
    return was == windows_.end() ? ""
                                 : cat("byte ", at % kWindow, " of window ", at / kWindow,
                                       ", which is nobody's to change, was overwritten");
  }

 private:
  static constexpr i64 kPlace = 4096;  // bytes of a window for a tensor, half of them in use
  struct Place {
    Attention::Named of;
    i64 start, stride[4], element;  // bytes
  };
  static constexpr size_t all() { return size_t(kPeriods * kWindow); }
  static unsigned char* window(std::vector<unsigned char>& windows, i64 address) {
    return &windows[size_t(address / kPeriod * kWindow + address % kPeriod)];
  }
  template <class F>
  static void each(const Place& place, F&& f) {
    const tw_tensor& t = place.of.tensor->view;
    i64 n[4] = {1, 1, 1, 1};
    std::copy(t.size, t.size + t.ndim, n);
    for (i64 a = 0; a < n[0]; ++a)
      for (i64 b = 0; b < n[1]; ++b)
        for (i64 c = 0; c < n[2]; ++c)
          for (i64 d = 0; d < n[3]; ++d) {
            i64 dense = 0, address = place.start;
            const i64 index[4] = {a, b, c, d};
            for (int i = 0; i < t.ndim; ++i)
              dense += index[i] * t.stride[i], address += index[i] * place.stride[i];
            f(static_cast<std::byte*>(t.data) + dense * place.element, address);
          }
  }

  Attention& x_;
  const Buffer& memory_;
  std::vector<unsigned char> windows_;  // what they should hold
  std::vector<Place> places_;
};

}  // namespace tilewise::test
