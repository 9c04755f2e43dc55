// The CPU backward: cuts a problem into parts and runs them on the pool.
#pragma once

#include <memory>

#include "core/execution.h"
#include "plan/cpu.h"

namespace tilewise::cpu {

std::unique_ptr<Execution> make_backward(const Problem& p, const plan::CpuChoice& choice);

}  // namespace tilewise::cpu
