// The contract's accuracy rule, in one place: the error of a result against the exact one may be a small
// multiple of the error that a naive implementation in the same dtype makes, as the largest error and as a
// norm; NaN and infinities stand exactly where exact arithmetic puts them.
//
// A gradient is a sum of differences that may cancel, to 0 even, and one naive sum may be right by luck. So
// for gradients the naive error counts as at least what rounding each term to the dtype makes of it (a unit
// roundoff of the root of the terms' squares), and eps is relative to the largest sum of terms instead of the
// largest result.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "oracle/oracle.h"

namespace tilewise::oracle {

inline constexpr double kForwardFactor = 2, kBackwardFactor = 3;

// Largest error and root mean square error over the finite coordinates.
struct ErrorMeasure {
  double max = 0, rms = 0;
};

struct Verdict {
  bool pass = true;
  std::string what;          // tensor
  ErrorMeasure ours, naive;  // against exact; naive: at least what rounding its terms makes
  ErrorMeasure allowed;      // factor * naive + eps
  std::string message;       // one line: errors, limits, the worst coordinate
};

// Where an element lies, for messages.
using Place = std::function<std::string(size_t index)>;

Verdict judge(const std::string& what, tw_dtype dtype, double factor, const std::vector<double>& ours,
              const std::vector<double>& exact, const std::vector<double>& naive, const Place& place,
              const std::vector<Terms>& terms = {});

// Judges what out and lse (forward) hold at `rows`.
std::vector<Verdict> judge_forward(const Problem& p, const std::vector<Row>& rows);

// Judges dq, dk, dv and, where asked for, dbias and dsink.
std::vector<Verdict> judge_backward(const Problem& p);

bool all_pass(const std::vector<Verdict>& verdicts);
std::string messages(const std::vector<Verdict>& verdicts, bool failed_only);

}  // namespace tilewise::oracle
