#include "cpu/backend.h"

#include <sched.h>

#include <cstdlib>
#include <thread>

#include "core/env.h"
#include "core/error.h"
#include "cpu/backward.h"
#include "cpu/decode.h"
#include "cpu/forward.h"
#include "cpu/isa.h"

namespace tilewise::cpu {
namespace {

constexpr int kMaxThreads = 4096;

int usable_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
  const int n = int(std::thread::hardware_concurrency());
  return n > 0 ? n : 1;
}

int default_threads() {
  const std::string asked = env("TILEWISE_THREADS");
  if (asked.empty()) return usable_cores();
  char* end = nullptr;
  const long n = std::strtol(asked.c_str(), &end, 10);
  if (*end || n < 1 || n > kMaxThreads)
    invalid("TILEWISE_THREADS: '", asked, "'; must be 1 to ", kMaxThreads, " (unset: all ", usable_cores(),
            " cores)");
  return int(n);
}

}  // namespace

const plan::CpuMachine& machine() {
  static const plan::CpuMachine m = [] {
    plan::CpuMachine x;
    for (const char* name : {"scalar", "neon", "avx2", "avx512", "avx512_bf16"})
      x.isas.push_back({name, find_kernels(name) != nullptr, isa_usable(name)});
    x.threads = default_threads();
    x.forced_isa = env("TILEWISE_ISA");
    return x;
  }();
  return m;
}

std::unique_ptr<Execution> make_execution(const Problem& p, const plan::CpuChoice& choice) {
  if (p.pass == TW_BACKWARD) return make_backward(p, choice);
  return choice.strategy == plan::CpuStrategy::decode ? make_decode(p, choice) : make_forward(p, choice);
}

}  // namespace tilewise::cpu
