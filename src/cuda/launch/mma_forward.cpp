// FlashAttention-2 forward: one launch, and one more that clears uncovered rows where there are lengths.
#include "cuda/launch/families.h"
#include "cuda/launch/params.h"
#include "cuda/launch/uncovered.h"
#include "kernels/mma/tiles.h"

namespace tilewise::cuda {
namespace {

std::vector<KernelUse> uses_of(const Problem& p, const Config& c) {
  std::vector<KernelUse> uses;
  if (p.total_q * p.H == 0) return uses;
  const Grid grid = mma::forward_grid(c, attention_params(p));
  uses.push_back({c,
                  {.grid = {grid.x, grid.y, grid.z},
                   .threads = unsigned(mma::threads(c)),
                   .shared_bytes = unsigned(mma::forward_smem_bytes(c))}});
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
