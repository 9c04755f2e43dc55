// A case against the oracle through the C interface, on one algorithm; and the smallest case that still
// fails.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/case.h"

namespace tilewise::test {

struct Outcome {
  std::string failure;  // "" = as the contract demands
  std::string skipped;  // why it could not run
};

// Forward, or forward and backward, judged by the contract's accuracy rule.
Outcome check_attention(Attention& x, const std::string& algorithm);
Outcome check_case(const Case& c, const std::string& algorithm);

// Every algorithm that can be forced here: the usable CPU instruction sets, and those of the GPU where there
// is one.
std::vector<std::string> algorithms();
std::vector<std::string> cpu_algorithms();

// The simplest case found, by halving sizes and dropping features, for which `fails` still holds.
Case shrink(Case c, const std::function<bool(const Case&)>& fails);

}  // namespace tilewise::test
