// The CUDA backend as the C interface sees it. No CUDA type appears here.
#pragma once

#include <memory>
#include <string>

#include "core/execution.h"
#include "kernels/common/combine_splits.h"
#include "plan/cuda.h"

namespace tilewise::cuda {

// The GPU with this ordinal; `unavailable` says why when it cannot be used. Cheap after the first call.
const plan::CudaMachine& machine(int device);

std::unique_ptr<Execution> make_execution(const Problem& p, const plan::CudaChoice& choice);

// Merges two partial results in memory of that GPU on the caller's stream; the result is of type `dtype`.
void merge(const common::CombineParams& p, tw_dtype dtype, int device, void* stream);

// What is there, in words: driver, GPUs, NVRTC.
std::string info();

}  // namespace tilewise::cuda
