// The CPU decode: few queries, many keys. Tasks are chunks of keys, merged in a fixed order.
#pragma once

#include <memory>

#include "core/execution.h"
#include "plan/cpu.h"

namespace tilewise::cpu {

std::unique_ptr<Execution> make_decode(const Problem& p, const plan::CpuChoice& choice);

}  // namespace tilewise::cpu
