#include "support/gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "core/error.h"
#include "cuda/backend.h"
#include "cuda/driver/driver.h"
#include "plan/cuda.h"

namespace tilewise::test {
namespace {

constexpr int kDevice = 0;

constexpr tw_tensor tw_attention::*kTensors[] = {&tw_attention::q,
                                                 &tw_attention::k,
                                                 &tw_attention::v,
                                                 &tw_attention::out,
                                                 &tw_attention::lse,
                                                 &tw_attention::bias,
                                                 &tw_attention::mask,
                                                 &tw_attention::alibi_slopes,
                                                 &tw_attention::sink,
                                                 &tw_attention::dout,
                                                 &tw_attention::cu_seqlens_q,
                                                 &tw_attention::cu_seqlens_k,
                                                 &tw_attention::seqused_q,
                                                 &tw_attention::seqused_k,
                                                 &tw_attention::dlse,
                                                 &tw_attention::dq,
                                                 &tw_attention::dk,
                                                 &tw_attention::dv,
                                                 &tw_attention::dbias,
                                                 &tw_attention::dsink};

}  // namespace

std::vector<std::string> gpu_algorithms() {
  return cuda::machine(kDevice).unavailable.empty() ? plan::cuda_algorithms() : std::vector<std::string>{};
}

bool is_gpu_algorithm(const std::string& name) {
  const std::vector<std::string> all = plan::cuda_algorithms();
  return std::find(all.begin(), all.end(), name) != all.end();
}

OnGpu::OnGpu(tw_attention& a, const std::vector<Tensor*>& tensors, int device)
    : device_(device), tensors_(tensors) {
  for (Tensor* t : tensors_) copies_.emplace_back(device_, t->storage().size());
  upload(tensors_);
  for (tw_tensor tw_attention::*member : kTensors) {
    tw_tensor& view = a.*member;
    if (!view.dtype) continue;
    view.device_type = TW_CUDA;
    view.device_index = device_;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const Storage& storage = tensors_[i]->storage();
      const auto* data = static_cast<std::byte*>(view.data);
      if (data >= storage.data() && data < storage.data() + storage.size())
        view.data = copies_[i].data() + (data - storage.data());
    }
  }
}

tw_status OnGpu::run(const tw_attention& a, tw_pass pass, std::vector<unsigned char>& workspace, size_t begin,
                     size_t bytes) {
  // The guards around the workspace are there too; `begin` keeps the alignment that the host's start had.
  const cuda::DeviceBuffer there(device_, workspace.size() + 256);
  const size_t offset = (256 - begin % 256) % 256;
  there.upload(workspace.data(), workspace.size(), offset);
  const tw_status status = tw_attention_run(&a, pass, there.data() + offset + begin, bytes, nullptr);
  cuda::synchronize(device_, nullptr);
  download(tensors_);
  there.download(workspace.data(), workspace.size(), offset);
  return status;
}

void OnGpu::upload(const std::vector<Tensor*>& from) {
  for (size_t i = 0; i < copies_.size(); ++i)
    copies_[i].upload(from[i]->storage().data(), from[i]->storage().size());
}

void OnGpu::copy(const OnGpu& from, void* stream) {
  for (size_t i = 0; i < copies_.size(); ++i)
    cuda::copy_on_device(device_, copies_[i].data(), from.copies_[i].data(), copies_[i].bytes(), stream);
}

void OnGpu::poison() {
  for (const cuda::DeviceBuffer& b : copies_) {
    const std::vector<unsigned char> nan(b.bytes(), 0xFF);
    b.upload(nan.data(), nan.size());
  }
}

void OnGpu::download(const std::vector<Tensor*>& to) const {
  for (size_t i = 0; i < copies_.size(); ++i)
    copies_[i].download(to[i]->storage().data(), to[i]->storage().size());
}

namespace {

// A function of the driver that the library does not call.
template <class... Arguments>
void call_driver(const char* symbol, Arguments... arguments) {
  static void* const library = dlopen(cuda::driver_state().path.c_str(), RTLD_NOW);
  auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, symbol));
  const int result = function ? function(arguments...) : -1;
  if (result != 0) throw std::runtime_error(cat(symbol, " returned ", result));
}

}  // namespace

Stream::Stream(int device) : device_(device) {
  constexpr unsigned kNonBlocking = 1;
  const cuda::CurrentDevice current(device_);
  call_driver("cuStreamCreate", &handle_, kNonBlocking);
}

Stream::~Stream() {
  try {
    const cuda::CurrentDevice current(device_);
    if (executable_) call_driver("cuGraphExecDestroy", executable_);
    if (graph_) call_driver("cuGraphDestroy", graph_);
    call_driver("cuStreamDestroy_v2", handle_);
  } catch (
      const std::exception&) {  // the device is lost, which the test has heard from the call that lost it
  }
}

void Stream::hold(int milliseconds) {
  const cuda::CurrentDevice current(device_);
  const auto sleep = [](void* time) {
    std::this_thread::sleep_for(std::chrono::milliseconds(reinterpret_cast<intptr_t>(time)));
  };
  call_driver("cuLaunchHostFunc", handle_, static_cast<void (*)(void*)>(sleep),
              reinterpret_cast<void*>(intptr_t{milliseconds}));
}

void Stream::wait() const { cuda::synchronize(device_, handle_); }

void Stream::capture(const std::function<void()>& work) {
  constexpr int kThreadLocal = 1;
  const cuda::CurrentDevice current(device_);
  call_driver("cuStreamBeginCapture_v2", handle_, kThreadLocal);
  work();
  call_driver("cuStreamEndCapture", handle_, &graph_);
  call_driver("cuGraphInstantiateWithFlags", &executable_, graph_, 0ull);
}

void Stream::replay() const {
  const cuda::CurrentDevice current(device_);
  call_driver("cuGraphLaunch", executable_, handle_);
}

void* current_context() {
  void* context = nullptr;
  call_driver("cuCtxGetCurrent", &context);
  return context;
}

}  // namespace tilewise::test
