// The baselines that the paper compares with: unfused attention, whose S and P lie in the caller's workspace,
// and FlashAttention 1, whose O (dQ) does between two key blocks.
#include "cuda/launch/baselines.h"

#include "cuda/launch/execution.h"
#include "cuda/launch/families.h"
#include "cuda/launch/params.h"
#include "kernels/baseline/fa1.h"
#include "kernels/common/bwd_launch.h"
#include "kernels/shared/schedule.h"

namespace tilewise::cuda {

u64 UnfusedLaunch::blocks() const {
  return is_product() ? baseline::product_blocks(product) : baseline::softmax_blocks(rows);
}

std::vector<UnfusedLaunch> unfused_launches(const AttentionParams& a, bool backward, void* s, void* d) {
  using namespace baseline;
  std::vector<UnfusedLaunch> all = {{Kernel::product_nt, scores_product(a, s), {}},
                                    {Kernel::softmax, {}, softmax_params(a, s, nullptr, !backward)}};
  if (!backward) {
    all.push_back({Kernel::product_nn, output_product(a, s), {}});
  } else {
    all.push_back({Kernel::product_tn, dv_product(a, s), {}});
    all.push_back({Kernel::product_nt, dp_product(a, d), {}});
    all.push_back({Kernel::softmax_backward, {}, softmax_params(a, d, s, false)});
    all.push_back({Kernel::product_nn, dq_product(a, d), {}});
    all.push_back({Kernel::product_tn, dk_product(a, d), {}});
  }
  return all;
}

size_t score_bytes(const Problem& p) {
  return size_t(round_up(baseline::score_elements(p.B, p.H, p.Sq, p.Sk) * i64(size_of(p.dtype)), 256));
}

Fa1Workspace fa1_workspace(const Problem& p, const Config& c) {
  Fa1Workspace w{};
  const auto take = [&](i64 bytes) {
    const size_t at = w.bytes;
    w.bytes += size_t(round_up(bytes, 256));
    return at;
  };
  if (p.pass == TW_FORWARD) {
    w.accum = take(baseline::fa1_forward_workspace(c, p.B, p.H, p.Sq) * 4);
    return w;
  }
  const i64 rows = workspace_rows(p.packed, p.B, p.Sq, p.total_q);
  w.delta = take(row_statistics_bytes(p.H, rows));
  w.lse_log2 = take(row_statistics_bytes(p.H, rows));
  w.accum = take(baseline::fa1_backward_workspace(c, p.B, p.H, p.Sq) * 4);
  return w;
}

namespace {

LaunchShape shape_of(u64 blocks, int threads, int shared_bytes) {
  const Grid g = fold_grid(blocks);
  return {.grid = {g.x, g.y, g.z}, .threads = unsigned(threads), .shared_bytes = unsigned(shared_bytes)};
}

std::vector<KernelUse> unfused_uses(const Problem& p, const Config& c) {
  std::vector<KernelUse> uses;
  for (const UnfusedLaunch& l :
       unfused_launches(attention_params(p), p.pass == TW_BACKWARD, nullptr, nullptr)) {
    Config config = c;
    config.kernel = l.kernel;
    uses.push_back(
        {config, l.is_product()
                     ? shape_of(l.blocks(), baseline::kProductThreads, baseline::product_smem_bytes(c))
                     : shape_of(l.blocks(), baseline::kSoftmaxThreads, baseline::kSoftmaxSmemBytes)});
  }
  return uses;
}

class Unfused final : public CudaExecution {
 public:
  Unfused(const Problem& p, const Config& c)
      : CudaExecution(p.device_index, unfused_uses(p, c), score_bytes(p) * (p.pass == TW_BACKWARD ? 2 : 1)) {}

 private:
  void enqueue(const Problem& p, std::byte* workspace, const Launcher& launcher) const override {
    size_t use = 0;
    for (const UnfusedLaunch& l : unfused_launches(attention_params(p), p.pass == TW_BACKWARD, workspace,
                                                   workspace + score_bytes(p))) {
      if (l.is_product())
        launcher(use++, l.product);
      else
        launcher(use++, l.rows);
    }
  }
};

std::vector<KernelUse> fa1_uses(const Problem& p, const std::vector<Config>& kernels) {
  std::vector<KernelUse> uses;
  for (const Config& c : kernels) {
    LaunchShape shape;
    if (c.kernel == Kernel::backward_prepare)
      shape = shape_of(common::bwd_prepare_blocks(c, p.B, p.H, p.Sq), common::kPrepareThreads, 0);
    else if (c.kernel == Kernel::forward)
      shape = shape_of(baseline::fa1_forward_blocks(p.B, p.H), baseline::fa1_threads(c),
                       baseline::fa1_forward_smem_bytes(c));
    else
      shape = shape_of(baseline::fa1_backward_blocks(p.B, p.Hk), baseline::fa1_threads(c),
                       baseline::fa1_backward_smem_bytes(c));
    uses.push_back({c, shape});
  }
  return uses;
}

class Fa1 final : public CudaExecution {
 public:
  Fa1(const Problem& p, const std::vector<Config>& kernels)
      : CudaExecution(p.device_index, fa1_uses(p, kernels), fa1_workspace(p, kernels.back()).bytes),
        workspace_(fa1_workspace(p, kernels.back())),
        launches_(kernels.size()) {}

 private:
  void enqueue(const Problem& p, std::byte* workspace, const Launcher& launcher) const override {
    AttentionParams a = attention_params(p);
    a.delta = reinterpret_cast<float*>(workspace + workspace_.delta);
    a.lse_log2 = reinterpret_cast<float*>(workspace + workspace_.lse_log2);
    a.dq_accum = reinterpret_cast<float*>(workspace + workspace_.accum);
    for (size_t use = 0; use < launches_; ++use) launcher(use, a);
  }

  const Fa1Workspace workspace_;
  const size_t launches_;
};

}  // namespace

std::unique_ptr<Execution> make_unfused(const Problem& p, const plan::CudaChoice& choice) {
  return std::make_unique<Unfused>(p, choice.kernels.at(0));
}

std::unique_ptr<Execution> make_fa1(const Problem& p, const plan::CudaChoice& choice) {
  return std::make_unique<Fa1>(p, choice.kernels);
}

}  // namespace tilewise::cuda
