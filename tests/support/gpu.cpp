#include "support/gpu.h"

#include <algorithm>

#include "cuda/backend.h"
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

OnGpu::OnGpu(tw_attention& a, const std::vector<Tensor*>& tensors) : tensors_(tensors) {
  for (Tensor* t : tensors_) {
    copies_.emplace_back(kDevice, t->storage().size());
    copies_.back().upload(t->storage().data(), t->storage().size());
  }
  for (tw_tensor tw_attention::*member : kTensors) {
    tw_tensor& view = a.*member;
    if (!view.dtype) continue;
    view.device_type = TW_CUDA;
    view.device_index = kDevice;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const std::vector<std::byte>& storage = tensors_[i]->storage();
      const auto* data = static_cast<std::byte*>(view.data);
      if (data >= storage.data() && data < storage.data() + storage.size())
        view.data = copies_[i].data() + (data - storage.data());
    }
  }
}

tw_status OnGpu::run(const tw_attention& a, tw_pass pass, std::vector<unsigned char>& workspace, size_t begin,
                     size_t bytes) {
  // The guards around the workspace are there too; `begin` keeps the alignment that the host's start had.
  const cuda::DeviceBuffer there(kDevice, workspace.size() + 256);
  const size_t offset = (256 - begin % 256) % 256;
  there.upload(workspace.data(), workspace.size(), offset);
  const tw_status status = tw_attention_run(&a, pass, there.data() + offset + begin, bytes, nullptr);
  cuda::synchronize(kDevice, nullptr);
  for (size_t i = 0; i < tensors_.size(); ++i)
    copies_[i].download(tensors_[i]->storage().data(), tensors_[i]->storage().size());
  there.download(workspace.data(), workspace.size(), offset);
  return status;
}

}  // namespace tilewise::test
