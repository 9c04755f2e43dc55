// Clearing the output rows that no sequence covers, before or after the kernels that write the others.
#pragma once

#include <vector>

#include "cuda/launch/execution.h"
#include "kernels/common/uncovered.h"

namespace tilewise::cuda {

// Outputs of a pass that may have uncovered rows, in a fixed order: out | dq, dk, dv. Empty rows of problems
// without lengths need no clearing, and there the list is empty.
std::vector<common::UncoveredParams> uncovered_outputs(const Problem& p);

// One launch for each of them.
std::vector<KernelUse> uncovered_uses(const Problem& p);

}  // namespace tilewise::cuda
