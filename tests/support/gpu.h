// Runs a problem of host tensors on the GPU: every storage goes there whole, gaps and guards included, and
// comes back whole.
#pragma once

#include <functional>
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
  // Rewrites the tensors of `a`, whose memory is that of `tensors`, to copies on a device.
  OnGpu(tw_attention& a, const std::vector<Tensor*>& tensors, int device = 0);
  // Runs it with a workspace that starts as the given bytes, and brings tensors and workspace back.
  tw_status run(const tw_attention& a, tw_pass pass, std::vector<unsigned char>& workspace, size_t begin,
                size_t bytes);

  // The copies anew: from tensors of the same layouts, from another's copies on a stream, or NaN throughout.
  void upload(const std::vector<Tensor*>& from);
  void copy(const OnGpu& from, void* stream);
  void poison();
  void download(const std::vector<Tensor*>& to) const;

 private:
  int device_;
  std::vector<Tensor*> tensors_;
  std::vector<cuda::DeviceBuffer> copies_;
};

// A stream that does not wait for the default one. The library makes none: it takes the caller's.
class Stream {
 public:
  explicit Stream(int device = 0);
  ~Stream();
  Stream(const Stream&) = delete;
  void* handle() const { return handle_; }
  void hold(int milliseconds);  // what is put on it from now on waits so long
  void wait() const;

  // Everything that `work` puts on the stream becomes a graph, and does not run.
  void capture(const std::function<void()>& work);
  void replay() const;

 private:
  int device_;
  void *handle_ = nullptr, *graph_ = nullptr, *executable_ = nullptr;
};

// The context that is current on this thread, or null.
void* current_context();

}  // namespace tilewise::test
