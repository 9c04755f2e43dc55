// Empty, tiny and tail shapes; packed sequences.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "cases/cases.h"

namespace tilewise::test {
namespace {

class Shapes : public Cases {};

TEST_F(Shapes, C01_ZeroSizes) {
  for (const char* dtype : {"fp32", "bf16"})
    for (const char* sizes : {"B=0 Sq=3 Sk=4 H=2 Hk=2", "B=2 Sq=0 Sk=4 H=2 Hk=1", "B=2 Sq=3 Sk=0 H=2 Hk=1",
                              "B=2 Sq=0 Sk=0 H=2 Hk=1", "B=2 Sq=3 Sk=4 H=0 Hk=0", "B=0 Sq=0 Sk=0 H=0 Hk=0"})
      for (const char* flags : {"", "causal", "window=1,1 softcap=2", "varlen", "sink", "used=qk"})
        for (const std::string& line : both_passes(cat(dtype, " PASS ", sizes, " D=8 Dv=8 ", flags)))
          expect(line);
}

TEST_F(Shapes, C01_ReportedShapes) {
  expect("fp16 fwd B=0 Sq=3952 Sk=16 H=10 Hk=10 D=64 Dv=64");
  Attention x(parse_case("fp16 fwd B=7 Sq=0 Sk=7 H=9 Hk=9 D=7 Dv=7 causal layout=t"));
  x.a.k.size[2] = x.a.v.size[2] = 7;  // 9 query heads, 7 key heads: a refusal, not a division by zero
  EXPECT_EQ(x.run(TW_FORWARD, ""), TW_INVALID_ARGUMENT);
}

// A copy of a contiguous tensor that ends where readable memory ends.
class AtTheEdge {
 public:
  AtTheEdge(tw_tensor& view, const Tensor& tensor) {
    const std::vector<std::byte> bytes = tensor.bytes();
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    size_ = (bytes.size() + page - 1) / page * page + page;
    base_ =
        static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(base_ + size_ - page, page, PROT_NONE);
    char* start = base_ + size_ - page - bytes.size();
    std::memset(base_, 0xFF, size_t(start - base_));
    std::memcpy(start, bytes.data(), bytes.size());
    view.data = start;
  }
  AtTheEdge(const AtTheEdge&) = delete;
  ~AtTheEdge() { munmap(base_, size_); }

 private:
  char* base_;
  size_t size_;
};

// A page of the host's memory can be forbidden. What a GPU reads past a tensor is a guard of NaNs (OnGpu).
TEST_F(Shapes, C02_TailsAtTheEdgeOfMemory) {
  auto check = [&](const std::string& line) {
    for (const std::string& algorithm : cpu_algorithms()) {
      Attention x(parse_case(line));
      const AtTheEdge q(x.a.q, x.q), k(x.a.k, x.k), v(x.a.v, x.v), out(x.a.out, x.out), lse(x.a.lse, x.lse);
      judge(line, algorithm, check_attention(x, algorithm));
    }
  };
  for (i64 n = 1; n <= 300; n += n < 140 ? 1 : 7) {
    const char* dtype[] = {"bf16", "fp32", "fp16"};
    check(cat(dtype[n % 3], " fwd B=1 Sq=1 Sk=", n, " H=1 Hk=1 D=32 Dv=32 seed=", n));
    check(cat(dtype[n % 3], " fwd B=1 Sq=", n, " Sk=", (n * 7) % 50 + 1, " H=1 Hk=1 D=", n % 70 + 1,
              " Dv=", n % 33 + 1, " seed=", n));
  }
  for (int sq : {1, 3, 8})
    for (int d : {64, 96, 128})
      for (int sk : {38, 39, 70})
        check(cat("fp16 fwd B=2 Sq=", sq, " Sk=", sk, " H=2 Hk=1 D=", d, " Dv=", d));
}

TEST_F(Shapes, C04_PackedDecodeWithEmptySequences) {
  auto longest = [](i64 q, i64 k) {
    return [=](Attention& x) { x.a.max_seqlen_q = q, x.a.max_seqlen_k = k; };
  };
  for (const std::string& line :
       both_passes("bf16 PASS B=3 Sq=1 Sk=5 H=9 Hk=3 D=64 Dv=64 causal scale=1 varlen"))
    expect(line, {{1, 3, 1, 3}, {0, 0, 0, 0}, {1, 5, 1, 5}}, longest(1, 5));
  for (const std::string& line :
       both_passes("bf16 PASS B=4 Sq=1 Sk=1 H=21 Hk=7 D=120 Dv=120 scale=10.954451 varlen"))
    expect(line, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {1, 1, 1, 1}}, longest(1, 1));
}

TEST_F(Shapes, C06_UncoveredTokens) {
  for (const std::string& line :
       both_passes("bf16 PASS B=3 Sq=512 Sk=512 H=2 Hk=2 D=64 Dv=64 causal varlen seed=3"))
    expect(line, {{144, 144, 144, 144}, {288, 288, 288, 288}, {512, 512, 512, 512}}, no_change);
}

TEST_F(Shapes, C07_ManySequencesBatchesAndHeads) {
  const std::vector<Length> ones(70000, {1, 1, 1, 1});
  expect("fp16 fwd B=70000 Sq=1 Sk=1 H=1 Hk=1 D=4 Dv=4 varlen", ones, no_change);
  expect("fp16 fwd B=70000 Sq=1 Sk=2 H=1 Hk=1 D=2 Dv=2");
  expect("fp32 fwd B=1 Sq=1 Sk=2 H=70000 Hk=70000 D=2 Dv=2");
}

TEST_F(Shapes, C24_UnusualHeadDims) {
  for (int d : {1, 3, 8, 40, 72, 80, 96, 120, 136, 144, 160, 176, 192, 224, 256})
    for (const std::string& line : both_passes(
             cat(d % 3 ? "bf16" : "fp16", " PASS B=1 Sq=97 Sk=97 H=1 Hk=1 D=", d, " Dv=", d, " causal")))
      expect(line);
}

}  // namespace
}  // namespace tilewise::test
