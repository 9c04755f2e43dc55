#include "plan/cuda.h"

#include "core/error.h"
#include "plan/decision.h"

namespace tilewise::plan {

Decision decide_cuda(const Problem&, const CudaMachine& m) {
  fail(TW_UNSUPPORTED, "CUDA tensors: ", m.unavailable, "; CPU tensors work");
}

}  // namespace tilewise::plan
