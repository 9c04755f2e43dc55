#include "property/property.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "oracle/accuracy.h"
#include "support/gpu.h"

namespace tilewise::test {
namespace {

// The property's answer, failures inside the library included.
std::string answer(Property property, const Case& c, const std::string& algorithm) {
  try {
    return property(c, algorithm);
  } catch (const Failure& f) {
    return f.what;
  }
}

}  // namespace

Case random_case(std::mt19937_64& random, bool backward) {
  auto pick = [&](i64 low, i64 high) { return low + i64(random() % u64(high - low + 1)); };
  auto chance = [&](int percent) { return pick(0, 99) < percent; };
  auto one_of = [&](auto... options) {
    const std::vector<std::common_type_t<decltype(options)...>> all = {options...};
    return all[random() % all.size()];
  };
  Case c;
  c.seed = random() % 100000;
  c.backward = backward;
  c.dtype = one_of(TW_FP32, TW_FP16, TW_BF16);
  c.B = pick(1, 3);
  c.Sq = one_of(pick(1, 8), pick(1, 70), pick(60, 140));
  c.Sk = one_of(pick(1, 8), pick(1, 70), pick(60, 200));
  c.Hk = pick(1, 3);
  c.H = c.Hk * pick(1, 3);
  c.D = one_of(pick(1, 20), i64(32), i64(64), pick(60, 130));
  c.Dv = chance(70) ? c.D : pick(1, 80);
  c.causal = chance(30);
  c.top_left = chance(25);
  if (chance(25)) c.left = pick(0, 20);
  if (chance(15)) c.right = pick(0, 20);
  if (chance(20)) c.softcap = one_of(1.0, 5.0, 30.0);
  if (chance(20)) c.alibi = int(pick(1, 2));
  if (chance(25))
    c.bias = one_of(std::string("bhij"), std::string("11ij"), std::string("b11j"), std::string("ij"));
  if (!c.bias.empty()) c.bias_dtype = one_of(TW_FP32, c.dtype);
  if (chance(25)) c.mask = one_of(std::string("bhij"), std::string("b11j"), std::string("ij"));
  c.sink = chance(20);
  if (chance(20)) c.dropout = 0.25;
  c.varlen = chance(25);
  c.used_q = chance(15);
  c.used_k = chance(20);
  if (chance(40)) c.layout = 'm';
  c.dlse = backward && chance(50);
  return c;
}

void check_property(const char* name, Property property, int cases, bool backward) {
  std::string skipped;
  if (TILEWISE_SANITIZED) cases = std::max(1, cases / 5);
  for (const std::string& algorithm : algorithms()) {
    std::mt19937_64 random(std::hash<std::string>()(name));
    for (int i = 0; i < cases; ++i) {
      const Case c = random_case(random, backward);
      try {
        const std::string failure = answer(property, c, algorithm);
        if (failure.empty()) continue;
        const Case smallest =
            shrink(c, [&](const Case& x) { return !answer(property, x, algorithm).empty(); });
        ADD_FAILURE() << name << " on " << algorithm << ": " << answer(property, smallest, algorithm)
                      << "\nsmallest failing case: " << to_string(smallest)
                      << "\nfound with: " << to_string(c);
        break;
      } catch (const Skip& s) {
        skipped = s.why;
      }
    }
  }
  if (!skipped.empty()) GTEST_SKIP() << skipped;
}

void run_or_throw(Attention& x, tw_pass pass, const std::string& algorithm) {
  const tw_status status = x.run(pass, algorithm);
  const std::string sentence = tw_last_error();
  if (!x.damage.empty()) throw Failure{x.damage};
  if (status == TW_UNSUPPORTED && is_gpu_algorithm(algorithm)) throw Skip{sentence};
  if (status != TW_OK) throw Failure{cat(tw_status_name(status), ": ", sentence)};
}

void run_all(Attention& x, const std::string& algorithm) {
  run_or_throw(x, TW_FORWARD, algorithm);
  if (x.c.backward) run_or_throw(x, TW_BACKWARD, algorithm);
}

Tolerance tolerance(Attention& x) {
  const Problem forward = make_problem(x.a, TW_FORWARD);
  const std::vector<oracle::Verdict> f = oracle::judge_forward(forward, oracle::all_rows(forward));
  Tolerance t{2 * f[0].allowed.max, 2 * f[1].allowed.max, 0, 0, 0};
  if (x.c.backward) {
    const std::vector<oracle::Verdict> b = oracle::judge_backward(make_problem(x.a, TW_BACKWARD));
    t.dq = 2 * b[0].allowed.max, t.dk = 2 * b[1].allowed.max, t.dv = 2 * b[2].allowed.max;
  }
  return t;
}

bool close(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= tolerance;
}

}  // namespace tilewise::test
