// Runs a problem of host tensors on the GPU: every storage goes there whole, gaps and guards included, and
// comes back whole.
#pragma once

#include <string>
#include <vector>

#include "cuda/driver/memory.h"
#include "support/tensor.h"

namespace tilewise::test {

// Names of CUDA algorithms that this machine can run; empty without a GPU.
std::vector<std::string> gpu_algorithms();
bool is_gpu_algorithm(const std::string& name);

class OnGpu {
 public:
  // Rewrites the tensors of `a`, whose memory is that of `tensors`, to copies on device 0.
  OnGpu(tw_attention& a, const std::vector<Tensor*>& tensors);
  // Runs it with a workspace that starts as the given bytes, and brings tensors and workspace back.
  tw_status run(const tw_attention& a, tw_pass pass, std::vector<unsigned char>& workspace, size_t begin,
                size_t bytes);

 private:
  std::vector<Tensor*> tensors_;
  std::vector<cuda::DeviceBuffer> copies_;
};

}  // namespace tilewise::test
