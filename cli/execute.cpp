#include "cli/execute.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "cli/table.h"
#include "core/dtype.h"
#include "cpu/pool.h"
#include "cuda/driver/memory.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

void execute_on_gpu(const tw_attention& host, tw_pass pass, DeviceName device) {
  tw_attention a = planned(host, pass, device);
  std::vector<cuda::DeviceBuffer> buffers;
  for (const TensorUse& use : tensors_of(pass)) {
    tw_tensor& t = a.*use.tensor;
    if (!t.dtype) continue;
    const size_t bytes = tensor_bytes(t);
    buffers.emplace_back(device.index, bytes);
    if (!use.output && bytes) buffers.back().upload((host.*use.tensor).data, bytes);
    t.data = buffers.back().data();
  }
  const tw::Plan plan(a, pass);
  const cuda::DeviceBuffer workspace(device.index, plan.workspace());
  plan.execute(a, workspace.data(), workspace.bytes());
  cuda::synchronize(device.index, nullptr);
  size_t next = 0;
  for (const TensorUse& use : tensors_of(pass)) {
    const tw_tensor& t = a.*use.tensor;
    if (!t.dtype) continue;
    const cuda::DeviceBuffer& buffer = buffers[next++];
    if (use.output && tensor_bytes(t)) buffer.download((host.*use.tensor).data, tensor_bytes(t));
  }
}

// Draws the thread pool's progress from a thread of its own while it lives.
class ProgressBar {
 public:
  explicit ProgressBar(const char* what) : what_(what) {
    if (isatty(STDERR_FILENO)) thread_ = std::thread([this] { draw(); });
  }
  ~ProgressBar() {
    if (!thread_.joinable()) return;
    {
      const std::lock_guard lock(mutex_);
      finished_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  void draw() {
    std::unique_lock lock(mutex_);
    auto finished = [this] { return finished_; };
    if (wake_.wait_for(lock, std::chrono::seconds(1), finished)) return;
    while (!wake_.wait_for(lock, std::chrono::milliseconds(100), finished)) {
      const cpu::Progress p = cpu::progress();
      const double share = p.tasks ? double(p.begun) / double(p.tasks) : 0;
      std::fprintf(stderr, "\r%s %s %3.0f %%", what_, bar(share, 40).c_str(), 100 * share);
    }
    std::fprintf(stderr, "\r\033[K");
  }

  const char* what_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool finished_ = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace

size_t tensor_bytes(const tw_tensor& t) {
  int64_t last = 0;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.size[i] == 0) return 0;
    last += (t.size[i] - 1) * t.stride[i];
  }
  return size_t(last + 1) * size_of(tw_dtype(t.dtype));
}

std::vector<TensorUse> tensors_of(tw_pass pass) {
  const bool backward = pass == TW_BACKWARD;
  std::vector<TensorUse> all;
  for (auto tensor :
       {&tw_attention::q, &tw_attention::k, &tw_attention::v, &tw_attention::bias, &tw_attention::mask,
        &tw_attention::alibi_slopes, &tw_attention::sink, &tw_attention::cu_seqlens_q,
        &tw_attention::cu_seqlens_k, &tw_attention::seqused_q, &tw_attention::seqused_k})
    all.push_back({tensor, false});
  for (auto tensor : {&tw_attention::out, &tw_attention::lse}) all.push_back({tensor, !backward});
  if (!backward) return all;
  for (auto tensor : {&tw_attention::dout, &tw_attention::dlse}) all.push_back({tensor, false});
  for (auto tensor :
       {&tw_attention::dq, &tw_attention::dk, &tw_attention::dv, &tw_attention::dbias, &tw_attention::dsink})
    all.push_back({tensor, true});
  return all;
}

tw_attention planned(const tw_attention& a, tw_pass pass, DeviceName device) {
  tw_attention copy = a;
  for (const TensorUse& use : tensors_of(pass)) {
    tw_tensor& t = copy.*use.tensor;
    t.data = nullptr;
    if (!t.dtype) continue;
    t.device_type = device.type;
    t.device_index = device.index;
  }
  return copy;
}

void execute(const tw_attention& a, tw_pass pass, DeviceName device) {
  if (device.type == TW_CUDA) return execute_on_gpu(a, pass, device);
  const ProgressBar bar(pass == TW_FORWARD ? "forward" : "backward");
  tw::run(a, pass);
}

}  // namespace tilewise::cli
