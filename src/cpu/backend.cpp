#include "cpu/backend.h"

#include <thread>

#include "core/env.h"
#include "core/error.h"

namespace tilewise::cpu {

const plan::CpuMachine& machine() {
  static const plan::CpuMachine m = [] {
    plan::CpuMachine x;
    x.isas = {{"scalar", true, true}};
    x.threads = int(std::thread::hardware_concurrency());
    x.forced_isa = env("TILEWISE_ISA");
    return x;
  }();
  return m;
}

std::unique_ptr<Execution> make_execution(const Problem&, const plan::CpuChoice&) {
  fail(TW_UNSUPPORTED, "the CPU kernels are not built yet");
}

void merge(const Partial&, const Partial&, const Partial&, i64, i64, i64, i64) {
  fail(TW_UNSUPPORTED, "the CPU kernels are not built yet");
}

}  // namespace tilewise::cpu
