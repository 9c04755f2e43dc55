// FlashAttention-2 forward: one launch, and one more that clears uncovered rows where there are lengths.
#include "cuda/launch/families.h"
#include "cuda/launch/mma.h"
#include "cuda/launch/params.h"
#include "cuda/launch/uncovered.h"
#include "kernels/mma/tiles.h"
#include "kernels/mma/wide.h"

namespace tilewise::cuda {

std::vector<KernelUse> mma_forward_uses(const Problem& p, const Config& c) {
  if (p.total_q * p.H == 0) return {};
  const bool wide = c.kernel == Kernel::wide_forward;
  const Grid grid = wide ? fold_grid(mma::wide_blocks(c, p.B, p.H, p.Sq, i32(p.Dv)))
                         : mma::forward_grid(c, attention_params(p));
  return {{c,
           {.grid = {grid.x, grid.y, grid.z},
            .threads = unsigned(mma::threads(c)),
            .shared_bytes = unsigned(wide ? mma::wide_smem_bytes(c) : mma::forward_smem_bytes(c))}}};
}

namespace {

std::vector<KernelUse> uses_of(const Problem& p, const Config& c) {
  std::vector<KernelUse> uses = mma_forward_uses(p, c);
  if (uses.empty()) return uses;
  for (const KernelUse& use : uncovered_uses(p)) uses.push_back(use);
  return uses;
}

class MmaForward final : public CudaExecution {
 public:
  MmaForward(const Problem& p, const Config& c)
      : CudaExecution(p.device_index, uses_of(p, c), 0), strided_(c.strided) {}

 private:
  void enqueue(const Problem& p, std::byte*, const Launcher& launcher) const override {
    if (!strided_) check_alignment(p);
    launcher(0, attention_params(p));
    size_t use = 1;
    for (const common::UncoveredParams& u : uncovered_outputs(p)) launcher(use++, u);
  }

  const bool strided_;
};

}  // namespace

std::unique_ptr<Execution> make_mma_forward(const Problem& p, const plan::CudaChoice& choice) {
  return std::make_unique<MmaForward>(p, choice.kernels.at(0));
}

}  // namespace tilewise::cuda
