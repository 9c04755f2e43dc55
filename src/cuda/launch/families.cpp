#include "cuda/launch/families.h"

#include "core/error.h"

namespace tilewise::cuda {

std::unique_ptr<Execution> make_family_execution(const Problem& p, const plan::CudaChoice& choice) {
  if (choice.family == Family::mma)
    return p.pass == TW_FORWARD ? make_mma_forward(p, choice) : make_mma_backward(p, choice);
  if (choice.family == Family::wgmma && p.pass == TW_FORWARD) return make_wgmma_forward(p, choice);
  if (choice.family == Family::unfused) return make_unfused(p, choice);
  if (choice.family == Family::fa1) return make_fa1(p, choice);
  fail(TW_INTERNAL, "no launcher for kernel family ", int(choice.family));
}

}  // namespace tilewise::cuda
