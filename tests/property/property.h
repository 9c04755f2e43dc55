// Properties: statements about two or more runs of the library that need no oracle to be checked. Each takes
// a case, brings it into its own domain, and answers with "" or a sentence. A failing case is shrunk to one
// line.
#pragma once

#include <random>
#include <string>

#include "support/check.h"

namespace tilewise::test {

using Property = std::string (*)(Case c, const std::string& algorithm);

// A random case: small odd sizes, each feature with some chance.
Case random_case(std::mt19937_64& random, bool backward);

// Runs a property on seeded random cases of every algorithm; adds a failure with the smallest failing case.
void check_property(const char* name, Property property, int cases, bool backward = false);

// A pass that must succeed; throws Skip when the kernel is not there and Failure otherwise.
struct Skip {
  std::string why;
};
struct Failure {
  std::string what;
};
void run_or_throw(Attention& x, tw_pass pass, const std::string& algorithm);

// Forward, then the backward where the case has one.
void run_all(Attention& x, const std::string& algorithm);

// How far two correct results of this case may lie apart: twice the accuracy rule of each.
struct Tolerance {
  double out, lse, dq, dk, dv;
};
Tolerance tolerance(Attention& x);

// "" when two numbers agree within a tolerance; NaN and infinities must be the same.
bool close(double a, double b, double tolerance);

}  // namespace tilewise::test
