#include "cuda/backend.h"

#include "core/error.h"

namespace tilewise::cuda {

const plan::CudaMachine& machine(int) {
  static const plan::CudaMachine none = [] {
    plan::CudaMachine m;
    m.unavailable = "this build has no CUDA backend";
    return m;
  }();
  return none;
}

std::unique_ptr<Execution> make_execution(const Problem&, const plan::CudaChoice&) {
  fail(TW_UNSUPPORTED, machine(0).unavailable);
}

std::string info() { return machine(0).unavailable + "\n"; }

}  // namespace tilewise::cuda
