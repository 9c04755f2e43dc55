// Shared by the files of src/cuda/driver: the loaded table and the check of its results.
#pragma once

#include <string>

#include "core/error.h"
#include "cuda/driver/abi.h"

namespace tilewise::cuda {

// Throws driver_state().why_not without a usable driver.
const abi::Libcuda& libcuda();

// "CUDA_ERROR_INVALID_VALUE (1, invalid argument)"
std::string describe(abi::CUresult result);

template <class... Args>
void check(abi::CUresult result, const Args&... what) {
  if (result != abi::kSuccess)
    fail(result == abi::kErrorOutOfMemory ? TW_OUT_OF_MEMORY : TW_DEVICE_ERROR, what..., ": ",
         describe(result));
}

}  // namespace tilewise::cuda
