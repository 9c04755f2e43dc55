// The planner's answer: which kernel runs a problem, with what configuration, and why. `explain` prints
// exactly this object, and the backend executes exactly this object.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "core/problem.h"
#include "plan/cpu.h"
#include "plan/cuda.h"

namespace tilewise::plan {

struct Rejected {
  std::string candidate, reason;
};

struct Decision {
  std::string algorithm;  // "avx512", "fa2", "wgmma", ...: the name that forces it
  std::variant<CpuChoice, CudaChoice> choice;
  std::vector<std::string> reasons;  // why this one
  std::vector<Rejected> rejected;    // and why not the others
};

Decision decide_cpu(const Problem& p, const CpuMachine& machine);
Decision decide_cuda(const Problem& p, const CudaMachine& machine);

// The decision in words, one fact a line.
std::string explain(const Problem& p, const Decision& d, size_t workspace_bytes);

}  // namespace tilewise::plan
