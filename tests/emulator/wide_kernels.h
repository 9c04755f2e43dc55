// The kernels for wide heads under the emulator, apart from the test that judges them: device and host code
// have types of the same name.
#pragma once

#include "emulator.h"
#include "kernels/common/bwd_launch.h"
#include "kernels/shared/config.h"
#include "kernels/shared/params.h"

namespace tilewise {

// One launch of the planner's; emulator::Error if its config is none of those compiled here.
void emulate_wide(const AttentionParams& p, const common::DbiasParams& dbias, const Config& config,
                  const emulator::Launch& shape);

}  // namespace tilewise
