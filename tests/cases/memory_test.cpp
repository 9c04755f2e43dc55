// Strides and layouts, arguments that contradict each other, caches, and company.
#include <cmath>

#include "cases/cases.h"
#include "cuda/backend.h"
#include "oracle/accuracy.h"
#include "support/spread.h"

namespace tilewise::test {
namespace {

class Memory : public Cases {};

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
