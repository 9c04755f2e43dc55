// Masks by position and by value: alignment, windows, dead rows, whole blocks masked.
#include <cmath>

#include "cases/cases.h"

namespace tilewise::test {
namespace {

class Masks : public Cases {};

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST_F(Masks, C08_CausalIsBottomRight) {
  for (const char* sizes : {"Sq=2 Sk=5 D=8 Dv=8", "Sq=5 Sk=2 D=8 Dv=8", "Sq=512 Sk=256 D=16 Dv=16",
                            "Sq=3 Sk=128 D=128 Dv=128", "Sq=1 Sk=200 D=64 Dv=64"})
    for (const char* alignment : {"", " topleft"})
      for (const std::string& line : both_passes(cat("fp16 PASS B=1 H=1 Hk=1 ", sizes, " causal", alignment)))
        expect(line);
  for (const std::string& algorithm : algorithms()) {
    Attention x(parse_case("fp32 fwd B=1 Sq=5 Sk=2 H=1 Hk=1 D=8 Dv=8 causal"));
    if (!run(x, TW_FORWARD, algorithm)) continue;
    for (i64 i = 0; i < 5; ++i) {
      EXPECT_EQ(x.lse.get(0, 0, i) == -kInf, i < 3) << i;
      for (i64 d = 0; d < 8; ++d) EXPECT_EQ(x.out.get(0, i, 0, d) == 0, i < 3);
    }
  }
}

TEST_F(Masks, C08_OneCausalQuerySeesAll) {
  for (const std::string& algorithm : algorithms()) {
    Attention x(parse_case("fp16 fwd B=2 Sq=1 Sk=100 H=2 Hk=1 D=64 Dv=64 causal")),
        y(parse_case("fp16 fwd B=2 Sq=1 Sk=100 H=2 Hk=1 D=64 Dv=64"));
    if (!run(x, TW_FORWARD, algorithm) || !run(y, TW_FORWARD, algorithm)) continue;
    EXPECT_EQ(x.out.bytes(), y.out.bytes());
  }
}

TEST_F(Masks, C09_BackwardUsesTheForwardsMask) {
  for (const char* sizes : {"Sq=4 Sk=7", "Sq=7 Sk=4", "Sq=5 Sk=5"})
    for (int flags = 0; flags < 16; ++flags)
      expect(cat("fp32 bwd B=1 H=4 Hk=2 D=6 Dv=5 dlse ", sizes, flags & 1 ? " causal" : "",
                 flags & 2 ? " window=2,1" : "", flags & 4 ? " bias=bhij:fp32" : "",
                 flags & 8 ? " softcap=2" : ""));
}

TEST_F(Masks, C10_EveryWindow) {
  const std::pair<i64, i64> sizes[] = {{5, 9}, {9, 5}, {7, 7}};
  for (auto [sq, sk] : sizes) {
    const i64 longest = std::max(sq, sk);
    const i64 windows[] = {-1, 0, 1, 3, longest - 1, longest, INT32_MAX, INT64_MAX};
    for (i64 left : windows)
      for (i64 right : windows)
        for (const char* alignment : {"", " topleft"})
          expect(cat("fp32 fwd B=1 H=1 Hk=1 D=4 Dv=3 Sq=", sq, " Sk=", sk, " window=", left, ",", right,
                     alignment));
  }
}

TEST_F(Masks, C10_IdentitiesAreBitwise) {
  for (const std::string& algorithm : algorithms())
    for (const char* sizes : {"Sq=5 Sk=90", "Sq=90 Sk=5", "Sq=70 Sk=70"}) {
      auto bytes = [&](const std::string& flags) {
        Attention x(parse_case(cat("fp32 fwd B=1 H=2 Hk=1 D=16 Dv=16 ", sizes, " ", flags)));
        return run(x, TW_FORWARD, algorithm) ? x.out.bytes() : std::vector<std::byte>();
      };
      EXPECT_EQ(bytes("causal"), bytes("window=-1,0")) << sizes;
      EXPECT_EQ(bytes("causal"), bytes("causal window=-1,50")) << sizes;
      EXPECT_EQ(bytes(""), bytes("window=-1,9223372036854775807")) << sizes;
      EXPECT_EQ(bytes("causal"), bytes("window=9223372036854775807,0")) << sizes;
    }
}

TEST_F(Masks, C12_DeadRowsOfABooleanMask) {
  for (const std::string& line : both_passes("fp32 PASS B=1 Sq=8 Sk=8 H=1 Hk=1 D=8 Dv=8 mask=11ij layout=t"))
    expect(line, [](Attention& x) {
      for (i64 i = 0; i < 8; ++i)
        for (i64 j = 0; j < 8; ++j) x.mask.set(i < 4 && j < 4, 0, 0, i, j);
      x.fill();
    });
  for (const std::string& line :
       both_passes("fp32 PASS B=1 Sq=6 Sk=10 H=2 Hk=2 D=8 Dv=8 mask=bhij scale=0.125"))
    expect(line, [](Attention& x) {
      for (i64 h = 0; h < 2; ++h)
        for (i64 j = 0; j < 10; ++j) x.mask.set(0, 0, h, 5, j);
      x.fill();
    });
  for (const std::string& line : both_passes("bf16 PASS B=1 Sq=5 Sk=5 H=3 Hk=3 D=8 Dv=8 mask=h11"))
    expect(line, [](Attention& x) {
      for (i64 h = 0; h < 3; ++h) x.mask.set(h != 1, h, 0, 0);
      x.fill();
    });
}

// The same mask as booleans and as 0 / -inf in a bias.
TEST_F(Masks, C12_BooleanAndFloatMasksAgree) {
  for (const std::string& algorithm : algorithms())
    for (bool backward : {false, true}) {
      const char* pass = backward ? "bwd" : "fwd";
      Attention x(parse_case(cat("fp32 ", pass, " B=2 Sq=40 Sk=70 H=2 Hk=1 D=16 Dv=16 mask=bhij"))),
          y(parse_case(cat("fp32 ", pass, " B=2 Sq=40 Sk=70 H=2 Hk=1 D=16 Dv=16 bias=bhij:fp32")));
      for (i64 b = 0; b < 2; ++b)
        for (i64 h = 0; h < 2; ++h)
          for (i64 i = 0; i < 40; ++i)
            for (i64 j = 0; j < 70; ++j) {
              if (i == 7) x.mask.set(0, b, h, i, j);
              y.bias.set(x.mask.get(b, h, i, j) != 0 ? 0 : -kInf, b, h, i, j);
            }
      x.q.copy_elements(y.q), x.k.copy_elements(y.k), x.v.copy_elements(y.v);  // without poison
      if (backward) x.dout.copy_elements(y.dout);
      if (!run(x, TW_FORWARD, algorithm) || !run(y, TW_FORWARD, algorithm)) continue;
      EXPECT_EQ(x.out.values(), y.out.values()) << algorithm;
      EXPECT_EQ(x.lse.values(), y.lse.values()) << algorithm;
      if (!backward || !run(x, TW_BACKWARD, algorithm) || !run(y, TW_BACKWARD, algorithm)) continue;
      EXPECT_EQ(x.dq.values(), y.dq.values()) << algorithm;
      EXPECT_EQ(x.dk.values(), y.dk.values()) << algorithm;
      EXPECT_EQ(x.dv.values(), y.dv.values()) << algorithm;
    }
}

// Whole key blocks of -inf: leading, trailing, alternating.
TEST_F(Masks, C14_BlocksOfMinusInfinity) {
  const std::function<bool(i64, i64)> masked[] = {
      [](i64 i, i64 j) { return j > i || j <= i - 10; },
      [](i64 i, i64 j) { return j < 400 || (i % 3 == 0 && j > 500); },
      [](i64, i64 j) { return j >= 150; },
      [](i64 i, i64 j) { return (j / 64 + i / 64) % 2 == 0; },
  };
  for (const auto& m : masked)
    for (bool ones : {true, false})
      for (const std::string& line :
           both_passes("fp32 PASS B=1 Sq=300 Sk=600 H=1 Hk=1 D=2 Dv=2 bias=11ij:fp32"))
        expect(line, [&](Attention& x) {
          for (i64 i = 0; i < 300; ++i)
            for (i64 j = 0; j < 600; ++j) x.bias.set(m(2 * i, j) ? -kInf : 0, 0, 0, i, j);
          if (ones)
            for (Tensor* t : {&x.q, &x.k, &x.v}) t->fill_elements(1);
        });
}

}  // namespace
}  // namespace tilewise::test
