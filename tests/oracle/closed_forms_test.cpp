// The oracle where the answer is known without it.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/error.h"
#include "oracle/accuracy.h"
#include "support/case.h"

namespace tilewise::test {
namespace {

using oracle::Precision;

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Known {
  explicit Known(const std::string& line) : x(parse_case(line)) {}
  Attention x;
  oracle::Forward forward(Precision precision = Precision::exact) {
    x.bind();
    const Problem p = make_problem(x.a, TW_FORWARD);
    return oracle::forward(p, precision, oracle::all_rows(p));
  }
};

// q = 0: every visible key has the same score.
TEST(OracleClosedForm, UniformScoresGiveTheMean) {
  for (const char* flags : {"", " causal", " causal topleft", " window=1,1"}) {
    Known r(cat("fp32 fwd B=1 Sq=6 Sk=9 H=1 Hk=1 D=4 Dv=2", flags));
    r.x.q.fill_elements(0);
    const oracle::Forward f = r.forward();
    for (i64 i = 0; i < 6; ++i) {
      double sum[2] = {}, n = 0;
      for (i64 j = 0; j < 9; ++j)
        if (r.x.visible(0, 0, i, j)) {
          for (int d : {0, 1}) sum[d] += r.x.v.get(0, j, 0, d);
          ++n;
        }
      EXPECT_NEAR(f.lse[size_t(i)], std::log(n), 1e-14) << flags;
      for (int d : {0, 1}) EXPECT_NEAR(f.out[size_t(2 * i + d)], sum[d] / n, 1e-14) << flags;
    }
  }
}

TEST(OracleClosedForm, HugeScoresPickTheLargest) {
  Known r("fp32 fwd B=1 Sq=3 Sk=5 H=1 Hk=1 D=1 Dv=1 scale=1");
  r.x.q.fill_elements(1);
  for (i64 j = 0; j < 5; ++j) r.x.k.set(double(j == 2 ? 90000 : -90000 * (j + 1)), 0, j, 0, 0);
  const oracle::Forward f = r.forward();
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(f.out[i], r.x.v.get(0, 2, 0, 0));
    EXPECT_EQ(f.lse[i], 90000);
  }
}

TEST(OracleClosedForm, SinkTakesItsShareOfTheDenominator) {
  Known r("fp32 fwd B=1 Sq=1 Sk=8 H=2 Hk=2 D=4 Dv=1 sink");
  r.x.q.fill_elements(0);
  r.x.sink.set(0, 0);                   // as one more key without a value
  r.x.sink.set(double(-HUGE_VALF), 1);  // no sink at all
  const oracle::Forward f = r.forward();
  double mean[2] = {};
  for (i64 h : {0, 1})
    for (i64 j = 0; j < 8; ++j) mean[h] += r.x.v.get(0, j, h, 0) / 8;
  EXPECT_NEAR(f.out[0], mean[0] * 8 / 9, 1e-14);
  EXPECT_NEAR(f.lse[0], std::log(9.0), 1e-14);
  EXPECT_NEAR(f.out[1], mean[1], 1e-14);
  EXPECT_NEAR(f.lse[1], std::log(8.0), 1e-14);
}

TEST(OracleClosedForm, EmptyRows) {
  Known plain("fp32 fwd B=1 Sq=4 Sk=2 H=1 Hk=1 D=3 Dv=1 causal");
  EXPECT_EQ(plain.forward().out[0], 0);
  EXPECT_EQ(plain.forward().lse[0], -kInf);
  Known sink("fp32 fwd B=1 Sq=4 Sk=2 H=1 Hk=1 D=3 Dv=1 causal sink");
  EXPECT_EQ(sink.forward().out[0], 0);
  EXPECT_EQ(sink.forward().lse[0], sink.x.sink.get(0));
  Known no_keys("fp32 fwd B=1 Sq=2 Sk=0 H=1 Hk=1 D=3 Dv=1");
  EXPECT_EQ(no_keys.forward().lse[1], -kInf);
  Known uncovered("fp32 fwd B=1 Sq=2 Sk=3 H=1 Hk=1 D=3 Dv=1 varlen");
  EXPECT_EQ(uncovered.forward().lse[3], -kInf);
  EXPECT_EQ(uncovered.forward().out[3], 0);
}

TEST(OracleClosedForm, BiasOfMinusInfinityIsAnEmptyRow) {
  Known r("fp32 fwd B=1 Sq=2 Sk=3 H=1 Hk=1 D=3 Dv=1 bias=ij:fp32");
  for (i64 j = 0; j < 3; ++j) r.x.bias.set(-HUGE_VAL, 0, j);
  const oracle::Forward f = r.forward();
  EXPECT_EQ(f.out[0], 0);
  EXPECT_EQ(f.lse[0], -kInf);
  EXPECT_TRUE(std::isfinite(f.lse[1]));
}

// A single key: lse is its score, in the contract's order of operations.
TEST(OracleClosedForm, ScoreInTheContractsOrder) {
  Known r("fp32 fwd B=1 Sq=1 Sk=1 H=1 Hk=1 D=1 Dv=1 scale=0.5 softcap=3 bias=ij:fp32 alibi=h");
  r.x.q.set(4, 0, 0, 0, 0);
  r.x.k.set(5, 0, 0, 0, 0);
  r.x.bias.set(0.25, 0, 0);
  EXPECT_NEAR(r.forward().lse[0], 3 * std::tanh(10 / 3.0) + 0.25, 1e-14);
}

TEST(OracleClosedForm, AlibiCountsFromTheAlignedDiagonal) {
  for (const char* flags : {"", " causal topleft"}) {
    Known r(cat("fp32 fwd B=1 Sq=2 Sk=5 H=1 Hk=1 D=2 Dv=1 alibi=h", flags));
    r.x.q.fill_elements(0);
    r.x.alibi.set(0.5, 0);
    const oracle::Forward f = r.forward();
    for (i64 i : {0, 1}) {
      double sum = 0;
      for (i64 j = 0; j < 5; ++j)
        if (r.x.visible(0, 0, i, j)) sum += std::exp(-0.5 * std::abs(double(i + 3 - j)));
      EXPECT_NEAR(f.lse[size_t(i)], std::log(sum), 1e-14) << flags;
    }
  }
}

// V = I makes out the matrix of dropped probabilities.
TEST(OracleClosedForm, DropoutScalesWhatItKeeps) {
  Known r("fp32 fwd B=1 Sq=16 Sk=16 H=1 Hk=1 D=2 Dv=16 dropout=0.25 seed=11");
  r.x.q.fill_elements(0);
  for (i64 j = 0; j < 16; ++j)
    for (i64 d = 0; d < 16; ++d) r.x.v.set(j == d, 0, j, 0, d);
  const oracle::Forward f = r.forward();
  const DropoutKey key = dropout_key(11, 33);
  for (u32 i = 0; i < 16; ++i)
    for (u32 j = 0; j < 16; ++j) {
      const bool kept = dropout_bits(key, 0, 0, i, j) >= dropout_threshold(0.25);
      EXPECT_NEAR(f.out[16 * i + j], kept ? 1 / 16.0 / 0.75 : 0, 1e-14);
      EXPECT_NEAR(f.lse[i], std::log(16.0), 1e-14);
    }
}

TEST(OracleClosedForm, NanShowsWhereItIsSeenAndNowhereElse) {
  Known r("fp32 fwd B=1 Sq=4 Sk=4 H=1 Hk=1 D=2 Dv=2 causal");
  r.x.v.set(std::nan(""), 0, 2, 0, 1);
  const oracle::Forward f = r.forward();
  for (i64 i = 0; i < 4; ++i)
    for (i64 d : {0, 1}) EXPECT_EQ(std::isnan(f.out[size_t(2 * i + d)]), i >= 2 && d == 1) << i << " " << d;
}

// The naive oracle is a rounded version of the exact one, by about the unit roundoff of its dtype.
TEST(OracleNaive, ErrsByItsDtype) {
  const std::pair<const char*, double> unit[] = {{"fp32", 0x1p-24}, {"fp16", 0x1p-11}, {"bf16", 0x1p-8}};
  for (auto [dtype, u] : unit) {
    Known r(cat(dtype, " fwd B=1 Sq=40 Sk=70 H=2 Hk=1 D=32 Dv=32 causal"));
    const oracle::Forward exact = r.forward(), naive = r.forward(Precision::naive);
    double worst = 0;
    for (size_t i = 0; i < exact.out.size(); ++i)
      worst = std::max(worst, std::abs(exact.out[i] - naive.out[i]));
    EXPECT_GT(worst, u / 8) << dtype;
    EXPECT_LT(worst, u * 32) << dtype;
  }
}

// The judge: what it must accept and what it must catch.
TEST(OracleJudge, AcceptsTheNaiveErrorAndCatchesMore) {
  const std::vector<double> exact = {1, -2, 3, 0.5}, naive = {1.001, -2, 3, 0.5};
  auto verdict = [&](std::vector<double> ours) {
    return oracle::judge("out", TW_BF16, 2, ours, exact, naive, [](size_t i) { return cat("[", i, "]"); });
  };
  EXPECT_TRUE(verdict(exact).pass);
  EXPECT_TRUE(verdict({1, -2, 3.0019, 0.5}).pass);
  EXPECT_FALSE(verdict({1, -2, 3.0021, 0.5}).pass);
  EXPECT_NE(verdict({1, -2, 3.0021, 0.5}).message.find("[2]"), std::string::npos);
  EXPECT_FALSE(verdict({1.0019, -2.0019, 3.0019, 0.5019}).pass);  // each in the limit, the norm is not
  EXPECT_FALSE(verdict({1, std::nan(""), 3, 0.5}).pass);
  EXPECT_FALSE(verdict({1, -2, kInf, 0.5}).pass);
}

TEST(OracleJudge, SpecialValuesMustStandWhereTheyBelong) {
  const std::vector<double> exact = {-kInf, std::nan(""), 1}, naive = exact;
  auto pass = [&](std::vector<double> ours) {
    return oracle::judge("lse", TW_FP32, 2, ours, exact, naive, [](size_t) { return std::string(); }).pass;
  };
  EXPECT_TRUE(pass({-kInf, std::nan(""), 1}));
  EXPECT_FALSE(pass({kInf, std::nan(""), 1}));
  EXPECT_FALSE(pass({-kInf, 0, 1}));
  EXPECT_FALSE(pass({-1e30, std::nan(""), 1}));
}

}  // namespace
}  // namespace tilewise::test
