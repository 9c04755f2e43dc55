// FlashAttention-2 backward: prepare (delta, lse in log2 units, dQ's accumulator cleared), the main kernel
// over key blocks, and the conversion of dQ, or where it must be deterministic dQ's own kernel; dsink and
// dbias where they are asked for, and the clearing of uncovered rows where there are lengths.
#include "core/error.h"
#include "cuda/launch/families.h"
#include "cuda/launch/params.h"
#include "cuda/launch/uncovered.h"
#include "kernels/common/bwd_launch.h"
#include "kernels/mma/backward_tiles.h"

namespace tilewise::cuda {
namespace {

// What the backward keeps in the caller's workspace, each part 256-byte aligned.
struct Workspace {
  size_t delta, lse_log2, dq_accum, dbias_accum, bytes;  // offsets
};

i64 dbias_elements(const Problem& p) {
  const i64* n = p.dbias.size;
  return n[0] * n[1] * n[2] * n[3];
}

Workspace workspace_of(const Problem& p, const Config& c) {
  const i64 rows = workspace_rows(p.packed, p.B, p.Sq, p.total_q);
  Workspace w{};
  const auto take = [&](i64 bytes) {
    const size_t at = w.bytes;
    w.bytes += size_t(round_up(bytes, 256));
    return at;
  };
  w.delta = take(row_statistics_bytes(p.H, rows));
  w.lse_log2 = take(row_statistics_bytes(p.H, rows));
  w.dq_accum = take(c.deterministic ? 0 : dq_accum_bytes(p.H, rows, c.d));
  w.dbias_accum = take(c.dbias ? dbias_elements(p) * 4 : 0);
  return w;
}

common::DbiasParams dbias_params(const Problem& p, const float* accum) {
  const i64* n = p.dbias.size;
  return {accum, p.dbias.data, i32(element_of(p.dbias.dtype)), {n[0], n[1], n[2], n[3]}, p.dbias.stride};
}

// The accumulator's strides: dense, 0 where a single element stands for all.
ScoreStrides dbias_accum_stride(const Problem& p) {
  const i64* n = p.dbias.size;
  const auto stride = [](i64 size, i64 s) { return size > 1 ? s : 0; };
  return {stride(n[0], n[1] * n[2] * n[3]), stride(n[1], n[2] * n[3]), stride(n[2], n[3]), stride(n[3], 1)};
}

KernelUse use_of(const Problem& p, const Config& c) {
  const auto shape = [](u64 blocks, int threads, int shared_bytes) {
    const Grid g = fold_grid(blocks);
    return LaunchShape{
        .grid = {g.x, g.y, g.z}, .threads = unsigned(threads), .shared_bytes = unsigned(shared_bytes)};
  };
  switch (c.kernel) {
    case Kernel::backward_prepare:
      return {c, shape(common::bwd_prepare_blocks(p.B, p.H, p.Sq), common::kPrepareThreads, 0)};
    case Kernel::backward_sink:
      return {c, shape(common::reduce_sink_blocks(p.H), common::kSinkThreads, common::kSinkSmemBytes)};
    case Kernel::backward:
      return {c, shape(mma::backward_blocks(c, p.B, p.Hk, p.Sk), mma::backward_threads(c),
                       mma::backward_smem_bytes(c))};
    case Kernel::backward_dq:
      return {c, shape(mma::backward_dq_blocks(c, p.B, p.H, p.Sq), mma::backward_dq_threads(c),
                       mma::backward_dq_smem_bytes(c))};
    case Kernel::backward_repair:
      return {c, shape(mma::backward_repair_blocks(p.B, p.H, p.Hk, p.Sq, p.Sk), mma::kRepairThreads, 0)};
    case Kernel::backward_dbias:
      return {c, shape(common::convert_dbias_blocks(dbias_params(p, nullptr)), common::kConvertThreads, 0)};
    case Kernel::backward_convert:
      return {c, shape(common::bwd_convert_blocks(c, p.B, p.H, p.Sq), common::kConvertThreads,
                       common::bwd_convert_smem_bytes(c))};
    default: fail(TW_INTERNAL, "the mma backward has no launch for kernel ", int(c.kernel));
  }
}

// The plan's kernels that have something to do.
std::vector<KernelUse> attention_uses(const Problem& p, const std::vector<Config>& kernels) {
  std::vector<KernelUse> uses;
  for (const Config& c : kernels)
    if (const KernelUse use = use_of(p, c); use.shape.grid[0] > 0) uses.push_back(use);
  return uses;
}

std::vector<KernelUse> all_uses(const Problem& p, const std::vector<Config>& kernels) {
  std::vector<KernelUse> uses = attention_uses(p, kernels);
  for (const KernelUse& use : uncovered_uses(p)) uses.push_back(use);
  return uses;
}

class MmaBackward final : public CudaExecution {
 public:
  MmaBackward(const Problem& p, const std::vector<Config>& kernels)
      : CudaExecution(p.device_index, all_uses(p, kernels), workspace_of(p, kernels.front()).bytes),
        workspace_(workspace_of(p, kernels.front())),
        attention_kernels_(attention_uses(p, kernels).size()),
        dbias_last_(p.dbias && dbias_elements(p) > 0),
        strided_(kernels.front().strided) {}

 private:
  void enqueue(const Problem& p, std::byte* workspace, const Launcher& launcher) const override {
    if (!strided_) check_alignment(p);
    AttentionParams a = attention_params(p);
    a.delta = reinterpret_cast<float*>(workspace + workspace_.delta);
    a.lse_log2 = reinterpret_cast<float*>(workspace + workspace_.lse_log2);
    a.dq_accum = reinterpret_cast<float*>(workspace + workspace_.dq_accum);
    a.dbias_accum = reinterpret_cast<float*>(workspace + workspace_.dbias_accum);
    a.dbias_stride = dbias_accum_stride(p);
    if (dbias_last_) fill_zero(a.dbias_accum, size_t(dbias_elements(p)) * 4, launcher.stream());
    size_t use = 0;
    while (use < attention_kernels_ - dbias_last_) launcher(use++, a);
    if (dbias_last_) launcher(use++, dbias_params(p, a.dbias_accum));
    for (const common::UncoveredParams& u : uncovered_outputs(p)) launcher(use++, u);
  }

  const Workspace workspace_;
  const size_t attention_kernels_;
  const bool dbias_last_;  // the last of them converts dbias, with arguments of its own
  const bool strided_;
};

}  // namespace

std::unique_ptr<Execution> make_mma_backward(const Problem& p, const plan::CudaChoice& choice) {
  return std::make_unique<MmaBackward>(p, choice.kernels);
}

}  // namespace tilewise::cuda
