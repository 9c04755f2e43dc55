#define TILEWISE_EMULATE
#include "backward_kernels.h"

#include "backward_configs.h"
#include "kernels/baseline/fa1_bwd.cuh"
#include "kernels/baseline/fa1_fwd.cuh"
#include "kernels/baseline/unfused.cuh"
#include "kernels/common/bwd_convert.cuh"
#include "kernels/common/bwd_prepare.cuh"
#include "kernels/mma/bwd.cuh"
#include "kernels/mma/bwd_dq.cuh"
#include "kernels/mma/bwd_repair.cuh"
#include "kernels/shared/schedule.h"

namespace tilewise {
namespace {

emulator::Launch shape(u64 blocks, int threads, int smem, emulator::Order order) {
  const Grid g = fold_grid(blocks);
  return {.grid = {g.x, g.y, g.z}, .threads = u32(threads), .shared_bytes = u32(smem), .order = order};
}

template <Config C>
void run_fa2(const AttentionParams& p, emulator::Order order) {
  if (const u64 n = common::bwd_prepare_blocks(p.B, p.H, p.Sq))
    emulator::launch(shape(n, common::kPrepareThreads, 0, order), [&] { common::bwd_prepare<C>(p); });
  if (p.dsink && p.H)
    emulator::launch(shape(u64(p.H), common::kSinkThreads, common::kSinkSmemBytes, order),
                     [&] { common::reduce_sink<C>(p); });
  if (const u64 n = mma::backward_blocks(C, p.B, p.Hk, p.Sk))
    emulator::launch(shape(n, mma::backward_threads(C), mma::backward_smem_bytes(C), order),
                     [&] { mma::backward<C>(p); });
  if constexpr (C.deterministic) {
    constexpr Config kDq = [] {
      Config c = C;
      if (!mma::choose_backward_dq_tiles(c, C.d, C.dv, 101376)) throw "no tile";
      return c;
    }();
    if (const u64 n = mma::backward_dq_blocks(kDq, p.B, p.H, p.Sq))
      emulator::launch(shape(n, mma::backward_dq_threads(kDq), mma::backward_dq_smem_bytes(kDq), order),
                       [&] { mma::backward_dq<kDq>(p); });
  } else if (const u64 n = common::bwd_convert_blocks(C, p.B, p.H, p.Sq))
    emulator::launch(shape(n, common::kConvertThreads, common::bwd_convert_smem_bytes(C), order),
                     [&] { common::bwd_convert<C>(p); });
  if constexpr (C.boolean_mask) {
    constexpr Config kRepair = mma::around_backward(Kernel::backward_repair, C);
    if (const u64 n = mma::backward_repair_blocks(p.B, p.H, p.Hk, p.Sq, p.Sk))
      emulator::launch(shape(n, mma::kRepairThreads, 0, order), [&] { mma::backward_repair<kRepair>(p); });
  }
}

// The unfused baseline: every launch of unfused.h in its order.
template <Config C>
void run_unfused(const AttentionParams& p, char* scores, bool backward, emulator::Order order) {
  using namespace baseline;
  char* const gradient = scores + score_elements(p.B, p.H, p.Sq, p.Sk) * tile::element_bytes(C.element);
  const auto multiply = [&](const ProductParams& x, void (*kernel)(const ProductParams)) {
    if (const u64 n = product_blocks(x))
      emulator::launch(shape(n, kProductThreads, product_smem_bytes(C), order), [&] { kernel(x); });
  };
  const auto rows = [&](const SoftmaxParams& x, void (*kernel)(const SoftmaxParams)) {
    if (const u64 n = softmax_blocks(x))
      emulator::launch(shape(n, kSoftmaxThreads, kSoftmaxSmemBytes, order), [&] { kernel(x); });
  };
  multiply(scores_product(p, scores), product_nt<C>);
  rows(softmax_params(p, scores, nullptr, !backward), softmax<C>);
  if (!backward) return multiply(output_product(p, scores), product_nn<C>);
  multiply(dv_product(p, scores), product_tn<C>);
  multiply(dp_product(p, gradient), product_nt<C>);
  rows(softmax_params(p, gradient, scores, false), softmax_backward<C>);
  multiply(dq_product(p, gradient), product_nn<C>);
  multiply(dk_product(p, gradient), product_tn<C>);
}

template <Config C>
constexpr Config fa1_config(Kernel kernel) {
  Config c = C;
  c.kernel = kernel;
  baseline::choose_fa1_tiles(c);
  return c;
}

template <Config C>
void run_fa1(const AttentionParams& p, bool backward, emulator::Order order) {
  constexpr Config kForward = fa1_config<C>(Kernel::forward), kBackward = fa1_config<C>(Kernel::backward);
  if (!backward) {
    if (const u64 n = baseline::fa1_forward_blocks(p.B, p.H))
      emulator::launch(
          shape(n, baseline::fa1_threads(kForward), baseline::fa1_forward_smem_bytes(kForward), order),
          [&] { baseline::fa1_forward<kForward>(p); });
    return;
  }
  if (const u64 n = common::bwd_prepare_blocks(p.B, p.H, p.Sq))
    emulator::launch(shape(n, common::kPrepareThreads, 0, order), [&] { common::bwd_prepare<C>(p); });
  if (const u64 n = baseline::fa1_backward_blocks(p.B, p.Hk))
    emulator::launch(
        shape(n, baseline::fa1_threads(kBackward), baseline::fa1_backward_smem_bytes(kBackward), order),
        [&] { baseline::fa1_backward<kBackward>(p); });
}

template <Config C>
void run(const AttentionParams& p, void* scores, bool backward, emulator::Order order) {
  if constexpr (C.family == Family::unfused)
    run_unfused<C>(p, static_cast<char*>(scores), backward, order);
  else if constexpr (C.family == Family::fa1)
    run_fa1<C>(p, backward, order);
  else if (backward)
    run_fa2<C>(p, order);
}

template <size_t... kIndex>
void run_listed(const AttentionParams& p, const Config& config, void* scores, bool backward,
                emulator::Order order, std::index_sequence<kIndex...>) {
  const bool found = ((kBackwardConfigs[kIndex] == config &&
                       (run<kBackwardConfigs[kIndex]>(p, scores, backward, order), true)) ||
                      ...);
  if (!found) throw emulator::Error("configuration not listed");
}

}  // namespace

BackwardWorkspace backward_workspace(const AttentionParams& p, const Config& config) {
  const i64 rows = workspace_rows(p);
  BackwardWorkspace w{dq_accum_bytes(p.H, rows, config.d) / 4, row_statistics_bytes(p.H, rows) / 4, 0};
  if (config.family == Family::fa1)
    w.dq_accum = baseline::fa1_forward_workspace(config, p.B, p.H, p.Sq) +
                 baseline::fa1_backward_workspace(config, p.B, p.H, p.Sq);
  if (config.family == Family::unfused)
    w.scores = baseline::score_elements(p.B, p.H, p.Sq, p.Sk) * tile::element_bytes(config.element);
  return w;
}

void emulate_backward(const AttentionParams& p, const Config& config, void* scores, emulator::Order order) {
  run_listed(p, config, scores, true, order, std::make_index_sequence<std::size(kBackwardConfigs)>());
}

void emulate_forward(const AttentionParams& p, const Config& config, void* scores, emulator::Order order) {
  run_listed(p, config, scores, false, order, std::make_index_sequence<std::size(kBackwardConfigs)>());
}

}  // namespace tilewise
