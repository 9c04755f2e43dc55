// Strides and layouts, arguments that contradict each other, caches, and company.
#include <sys/mman.h>

#include <cmath>
#include <cstring>
#include <memory>

#include "cases/cases.h"

namespace tilewise::test {
namespace {

class Memory : public Cases {};

// A tensor spread over a huge anonymous mapping: only the touched pages cost memory.
class Spread {
 public:
  Spread(tw_tensor& view, Tensor& tensor, const std::vector<i64>& stride) : view_(view), tensor_(tensor) {
    i64 last = 0;
    for (int i = 0; i < view.ndim; ++i) last += (view.size[i] - 1) * stride[size_t(i)];
    size_ = size_t(last + 1) * size_of(tw_dtype(view.dtype));
    base_ = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) return;
    view.data = base_;
    std::copy(stride.begin(), stride.end(), view.stride);
    copy();
  }
  Spread(const Spread&) = delete;
  ~Spread() { munmap(base_, size_); }
  bool mapped() const { return base_ != MAP_FAILED; }

 private:
  void copy() {
    i64 n[4] = {1, 1, 1, 1};
    std::copy(view_.size, view_.size + view_.ndim, n);
    const size_t bytes = size_of(tw_dtype(view_.dtype));
    const std::vector<std::byte> dense = tensor_.bytes();
    const i64* s = view_.stride;
    size_t index = 0;
    for (i64 a = 0; a < n[0]; ++a)
      for (i64 b = 0; b < n[1]; ++b)
        for (i64 c = 0; c < n[2]; ++c)
          for (i64 d = 0; d < n[3]; ++d, ++index)
            std::memcpy(static_cast<char*>(base_) + size_t(a * s[0] + b * s[1] + c * s[2] + d * s[3]) * bytes,
                        &dense[index * bytes], bytes);
  }
  tw_tensor& view_;
  Tensor& tensor_;
  void* base_;
  size_t size_;
};

TEST_F(Memory, C22_OffsetsBeyond32Bits) {
  constexpr i64 kHuge = (i64{1} << 30) + 8;
  for (const std::string& line :
       both_passes("bf16 PASS B=3 Sq=5 Sk=6 H=2 Hk=1 D=8 Dv=8 bias=bhij:fp32 mask=bhij"))
    expect(line, [&](Attention& x) {
      static std::vector<std::unique_ptr<Spread>> spread;  // lives until the next problem is built
      spread.clear();
      auto add = [&](tw_tensor& view, Tensor& tensor, std::vector<i64> stride) {
        if (tensor) spread.push_back(std::make_unique<Spread>(view, tensor, stride));
      };
      add(x.a.q, x.q, {kHuge, 16, 8, 1});
      add(x.a.k, x.k, {kHuge, 8, 8, 1});
      add(x.a.v, x.v, {8, kHuge, 8, 1});
      add(x.a.out, x.out, {kHuge, 16, 8, 1});
      add(x.a.lse, x.lse, {kHuge / 2, 8, 1});
      add(x.a.bias, x.bias, {60, 30, kHuge / 4, 1});
      add(x.a.mask, x.mask, {2 * kHuge, 30, 6, 1});
      if (x.c.backward) {
        add(x.a.dout, x.dout, {kHuge, 16, 8, 1});
        add(x.a.dq, x.dq, {16, kHuge, 8, 1});
        add(x.a.dk, x.dk, {kHuge, 8, 8, 1});
        add(x.a.dv, x.dv, {kHuge, 8, 8, 1});
        add(x.a.dbias, x.dbias, {60, 30, kHuge / 4, 1});
      }
      for (const auto& s : spread) ASSERT_TRUE(s->mapped());
    });
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
