// The backward's kernels under the emulator, by the number of their configuration: apart from the test that
// judges them, because device and host code have types of the same name.
#pragma once

#include <string>

#include "emulator.h"
#include "kernels/shared/config.h"
#include "kernels/shared/params.h"

namespace tilewise {

// The sizes that the launch sequence depends on: what the workspace pointers of `p` must hold.
struct BackwardWorkspace {
  i64 dq_accum, statistics;  // floats; statistics: of each of lse_log2 and delta
};
BackwardWorkspace backward_workspace(const AttentionParams& p, const Config& config);

// The kernel that `config` (of the list in backward_kernels.cpp) names, all launches in order.
void emulate_backward(const AttentionParams& p, const Config& config, emulator::Order order);

}  // namespace tilewise
