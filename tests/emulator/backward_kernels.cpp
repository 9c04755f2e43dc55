#define TILEWISE_EMULATE
#include "backward_kernels.h"

#include "backward_configs.h"
#include "kernels/common/bwd_convert.cuh"
#include "kernels/common/bwd_prepare.cuh"
#include "kernels/mma/bwd.cuh"
#include "kernels/mma/bwd_dq.cuh"
#include "kernels/mma/bwd_repair.cuh"
#include "kernels/mma/bwd_statistics.cuh"
#include "kernels/shared/schedule.h"

namespace tilewise {
namespace {

emulator::Launch shape(u64 blocks, int threads, int smem, emulator::Order order) {
  const Grid g = fold_grid(blocks);
  return {.grid = {g.x, g.y, g.z}, .threads = u32(threads), .shared_bytes = u32(smem), .order = order};
}

template <Config C>
void run_fa2(const AttentionParams& p, emulator::Order order) {
  if (const u64 n = common::bwd_prepare_blocks(C, p.B, p.H, p.Sq))
    emulator::launch(shape(n, common::kPrepareThreads, 0, order), [&] { common::bwd_prepare<C>(p); });
  if constexpr (C.bias) {
    constexpr Config kStatistics = mma::around_backward(Kernel::backward_statistics, C);
    if (const u64 n = mma::backward_statistics_blocks(p.B, p.H, p.Sq))
      emulator::launch(shape(n, mma::kStatisticsThreads, 0, order),
                       [&] { mma::backward_statistics<kStatistics>(p); });
  }
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
  } else {
    constexpr Config kConvert = mma::around_backward(Kernel::backward_convert, C);
    if (const u64 n = common::bwd_convert_blocks(kConvert, p.B, p.H, p.Sq))
      emulator::launch(shape(n, common::kConvertThreads, common::bwd_convert_smem_bytes(kConvert), order),
                       [&] { common::bwd_convert<kConvert>(p); });
  }
  if constexpr (C.deterministic && mma::repairs(C)) {
    constexpr Config kRepair = mma::around_backward(Kernel::backward_repair, C);
    if (const u64 n = mma::backward_repair_blocks(p.B, p.H, p.Hk, p.Sq, p.Sk))
      emulator::launch(shape(n, mma::kRepairThreads, 0, order), [&] { mma::backward_repair<kRepair>(p); });
  }
}

template <size_t... kIndex>
void run_listed(const AttentionParams& p, const Config& config, emulator::Order order,
                std::index_sequence<kIndex...>) {
  const bool found =
      ((kBackwardConfigs[kIndex] == config && (run_fa2<kBackwardConfigs[kIndex]>(p, order), true)) || ...);
  if (!found) throw emulator::Error("configuration not listed");
}

}  // namespace

BackwardWorkspace backward_workspace(const AttentionParams& p, const Config& config) {
  const i64 rows = workspace_rows(p);
  return {dq_accum_bytes(p.H, rows, config.d) / 4, row_statistics_bytes(p.H, rows) / 4};
}

void emulate_backward(const AttentionParams& p, const Config& config, emulator::Order order) {
  run_listed(p, config, order, std::make_index_sequence<std::size(kBackwardConfigs)>());
}

}  // namespace tilewise
