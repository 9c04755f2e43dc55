#include "core/error.h"
#include "plan/decision.h"

namespace tilewise::plan {
namespace {

std::string describe(const CpuChoice& c) {
  return cat("backend    CPU, ", c.isa, ", ", c.threads, c.threads == 1 ? " thread\n" : " threads\n",
             "strategy   ",
             c.strategy == CpuStrategy::tiles ? "tiles of queries, each task a block of one head"
                                              : "decode: tasks are chunks of keys, merged in a fixed order",
             "\n");
}

std::string describe(const CudaChoice& c) { return cat("backend    CUDA, ", c.kernels.size(), " kernels\n"); }

}  // namespace

std::string explain(const Problem& p, const Decision& d, size_t workspace_bytes) {
  std::string s = cat("problem    ", p.pass == TW_FORWARD ? "forward" : "backward", " ", name_of(p.dtype),
                      "  B ", p.B, "  Sq ", p.Sq, "  Sk ", p.Sk, "  H ", p.H, "  Hk ", p.Hk, "  D ", p.D,
                      "  Dv ", p.Dv, p.packed ? "  packed" : "", "\nalgorithm  ", d.algorithm, "\n");
  s += std::visit([](const auto& c) { return describe(c); }, d.choice);
  s += cat("workspace  ", workspace_bytes, " bytes\n");
  for (const std::string& r : d.reasons) s += cat("because    ", r, "\n");
  for (const Rejected& r : d.rejected) s += cat("not        ", r.candidate, ": ", r.reason, "\n");
  return s;
}

}  // namespace tilewise::plan
