#include <sstream>

#include "plan/decision.h"

namespace tilewise::plan {
namespace {

void describe(std::ostream& s, const CpuChoice& c) {
  s << "backend    CPU, " << c.isa << ", " << c.threads << (c.threads == 1 ? " thread" : " threads") << "\n";
  s << "strategy   "
    << (c.strategy == CpuStrategy::tiles ? "tiles of queries, each task a block of one head"
                                         : "decode: tasks are chunks of keys, merged in a fixed order")
    << "\n";
}

void describe(std::ostream& s, const CudaChoice& c) {
  s << "backend    CUDA, " << c.kernels.size() << " kernels\n";
}

}  // namespace

std::string explain(const Problem& p, const Decision& d, size_t workspace_bytes) {
  std::ostringstream s;
  s << "problem    " << (p.pass == TW_FORWARD ? "forward" : "backward") << " " << name_of(p.dtype) << "  B "
    << p.B << "  Sq " << p.Sq << "  Sk " << p.Sk << "  H " << p.H << "  Hk " << p.Hk << "  D " << p.D
    << "  Dv " << p.Dv << (p.packed ? "  packed" : "") << "\n";
  s << "algorithm  " << d.algorithm << "\n";
  std::visit([&](const auto& c) { describe(s, c); }, d.choice);
  s << "workspace  " << workspace_bytes << " bytes\n";
  for (const std::string& r : d.reasons) s << "because    " << r << "\n";
  for (const Rejected& r : d.rejected) s << "not        " << r.candidate << ": " << r.reason << "\n";
  return s.str();
}

}  // namespace tilewise::plan
