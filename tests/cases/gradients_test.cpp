// Gradients that others lost: of lse, of bias alone; and dropout's mask, forward and backward.
#include <cmath>

#include "cases/cases.h"
#include "kernels/shared/philox.h"

namespace tilewise::test {
namespace {

class Gradients : public Cases {};

TEST_F(Gradients, C31_LossOfLseAlone) {
  for (const char* flags : {"", "causal", "softcap=3", "sink", "varlen", "mask=bhij"})
    expect(cat("fp32 bwd B=2 Sq=40 Sk=33 H=4 Hk=2 D=16 Dv=16 dlse ", flags),
           [](Attention& x) { x.dout.fill_elements(0); });
  for (const std::string& algorithm : algorithms()) {
    Attention x(parse_case("bf16 bwd B=1 Sq=20 Sk=33 H=2 Hk=1 D=16 Dv=16 dlse"));
    x.dout.fill_elements(0);
    if (!run(x, TW_FORWARD, algorithm) || !run(x, TW_BACKWARD, algorithm)) continue;
    double dq = 0, dv = 0;
    for (double g : x.dq.values()) dq += std::abs(g);
    for (double g : x.dv.values()) dv += std::abs(g);
    EXPECT_GT(dq, 0.1);
    EXPECT_EQ(dv, 0);
  }
}

TEST_F(Gradients, C33_BiasGradientOfEveryBroadcast) {
  for (const char* axes : {"bhij", "11ij", "b11j", "h11", "1h1j", "bh11", "b1i1", "ij", "j", "1111"})
    for (const char* type : {"fp32", "bf16"})
      expect(cat("bf16 bwd B=2 Sq=33 Sk=40 H=4 Hk=2 D=16 Dv=16 causal bias=", axes, ":", type,
                 " seed=", type[0] == 'f' ? 1 : 2));
}

// V = I: out is the matrix of dropped probabilities, and shows the mask.
TEST_F(Gradients, C34_DropoutMask) {
  constexpr i64 kN = 128;
  constexpr double kP = 0.3;
  auto kept = [&](const std::string& line, u64 offset, const std::string& algorithm,
                  std::vector<bool>& mask) {
    Attention x(parse_case(line));
    x.a.options.offset = offset;
    x.q.fill_elements(0);
    for (i64 b = 0; b < x.c.B; ++b)
      for (i64 h = 0; h < x.c.H; ++h)
        for (i64 j = 0; j < kN; ++j)
          for (i64 d = 0; d < kN; ++d) x.set(x.v, j == d, b, x.k_row(b, j), h, d);
    if (!run(x, TW_FORWARD, algorithm)) return false;
    for (i64 b = 0; b < x.c.B; ++b)
      for (i64 h = 0; h < x.c.H; ++h)
        for (i64 i = 0; i < kN; ++i)
          for (i64 j = 0; j < kN; ++j) {
            const double p = x.get(x.out, b, x.q_row(b, i), h, j);
            mask.push_back(p != 0);
            EXPECT_NEAR(p, p != 0 ? 1 / (1 - kP) / kN : 0, 1e-6);
          }
    return true;
  };
  const std::string dense =
      cat("fp32 fwd B=2 Sq=", kN, " Sk=", kN, " H=2 Hk=2 D=8 Dv=", kN, " dropout=0.3 seed=5");
  for (const std::string& algorithm : algorithms()) {
    std::vector<bool> one, again, other, packed;
    if (!kept(dense, 1, algorithm, one)) continue;
    kept(dense, 1, algorithm, again);
    kept(dense, 2, algorithm, other);
    EXPECT_EQ(one, again);
    EXPECT_NE(one, other);
    const double n = double(one.size()), count = double(std::count(one.begin(), one.end(), true));
    EXPECT_NEAR(count, (1 - kP) * n, 5 * std::sqrt(kP * (1 - kP) * n));
    // The contract's keying, element by element.
    const DropoutKey key = dropout_key(5, 1);
    size_t x = 0;
    for (u32 b = 0; b < 2; ++b)
      for (u32 h = 0; h < 2; ++h)
        for (u32 i = 0; i < kN; ++i)
          for (u32 j = 0; j < kN; ++j, ++x)
            ASSERT_EQ(one[x], dropout_bits(key, b, h, i, j) >= dropout_threshold(kP))
                << b << h << " " << i << " " << j;
  }
}

// Dense and packed draw the same mask; the backward draws the forward's.
TEST_F(Gradients, C34_SameMaskPackedAndInTheBackward) {
  for (const std::string& algorithm : algorithms()) {
    const std::vector<Length> full = {{50, 70, 50, 70}, {50, 70, 50, 70}};
    Attention x(parse_case("fp32 fwd B=2 Sq=50 Sk=70 H=2 Hk=1 D=16 Dv=16 dropout=0.4"), full),
        y(parse_case("fp32 fwd B=2 Sq=50 Sk=70 H=2 Hk=1 D=16 Dv=16 dropout=0.4 varlen"), full);
    if (!run(x, TW_FORWARD, algorithm) || !run(y, TW_FORWARD, algorithm)) continue;
    for (i64 b = 0; b < 2; ++b)
      for (i64 i = 0; i < 50; ++i)
        for (i64 h = 0; h < 2; ++h)
          for (i64 d = 0; d < 16; ++d)
            ASSERT_NEAR(x.get(x.out, b, i, h, d), y.get(y.out, b, y.q_row(b, i), h, d), 1e-5);
  }
  for (double p : {0.1, 0.5, 0.9})
    for (const char* dtype : {"fp32", "bf16"})
      expect(cat(dtype, " bwd B=2 Sq=50 Sk=70 H=2 Hk=1 D=16 Dv=16 causal dropout=", p));
}

}  // namespace
}  // namespace tilewise::test
