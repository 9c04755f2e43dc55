// The kernel sources inside the library. cmake/EmbedKernels.cmake writes the definition at build time.
#pragma once

#include <span>

#include "cuda/driver/nvrtc.h"

namespace tilewise::cuda {

// Every file of kernels/, sorted by path.
std::span<const SourceFile> kernel_bundle();

}  // namespace tilewise::cuda
