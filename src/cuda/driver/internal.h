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

// While it lives, this thread may do what another thread's stream capture would forbid, though it is harmless
// there: load modules, make graphs.
class RelaxedCapture {
 public:
  RelaxedCapture() { libcuda().cuThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { libcuda().cuThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  abi::CaptureMode mode_ = abi::kCaptureRelaxed;
};

// A context that may be gone by now, by its number. True when it is there for certain: it is the thread's
// current one, or the device's primary one, which is then held. Never throws.
class LivingContext {
 public:
  LivingContext(int ordinal, uint64_t number);
  ~LivingContext();
  LivingContext(const LivingContext&) = delete;
  LivingContext& operator=(const LivingContext&) = delete;
  explicit operator bool() const { return lives_; }

 private:
  int ordinal_;
  bool held_ = false, lives_ = false;
};

template <class... Args>
void check(abi::CUresult result, const Args&... what) {
  if (result != abi::kSuccess)
    fail(result == abi::kErrorOutOfMemory ? TW_OUT_OF_MEMORY : TW_DEVICE_ERROR, what..., ": ",
         describe(result));
}

}  // namespace tilewise::cuda
