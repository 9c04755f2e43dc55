#include "cuda/launch/families.h"

#include "core/error.h"

namespace tilewise::cuda {

std::unique_ptr<Execution> make_family_execution(const Problem&, const plan::CudaChoice&) {
  fail(TW_UNSUPPORTED, "CUDA tensors: this build has no attention kernels for them yet; CPU tensors work");
}

}  // namespace tilewise::cuda
