// What the mma family launches and where its intermediate results lie, for the launcher and for
// the emulator's tests.
#pragma once

#include <vector>

#include "cuda/launch/execution.h"
#include "kernels/common/bwd_launch.h"

namespace tilewise::cuda {

// Offsets in the caller's workspace, each part 256-byte aligned.
struct MmaWorkspace {
  size_t delta, lse_log2, lse_rest, dq_accum, dbias_accum, spoiled, bytes;
};
MmaWorkspace mma_workspace(const Problem& p, const std::vector<Config>& kernels);

// Everything that the kernels read, with the workspace in its place.
AttentionParams mma_backward_params(const Problem& p, const MmaWorkspace& w, std::byte* workspace);

// Bytes of dbias_accum that atomic additions want to start as zeros.
size_t dbias_zeros(const Problem& p, const std::vector<Config>& kernels);
common::DbiasParams dbias_params(const Problem& p, const std::vector<Config>& kernels, const float* accum);

std::vector<KernelUse> mma_forward_uses(const Problem& p, const Config& c);

// In launch order; backward_dbias takes dbias_params(), the others
// mma_backward_params().
std::vector<KernelUse> mma_backward_uses(const Problem& p, const std::vector<Config>& kernels);

}  // namespace tilewise::cuda
