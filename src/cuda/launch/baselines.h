// What the baselines launch and where their intermediate results lie, for the launcher and for the emulator's
// tests.
#pragma once

#include <vector>

#include "core/problem.h"
#include "kernels/baseline/unfused.h"

namespace tilewise::cuda {

// One launch of the unfused attention: a product or a pass over the rows of S.
struct UnfusedLaunch {
  Kernel kernel;
  baseline::ProductParams product;
  baseline::SoftmaxParams rows;

  bool is_product() const { return kernel != Kernel::softmax && kernel != Kernel::softmax_backward; }
  u64 blocks() const;
};

// Those that have something to do; `s` holds S and P, `d` dP and dS, score_bytes() each.
std::vector<UnfusedLaunch> unfused_launches(const AttentionParams& a, bool backward, void* s, void* d);
size_t score_bytes(const Problem& p);

// Offsets in the workspace of FlashAttention 1.
struct Fa1Workspace {
  size_t delta, lse_log2, accum, bytes;
};
Fa1Workspace fa1_workspace(const Problem& p, const Config& c);

}  // namespace tilewise::cuda
