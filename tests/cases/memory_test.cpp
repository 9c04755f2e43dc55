// Strides and layouts, arguments that contradict each other, caches, and company.
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "cases/cases.h"
#include "cuda/backend.h"
#include "oracle/accuracy.h"

namespace tilewise::test {
namespace {

class Memory : public Cases {};

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

// Problems that reach far along each dimension in turn.
class FarOffsets : public Cases {
 protected:
  template <class Buffer>
  void check_all(const Buffer& memory, const std::string& algorithm) {
    const std::string sizes = "bf16 bwd B=3 Sq=5 Sk=5 H=4 Hk=2 D=8 Dv=8 dlse ";
    const std::vector<Length> full(3, {5, 5, 5, 5}), packed = {{1, 1, 1, 1}, {0, 0, 0, 0}, {2, 2, 2, 2}};
    for (int far = 0; far < 4; ++far)
      check(memory, algorithm, sizes, full, far),
          check(memory, algorithm, sizes + "causal varlen", packed, far),
          check(memory, algorithm, sizes + "bias=bhij:fp32 mask=bhij", full, far);
  }

 private:
  template <class Buffer>
  void check(const Buffer& memory, const std::string& algorithm, const std::string& line,
             const std::vector<Length>& lengths, int far) {
    SCOPED_TRACE(cat(line, " on ", algorithm, ", far along dimension ", far));
    Attention x(parse_case(line), lengths);
    Spread<Buffer> spread(x, memory, far);
    if (!run(x, TW_FORWARD, algorithm)) return;
    const bool backward = run(x, TW_BACKWARD, algorithm);
    EXPECT_EQ(spread.collect(backward), "");
    const Problem p = make_problem(x.a, TW_FORWARD);
    EXPECT_EQ(oracle::messages(oracle::judge_forward(p, oracle::all_rows(p)), true), "");
    if (!backward) return;
    EXPECT_EQ(oracle::messages(oracle::judge_backward(make_problem(x.a, TW_BACKWARD)), true), "");
  }
};

TEST_F(FarOffsets, C22_OffsetsBeyond32Bits) {
  const HostBuffer memory(size_t(Spread<HostBuffer>::kBytes));
  for (const std::string& algorithm : cpu_algorithms()) check_all(memory, algorithm);
}

TEST_F(FarOffsets, C22_OffsetsBeyond32BitsOnAGpu) {
  if (gpu_algorithms().empty()) GTEST_SKIP() << "needs a GPU: " << cuda::machine(0).unavailable;
  cuda::DeviceBuffer memory;
  try {
    memory = cuda::DeviceBuffer(0, size_t(Spread<cuda::DeviceBuffer>::kBytes));
  } catch (const Error& e) {
    GTEST_SKIP() << e.what();
  }
  for (const std::string& algorithm : gpu_algorithms()) check_all(memory, algorithm);
}

// Gradients in layouts unlike those of their tensors.
TEST_F(Memory, C23_GradientLayoutsAreTheirOwn) {
  for (char one : std::string("ct2pnok"))
    expect("fp16 bwd B=2 Sq=51 Sk=51 H=4 Hk=2 D=64 Dv=64", [&](Attention& x) {
      x.dq = Tensor(TW_FP16, {2, 51, 4, 64}, one);
      x.dk = Tensor(TW_FP16, {2, 51, 2, 64}, one == 'c' ? 't' : 'c');
      x.dv = Tensor(TW_FP16, {2, 51, 2, 64}, one == '2' ? 'n' : '2');
      x.bind();
    });
}

TEST_F(Memory, C25_StridedInputsAndDout) {
  for (char layout : std::string("ct2pnokez"))
    for (const char* sizes : {"B=1 Sq=5 Sk=5 H=2 Hk=2 D=8 Dv=8", "B=2 Sq=32 Sk=32 H=4 Hk=1 D=128 Dv=128"})
      for (int which = 0; which < 5; ++which)
        expect(cat("bf16 bwd ", sizes, " causal"), [&](Attention& x) {
          Tensor* const tensors[] = {&x.q, &x.k, &x.v, &x.out, &x.dout};
          Tensor& old = *tensors[which];
          if (which == 3 && (layout == 'e' || layout == 'z')) return;  // outputs need memory of their own
          const i64* n = old.view.size;
          Tensor t(TW_BF16, {n[0], n[1], n[2], n[3]}, layout);
          t.fill_storage(std::nan(""));
          t.copy_elements(old);
          old = std::move(t);
          x.bind();
        });
}

TEST_F(Memory, C27_ContradictionsAreRefusedBeforeAnyAccess) {
  auto refused = [](const std::string& line, void (*change)(Attention&)) {
    Attention x(parse_case(line));
    change(x);
    EXPECT_EQ(x.run(TW_FORWARD, ""), TW_INVALID_ARGUMENT) << line;
    EXPECT_EQ(x.damage, "");
  };
  refused("fp32 fwd B=1 Sq=1 Sk=5 H=3 Hk=3 D=8 Dv=8", [](Attention& x) { x.a.v.size[1] = 6; });
  refused("fp32 fwd B=1 Sq=1 Sk=5 H=3 Hk=3 D=8 Dv=8", [](Attention& x) { x.a.v.size[1] = 4000000; });
  refused("fp32 fwd B=1 Sq=4 Sk=4 H=3 Hk=3 D=8 Dv=8",
          [](Attention& x) { x.a.k.size[2] = x.a.v.size[2] = 2; });
  refused("fp32 fwd B=1 Sq=4 Sk=1 H=2 Hk=2 D=8 Dv=8 mask=11ij", [](Attention& x) { x.a.mask.size[3] = 20; });
  // A mask and causal together are both applied.
  for (const std::string& line : both_passes("fp32 PASS B=2 Sq=8 Sk=8 H=4 Hk=4 D=16 Dv=16 causal mask=bhij"))
    expect(line);
}

TEST_F(Memory, C28_LengthsBeyondTheCacheAreRefused) {
  Attention x(parse_case("fp16 fwd B=2 Sq=2 Sk=16 H=2 Hk=2 D=8 Dv=8 used=k"));
  x.used_k.set(18, 1);
  EXPECT_EQ(x.run(TW_FORWARD, ""), TW_INVALID_ARGUMENT);
  EXPECT_EQ(x.damage, "");
  const std::vector<Length> full = {{2, 16, 2, 16}, {2, 16, 2, 16}};
  expect("fp16 fwd B=2 Sq=2 Sk=16 H=32 Hk=32 D=128 Dv=128 causal used=k", full, no_change);
}

// One sequence alone and in batches of 2 to 33, in caches of once, twice and seven times its length.
TEST_F(Memory, C30_SameQueryDifferentCompany) {
  for (const std::string& algorithm : algorithms())
    for (const char* dtype : {"fp32", "bf16"})
      for (i64 sq : {1, 20}) {
        constexpr i64 kUsed = 150;
        std::vector<std::byte> first;
        for (i64 batch : {1, 2, 33})
          for (i64 capacity : {1, 2, 7}) {
            if (batch == 33 && capacity > 1) continue;
            std::vector<Length> lengths(size_t(batch), {sq, kUsed * capacity, sq, kUsed});
            for (size_t b = 1; b < lengths.size(); ++b) lengths[b].sk = i64(b * 37) % (kUsed * capacity + 1);
            Attention x(parse_case(cat(dtype, " fwd B=", batch, " Sq=", sq, " Sk=", kUsed * capacity,
                                       " H=4 Hk=2 D=32 Dv=32 used=k invariant")),
                        lengths);
            if (!run(x, TW_FORWARD, algorithm)) continue;
            std::vector<std::byte> bytes = x.out.bytes();
            bytes.resize(bytes.size() / size_t(batch));
            if (first.empty()) first = bytes;
            EXPECT_EQ(bytes, first) << algorithm << " " << dtype << " batch " << batch << " capacity "
                                    << capacity;
          }
      }
}

}  // namespace
}  // namespace tilewise::test
