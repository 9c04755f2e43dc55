// The CPU backend as the C interface sees it.
#pragma once

#include <memory>

#include "core/execution.h"
#include "plan/cpu.h"

namespace tilewise::cpu {

// Instruction sets built and usable, and the cores of this process. Cheap after the first call.
const plan::CpuMachine& machine();

std::unique_ptr<Execution> make_execution(const Problem& p, const plan::CpuChoice& choice);

// Exact merge of two partial results (tw_merge): out and lse views have the same shape (b, s, h, dv).
struct Partial {
  View out;
  RowView lse;
};
void merge(const Partial& a, const Partial& b, const Partial& result, i64 B, i64 S, i64 H, i64 Dv);

}  // namespace tilewise::cpu
