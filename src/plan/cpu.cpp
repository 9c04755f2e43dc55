#include "plan/cpu.h"

#include <algorithm>

#include "core/error.h"
#include "plan/decision.h"

namespace tilewise::plan {
namespace {

std::string usable_names(const CpuMachine& m) {
  std::string names;
  for (const CpuIsa& isa : m.isas)
    if (isa.usable) names += (names.empty() ? "" : ", ") + isa.name;
  return names;
}

}  // namespace

Decision decide_cpu(const Problem& p, const CpuMachine& m) {
  Decision d;
  CpuChoice choice;
  const std::string forced = p.algorithm ? p.algorithm : m.forced_isa;
  const char* by = p.algorithm ? "algorithm" : "TILEWISE_ISA";
  if (!forced.empty()) {
    auto it = std::find_if(m.isas.begin(), m.isas.end(), [&](const CpuIsa& i) { return i.name == forced; });
    if (it == m.isas.end())
      invalid(by, ": '", forced,
              "' is no instruction set of the CPU backend; usable here: ", usable_names(m));
    if (!it->usable)
      fail(TW_UNSUPPORTED, by, ": '", forced,
           it->built ? "' is not supported by this processor" : "' is not in this build",
           "; usable here: ", usable_names(m));
  }
  for (auto it = m.isas.rbegin(); it != m.isas.rend(); ++it) {  // best first
    if (choice.isa.empty() && it->usable && (forced.empty() || it->name == forced)) {
      choice.isa = it->name;
      d.reasons.push_back(forced.empty() ? it->name + " is the best instruction set here"
                                         : cat("forced by ", by));
    } else if (!it->built) {
      d.rejected.push_back({it->name, "not in this build"});
    } else if (!it->usable) {
      d.rejected.push_back({it->name, "this processor does not have it"});
    } else {
      d.rejected.push_back(
          {it->name, forced.empty() ? "slower than " + choice.isa : cat(by, " asks for ", forced)});
    }
  }
  choice.threads = p.threads ? p.threads : m.threads;
  d.algorithm = choice.isa;
  d.choice = choice;
  return d;
}

}  // namespace tilewise::plan
