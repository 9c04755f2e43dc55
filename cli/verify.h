// Results held against the oracle, and the table that says so.
#pragma once

#include "tilewise/tilewise.h"

namespace tilewise::cli {

// Compares what the outputs hold with the fp64 oracle (all rows, or as many as a few seconds allow) and
// prints each tensor's error beside the naive implementation's in the same dtype. False when the accuracy
// rule is broken.
bool verify(const tw_attention& a, tw_pass pass);

}  // namespace tilewise::cli
