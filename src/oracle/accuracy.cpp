#include "oracle/accuracy.h"

#include <algorithm>
#include <cmath>
#include <iomanip>

#include "core/error.h"

namespace tilewise::oracle {
namespace {

double eps_of(tw_dtype dtype) { return dtype == TW_FP32 ? 1e-6 : 1e-5; }

constexpr double kUnderflow =
    0x1p-120;  // a little above fp32's smallest normal number: nothing is asked of less

double unit_roundoff(tw_dtype dtype) {
  return dtype == TW_FP32 ? 0x1p-24 : dtype == TW_FP16 ? 0x1p-11 : 0x1p-8;
}

// The error to expect when every term is rounded to the dtype.
ErrorMeasure rounding_of(tw_dtype dtype, const std::vector<Terms>& terms) {
  double largest = 0, sum = 0, n = 0;
  for (const Terms& t : terms) {
    if (!std::isfinite(t.squares)) continue;
    largest = std::max(largest, t.squares);
    sum += t.squares;
    ++n;
  }
  const double u = unit_roundoff(dtype);
  return {u * std::sqrt(largest), n ? u * std::sqrt(sum / n) : 0};
}

bool same_special(double a, double b) { return (std::isnan(a) && std::isnan(b)) || a == b; }

// Errors at the coordinates where the exact result is finite; *worst gets the place of the largest.
ErrorMeasure measure(const std::vector<double>& x, const std::vector<double>& exact, size_t* worst) {
  ErrorMeasure e;
  double squares = 0;
  size_t n = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!std::isfinite(exact[i]) || !std::isfinite(x[i])) continue;
    const double error = std::abs(x[i] - exact[i]);
    if (error > e.max) {
      e.max = error;
      if (worst) *worst = i;
    }
    squares += error * error;
    ++n;
  }
  e.rms = n ? std::sqrt(squares / double(n)) : 0;
  return e;
}

// "(b 0, s 3, h 1, d 7)" from the names of the axes, their sizes and a dense index.
std::string describe(const std::vector<std::pair<const char*, i64>>& axes, size_t index) {
  std::string s;
  for (auto it = axes.rbegin(); it != axes.rend(); ++it) {
    const size_t n = size_t(std::max<i64>(it->second, 1));
    s = cat(it->first, " ", index % n, s.empty() ? "" : ", ", s);
    index /= n;
  }
  return cat("(", s, ")");
}

}  // namespace

Verdict judge(const std::string& what, tw_dtype dtype, double factor, const std::vector<double>& ours,
              const std::vector<double>& exact, const std::vector<double>& naive, const Place& place,
              const std::vector<Terms>& terms) {
  Verdict v;
  v.what = what;
  if (ours.size() != exact.size() || naive.size() != exact.size())
    fail(TW_INTERNAL, "judge: ", what, " has ", ours.size(), ", ", exact.size(), " and ", naive.size(),
         " elements");
  double largest = 0;
  for (double x : exact)
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  for (size_t i = 0; i < ours.size(); ++i)
    if ((!std::isfinite(ours[i]) || !std::isfinite(exact[i])) && !same_special(ours[i], exact[i])) {
      v.pass = false;
      v.message = cat(what, ": ", ours[i], " at ", place(i), " where exact arithmetic gives ", exact[i]);
      return v;
    }
  size_t worst = 0;
  v.ours = measure(ours, exact, &worst);
  v.naive = measure(naive, exact, nullptr);
  for (const Terms& t : terms)
    if (std::isfinite(t.sum)) largest = std::max(largest, t.sum);
  const ErrorMeasure rounding = rounding_of(dtype, terms);
  v.naive = {std::max(v.naive.max, rounding.max), std::max(v.naive.rms, rounding.rms)};
  const double eps = eps_of(dtype) * largest + kUnderflow;
  v.allowed = {factor * v.naive.max + eps, factor * v.naive.rms + eps};
  v.pass = v.ours.max <= v.allowed.max && v.ours.rms <= v.allowed.rms;
  std::ostringstream s;
  s << std::setprecision(3) << what << ": error " << v.ours.max << " (allowed " << v.allowed.max << ", naive "
    << v.naive.max << "), rms " << v.ours.rms << " (allowed " << v.allowed.rms << ")";
  if (v.ours.max > 0)
    s << std::setprecision(9) << "; worst " << ours[worst] << " instead of " << exact[worst] << " at "
      << place(worst);
  v.message = s.str();
  return v;
}

std::vector<Verdict> judge_forward(const Problem& p, const std::vector<Row>& rows) {
  const Forward ours = read_forward(p, rows), exact = forward(p, Precision::exact, rows),
                naive = forward(p, Precision::naive, rows);
  auto row_name = [&](size_t r) { return cat("b ", rows[r].b, ", s ", rows[r].s, ", h ", rows[r].h); };
  std::vector<Verdict> verdicts;
  verdicts.push_back(judge("out", p.dtype, kForwardFactor, ours.out, exact.out, naive.out, [&](size_t i) {
    return cat("(", row_name(i / size_t(p.Dv)), ", d ", i % size_t(p.Dv), ")");
  }));
  if (p.lse)
    verdicts.push_back(judge("lse", p.dtype, kForwardFactor, ours.lse, exact.lse, naive.lse,
                             [&](size_t i) { return cat("(", row_name(i), ")"); }));
  return verdicts;
}

std::vector<Verdict> judge_backward(const Problem& p) {
  BackwardTerms terms;
  const Backward ours = read_backward(p), exact = backward(p, Precision::exact, &terms),
                 naive = backward(p, Precision::naive);
  std::vector<Verdict> verdicts;
  auto add = [&](const char* what, std::vector<double> Backward::*x, std::vector<Terms> BackwardTerms::*t,
                 const std::vector<std::pair<const char*, i64>>& axes) {
    verdicts.push_back(judge(
        what, p.dtype, kBackwardFactor, ours.*x, exact.*x, naive.*x,
        [&](size_t i) { return describe(axes, i); }, terms.*t));
  };
  const i64 B = p.packed ? 1 : p.B, Sq = p.packed ? p.total_q : p.Sq, Sk = p.packed ? p.total_k : p.Sk;
  add("dq", &Backward::dq, &BackwardTerms::dq, {{"b", B}, {"s", Sq}, {"h", p.H}, {"d", p.D}});
  add("dk", &Backward::dk, &BackwardTerms::dk, {{"b", B}, {"s", Sk}, {"h", p.Hk}, {"d", p.D}});
  add("dv", &Backward::dv, &BackwardTerms::dv, {{"b", B}, {"s", Sk}, {"h", p.Hk}, {"d", p.Dv}});
  const i64* n = p.dbias.size;
  if (p.dbias)
    add("dbias", &Backward::dbias, &BackwardTerms::dbias,
        {{"b", n[0]}, {"h", n[1]}, {"i", n[2]}, {"j", n[3]}});
  if (p.has_dsink) add("dsink", &Backward::dsink, &BackwardTerms::dsink, {{"h", p.H}});
  return verdicts;
}

bool all_pass(const std::vector<Verdict>& verdicts) {
  return std::all_of(verdicts.begin(), verdicts.end(), [](const Verdict& v) { return v.pass; });
}

std::string messages(const std::vector<Verdict>& verdicts, bool failed_only) {
  std::string s;
  for (const Verdict& v : verdicts)
    if (!v.pass || !failed_only) s += (s.empty() ? "" : "\n") + v.message;
  return s;
}

}  // namespace tilewise::oracle
