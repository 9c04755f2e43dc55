// A problem with random tensors, for the verbs that need no files.
#pragma once

#include "cli/io/tensor.h"
#include "cli/options.h"

namespace tilewise::cli {

struct Sample {
  HostTensor q, k, v, out, lse, dout, dq, dk, dv;
  tw_attention attention;

  // Normally distributed elements, the same for the same seed. Outputs are touched, so that timing finds
  // their pages there.
  Sample(const Shape& shape, tw_pass pass, const tw_options& options, uint64_t seed = 1);
};

// Key-query pairs that take part: what a mask leaves of batch * heads * Sq * Sk.
double visible_pairs(const Shape& shape, const tw_options& options);

// Multiply-adds counted as two, exponentials not counted: 2 (D + Dv) per pair forward, 2.5 times that
// backward.
double forward_flops(const Shape& shape, const tw_options& options);

}  // namespace tilewise::cli
