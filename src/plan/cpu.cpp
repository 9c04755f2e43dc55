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

// Why a forward problem is not one for the decode strategy; "" when it is. Only the shape decides, never the
// number of threads: results must not depend on it.
std::string decode_refusal(const Problem& p) {
  if (p.packed && p.batch_invariant)
    return "batch_invariant with packed sequences: the longest query length depends on the batch";
  if (p.Sq > kDecodeQueries)
    return cat(p.Sq,
               p.packed ? " queries at most in a sequence (max_seqlen_q), it is for up to "
                        : " queries, it is for up to ",
               kDecodeQueries);
  if (p.Sq * p.group() > kDecodeRows)
    return cat(p.Sq * p.group(), " queries share a key/value head, it is for up to ", kDecodeRows);
  // A backward recomputes the scores in the tiles' order of summation; where scores are large, out and lse
  // must agree with it. Long sequences of few queries are inference.
  if (p.lse && !p.batch_invariant && p.Sk < kDecodeKeys)
    return cat("lse of ", p.Sk, " keys may serve a backward, which sums as tiles do; with lse it is for ",
               kDecodeKeys, " keys or more");
  if (p.bias || p.mask || p.dropout_p > 0) return "it has no bias, boolean mask or dropout";
  return "";
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
  if (p.pass == TW_FORWARD) {
    const std::string refusal = decode_refusal(p);
    if (refusal.empty()) {
      choice.strategy = CpuStrategy::decode;
      d.reasons.push_back(cat("decode: at most ", p.Sq * p.group(), " queries share a key/value head"));
    } else {
      d.rejected.push_back({"decode", refusal});
    }
  }
  d.algorithm = choice.isa;
  d.choice = choice;
  return d;
}

}  // namespace tilewise::plan
