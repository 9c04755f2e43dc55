// One function per kernel family and pass: from a planned problem to what runs it.
#pragma once

#include <memory>

#include "core/execution.h"
#include "plan/cuda.h"

namespace tilewise::cuda {

std::unique_ptr<Execution> make_family_execution(const Problem& p, const plan::CudaChoice& choice);

std::unique_ptr<Execution> make_mma_forward(const Problem& p, const plan::CudaChoice& choice);
std::unique_ptr<Execution> make_wgmma_forward(const Problem& p, const plan::CudaChoice& choice);
std::unique_ptr<Execution> make_mma_backward(const Problem& p, const plan::CudaChoice& choice);
std::unique_ptr<Execution> make_unfused(const Problem& p, const plan::CudaChoice& choice);
std::unique_ptr<Execution> make_fa1(const Problem& p, const plan::CudaChoice& choice);

}  // namespace tilewise::cuda
