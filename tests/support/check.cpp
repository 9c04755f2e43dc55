#include "support/check.h"

#include <algorithm>

#include "core/error.h"
#include "cpu/backend.h"
#include "oracle/accuracy.h"
#include "support/gpu.h"

namespace tilewise::test {
namespace {

// Runs one pass; true when its result can be judged.
bool ran(Attention& x, tw_pass pass, const std::string& algorithm, Outcome& o) {
  const tw_status status = x.run(pass, algorithm);
  const std::string sentence = tw_last_error();
  if (!x.damage.empty())
    o.failure = x.damage;
  else if (status == TW_UNSUPPORTED && is_gpu_algorithm(algorithm))  // the CPU runs everything
    o.skipped = sentence;
  else if (status != TW_OK)
    o.failure = cat(tw_status_name(status), ": ", sentence);
  return status == TW_OK && o.failure.empty();
}

}  // namespace

Outcome check_attention(Attention& x, const std::string& algorithm) {
  Outcome o;
  if (!ran(x, TW_FORWARD, algorithm, o)) return o;
  if (!x.c.backward) {
    const Problem p = make_problem(x.a, TW_FORWARD);
    o.failure = oracle::messages(oracle::judge_forward(p, oracle::all_rows(p)), true);
    return o;
  }
  if (!ran(x, TW_BACKWARD, algorithm, o)) return o;
  o.failure = oracle::messages(oracle::judge_backward(make_problem(x.a, TW_BACKWARD)), true);
  return o;
}

Outcome check_case(const Case& c, const std::string& algorithm) {
  Attention x(c);
  return check_attention(x, algorithm);
}

std::vector<std::string> cpu_algorithms() {
  std::vector<std::string> names;
  for (const plan::CpuIsa& isa : cpu::machine().isas)
    if (isa.usable && !(TILEWISE_TSAN && names.size() == 2)) names.push_back(isa.name);
  return names;
}

std::vector<std::string> algorithms() {
  std::vector<std::string> names = cpu_algorithms();
  for (const std::string& name : gpu_algorithms()) names.push_back(name);
  return names;
}

Case shrink(Case c, const std::function<bool(const Case&)>& fails) {
  const std::vector<std::function<void(Case&)>> steps = {
      [](Case& x) { x.backward = x.dlse = false; },
      [](Case& x) { x.B = 1; },
      [](Case& x) { x.H = x.Hk = 1; },
      [](Case& x) { x.H = x.Hk; },
      [](Case& x) { x.layout = 'c'; },
      [](Case& x) { x.varlen = false; },
      [](Case& x) { x.used_q = false; },
      [](Case& x) { x.used_k = false; },
      [](Case& x) { x.dropout = 0; },
      [](Case& x) { x.bias.clear(); },
      [](Case& x) { x.mask.clear(); },
      [](Case& x) { x.alibi = 0; },
      [](Case& x) { x.sink = false; },
      [](Case& x) { x.softcap = 0; },
      [](Case& x) { x.left = x.right = -1; },
      [](Case& x) { x.causal = false; },
      [](Case& x) { x.top_left = false; },
      [](Case& x) { x.dlse = false; },
      [](Case& x) { x.shift = 0; },
      [](Case& x) { x.amplitude = 1; },
      [](Case& x) { x.scale = 0; },
      [](Case& x) { x.threads = 1; },
      [](Case& x) { x.dtype = TW_FP32; },
      [](Case& x) { x.Sq /= 2; },
      [](Case& x) { x.Sk /= 2; },
      [](Case& x) { x.D = std::max<i64>(x.D / 2, 1); },
      [](Case& x) { x.Dv = std::max<i64>(x.Dv / 2, 1); },
      [](Case& x) { x.Sq = std::max<i64>(x.Sq - 1, 0); },
      [](Case& x) { x.Sk = std::max<i64>(x.Sk - 1, 0); },
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& step : steps) {
      Case simpler = c;
      step(simpler);
      if (to_string(simpler) != to_string(c) && fails(simpler)) {
        c = simpler;
        changed = true;
      }
    }
  }
  return c;
}

}  // namespace tilewise::test
