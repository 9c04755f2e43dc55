#include "cli/verify.h"

#include <cstdio>

#include "core/problem.h"
#include "oracle/accuracy.h"
#include "oracle/oracle.h"

namespace tilewise::cli {
namespace {

constexpr double kRowBudget = 2e9;  // multiply-adds of the oracle: a few seconds

bool print(const Problem& p, const std::vector<oracle::Verdict>& verdicts) {
  std::printf("%-6s %14s %14s   %14s %14s   %s\n", "check", "max error", "rms error", "naive max",
              "naive rms", "against the fp64 oracle");
  for (const oracle::Verdict& v : verdicts)
    std::printf("%-6s %14.3e %14.3e   %14.3e %14.3e   %s\n", v.what.c_str(), v.ours.max, v.ours.rms,
                v.naive.max, v.naive.rms, v.pass ? "ok" : v.message.c_str());
  std::printf("naive: standard attention in %s; the rule allows %d times its error\n", name_of(p.dtype),
              int(p.pass == TW_FORWARD ? oracle::kForwardFactor : oracle::kBackwardFactor));
  return oracle::all_pass(verdicts);
}

}  // namespace

bool verify(const tw_attention& a, tw_pass pass) {
  const Problem p = make_problem(a, pass);
  const double per_row = double(p.Sk) * double(p.D + p.Dv);
  if (pass == TW_BACKWARD) {
    const double work = 3 * per_row * double(p.total_q) * double(p.H);
    if (work > 10 * kRowBudget) std::fprintf(stderr, "The fp64 oracle will take about %.0f s\n", work / 3e8);
    return print(p, oracle::judge_backward(p));
  }
  std::vector<oracle::Row> rows = oracle::all_rows(p);
  const size_t all = rows.size();
  if (double(all) * per_row > kRowBudget) {
    rows = oracle::some_rows(p, size_t(std::max(64.0, kRowBudget / per_row)), 1);
    std::printf("checking %zu of %zu rows, drawn at random\n", rows.size(), all);
  }
  return print(p, oracle::judge_forward(p, rows));
}

}  // namespace tilewise::cli
