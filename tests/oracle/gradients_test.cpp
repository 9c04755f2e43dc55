// The oracle's backward against finite differences of its forward, for every element of every input: each
// feature alone, then seeded combinations. The loss is sum(out * dout) + sum(lse * dlse).
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/error.h"
#include "oracle/oracle.h"
#include "support/case.h"

namespace tilewise::test {
namespace {

constexpr char kShape[] = "fp32 bwd B=2 Sq=4 Sk=5 H=4 Hk=2 D=3 Dv=2 dlse";

const char* const kAlone[] = {
    "",
    "causal",
    "causal topleft",
    "window=1,0",
    "window=1,2 topleft",
    "scale=0.9",
    "softcap=1.5",
    "alibi=h",
    "alibi=bh",
    "bias=bhij:fp32",
    "bias=11ij:fp32",
    "bias=b11j:fp32",
    "bias=h11:fp32",
    "mask=bhij",
    "mask=b11j",
    "sink",
    "causal sink",
    "dropout=0.3",
    "varlen",
    "used=qk",
    "used=k",
    "varlen used=q",
    "layout=m",
    "shift=-90",
    "amplitude=2",
};

double loss(Attention& x) {
  const Problem p = make_problem(x.a, TW_BACKWARD);
  const std::vector<oracle::Row> rows = oracle::all_rows(p);
  const oracle::Forward f = oracle::forward(p, oracle::Precision::exact, rows);
  double sum = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    const auto& [b, s, h] = rows[r];
    if (std::isinf(f.lse[r])) continue;  // no key and no sink: dout and dlse are poison there
    sum += f.lse[r] * double(*p.dlse.at(b, h, s));
    for (i64 d = 0; d < p.Dv; ++d) {
      const double out = f.out[r * size_t(p.Dv) + size_t(d)];
      if (out != 0) sum += out * double(*p.dout.at<float>(b, s, h, d));
    }
  }
  return sum;
}

// Central difference of fourth order. Values are multiples of 2^-10 and the step is 2^-6, so that every
// perturbed value is exact in fp32.
double slope(Attention& x, Tensor& t, const i64 (&at)[4]) {
  constexpr double kStep = 0x1p-6;
  const double centre = t.get(at[0], at[1], at[2], at[3]);
  auto value = [&](int steps) {
    t.set(centre + steps * kStep, at[0], at[1], at[2], at[3]);
    return loss(x);
  };
  const double result = (8 * (value(1) - value(-1)) - (value(2) - value(-2))) / (12 * kStep);
  t.set(centre, at[0], at[1], at[2], at[3]);
  return result;
}

void check_tensor(Attention& x, const char* name, Tensor& t, const std::vector<double>& gradient) {
  if (!t) return;
  i64 n[4] = {1, 1, 1, 1};
  std::copy(t.view.size, t.view.size + t.view.ndim, n);
  double largest = 1;
  for (double g : gradient) largest = std::max(largest, std::abs(g));
  size_t index = 0;
  for (i64 a = 0; a < n[0]; ++a)
    for (i64 b = 0; b < n[1]; ++b)
      for (i64 c = 0; c < n[2]; ++c)
        for (i64 d = 0; d < n[3]; ++d, ++index) {
          const double g = gradient[index];
          const i64 at[4] = {a, b, c, d};
          if (!std::isfinite(t.get(a, b, c, d))) {  // takes no part
            ASSERT_EQ(g, 0) << name << " " << a << " " << b << " " << c << " " << d;
            continue;
          }
          const double difference = slope(x, t, at);
          ASSERT_NEAR(g, difference, 2e-6 * largest)
              << name << " (" << a << ", " << b << ", " << c << ", " << d << ") of " << to_string(x.c);
        }
}

void check_gradients(const std::string& line) {
  Attention x(parse_case(line));
  for (Tensor* t : {&x.q, &x.k, &x.v, &x.bias, &x.sink, &x.dout, &x.dlse}) {
    if (!*t) continue;
    i64 n[4] = {1, 1, 1, 1};
    std::copy(t->view.size, t->view.size + t->view.ndim, n);
    for (i64 a = 0; a < n[0]; ++a)
      for (i64 b = 0; b < n[1]; ++b)
        for (i64 c = 0; c < n[2]; ++c)
          for (i64 d = 0; d < n[3]; ++d) t->set(std::round(t->get(a, b, c, d) * 1024) / 1024, a, b, c, d);
  }
  const oracle::Backward g = oracle::backward(make_problem(x.a, TW_BACKWARD), oracle::Precision::exact);
  check_tensor(x, "q", x.q, g.dq);
  check_tensor(x, "k", x.k, g.dk);
  check_tensor(x, "v", x.v, g.dv);
  check_tensor(x, "bias", x.bias, g.dbias);
  check_tensor(x, "sink", x.sink, g.dsink);
}

TEST(OracleGradients, EveryFeatureAlone) {
  for (u64 seed = 1; seed <= 3; ++seed)
    for (const char* feature : kAlone) check_gradients(cat(kShape, " ", feature, " seed=", seed));
}

TEST(OracleGradients, SeededCombinations) {
  std::mt19937_64 random(7);
  const std::vector<std::vector<const char*>> choices = {
      {"", "causal", "causal topleft", "window=1,0", "window=0,2 topleft"},
      {"", "softcap=1.5", "softcap=20"},
      {"", "alibi=h", "alibi=bh"},
      {"", "bias=bhij:fp32", "bias=11ij:fp32", "bias=b11j:fp32", "bias=h11:fp32"},
      {"", "mask=bhij", "mask=b11j", "mask=ij"},
      {"", "sink"},
      {"", "dropout=0.3"},
      {"", "varlen", "used=qk", "varlen used=qk"},
      {"", "scale=0.9"},
  };
  for (int trial = 0; trial < 60; ++trial) {
    std::string line = cat(kShape, " seed=", trial + 100);
    for (const auto& options : choices) line += cat(" ", options[random() % options.size()]);
    check_gradients(line);
  }
}

}  // namespace
}  // namespace tilewise::test
