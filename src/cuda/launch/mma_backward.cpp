// FlashAttention-2 backward: prepare (delta, lse in log2 units, dQ's accumulator cleared), with a bias the
// statistics of rows whose lse is large, the main kernel
// over key blocks, and the conversion of dQ, or where it must be deterministic dQ's own kernel; dsink and
// dbias where they are asked for, and the clearing of uncovered rows where there are lengths. The wide
// kernels take the places of the main ones.
#include "cuda/launch/mma.h"

#include <algorithm>

#include "core/error.h"
#include "cuda/launch/families.h"
#include "cuda/launch/params.h"
#include "cuda/launch/uncovered.h"
#include "kernels/mma/backward_tiles.h"
#include "kernels/mma/wide.h"

namespace tilewise::cuda {
namespace {

bool among(const std::vector<Config>& kernels, Kernel kernel) {
  return std::any_of(kernels.begin(), kernels.end(), [&](const Config& c) { return c.kernel == kernel; });
}

i64 dbias_elements(const Problem& p) {
  const i64* n = p.dbias.size;
  return p.dbias ? n[0] * n[1] * n[2] * n[3] : 0;
}

// The accumulator's strides: dense, 0 where a single element stands for all.
ScoreStrides dbias_accum_stride(const Problem& p) {
  const i64* n = p.dbias.size;
  const auto stride = [](i64 size, i64 s) { return size > 1 ? s : 0; };
  return {stride(n[0], n[1] * n[2] * n[3]), stride(n[1], n[2] * n[3]), stride(n[2], n[3]), stride(n[3], 1)};
}

// What the kernels know of dbias, but for its address.
void describe_dbias(AttentionParams& a, const Problem& p) {
  a.dbias_stride = dbias_accum_stride(p);
  a.dbias_rows = p.dbias.size[2], a.dbias_columns = p.dbias.size[3];
}

mma::DbiasWork dbias_work(const Problem& p) {
  AttentionParams a = attention_params(p);
  describe_dbias(a, p);
  return mma::dbias_work(a);
}

i64 dbias_parts(const Problem& p, const std::vector<Config>& kernels) {
  return among(kernels, Kernel::wide_dbias) ? dbias_work(p).parts : 1;
}

KernelUse use_of(const Problem& p, const Config& c) {
  const auto shape = [&](u64 blocks, int threads, int shared_bytes) {
    const Grid g = fold_grid(blocks);
    return KernelUse{
        c, {.grid = {g.x, g.y, g.z}, .threads = unsigned(threads), .shared_bytes = unsigned(shared_bytes)}};
  };
  const auto wide = [&](u64 blocks) { return shape(blocks, mma::kWideThreads, mma::wide_smem_bytes(c)); };
  switch (c.kernel) {
    case Kernel::backward_prepare:
      return shape(common::bwd_prepare_blocks(c, p.B, p.H, p.Sq), common::kPrepareThreads, 0);
    case Kernel::backward_statistics:
      return shape(mma::backward_statistics_blocks(p.B, p.H, p.Sq), mma::kStatisticsThreads, 0);
    case Kernel::backward_sink:
      return shape(common::reduce_sink_blocks(p.H), common::kSinkThreads, common::kSinkSmemBytes);
    case Kernel::backward:
      return shape(mma::backward_blocks(c, p.B, p.Hk, p.Sk), mma::backward_threads(c),
                   mma::backward_smem_bytes(c));
    case Kernel::backward_dq:
      return shape(mma::backward_dq_blocks(c, p.B, p.H, p.Sq), mma::backward_dq_threads(c),
                   mma::backward_dq_smem_bytes(c));
    case Kernel::backward_convert:
      return shape(common::bwd_convert_blocks(c, p.B, p.H, p.Sq), common::kConvertThreads,
                   common::bwd_convert_smem_bytes(c));
    case Kernel::wide_dkv: return wide(mma::wide_blocks(c, p.B, p.Hk, p.Sk, i32(std::max(p.D, p.Dv))));
    case Kernel::wide_dq: return wide(mma::wide_blocks(c, p.B, p.H, p.Sq, i32(p.D)));
    case Kernel::wide_dbias: {
      const mma::DbiasWork work = dbias_work(p);
      return wide(work.elements ? u64(work.tiles() * work.parts) : 0);
    }
    case Kernel::backward_repair:
      return shape(mma::backward_repair_blocks(p.B, p.H, p.Hk, p.Sq, p.Sk), mma::kRepairThreads, 0);
    case Kernel::backward_dbias:
      return shape(common::convert_dbias_blocks(dbias_params(p, {}, nullptr)), common::kConvertThreads, 0);
    default: fail(TW_INTERNAL, "the mma backward has no launch for kernel ", int(c.kernel));
  }
}

std::vector<KernelUse> all_uses(const Problem& p, const std::vector<Config>& kernels) {
  std::vector<KernelUse> uses = mma_backward_uses(p, kernels);
  for (const KernelUse& use : uncovered_uses(p)) uses.push_back(use);
  return uses;
}

class MmaBackward final : public CudaExecution {
 public:
  MmaBackward(const Problem& p, const std::vector<Config>& kernels)
      : CudaExecution(p.device_index, all_uses(p, kernels), mma_workspace(p, kernels).bytes),
        kernels_(kernels),
        workspace_(mma_workspace(p, kernels)),
        strided_(std::any_of(kernels.begin(), kernels.end(), [](const Config& c) { return c.strided; })) {}

 private:
  void enqueue(const Problem& p, std::byte* workspace, const Launcher& launcher) const override {
    if (!strided_) check_alignment(p);
    const AttentionParams a = mma_backward_params(p, workspace_, workspace);
    if (const size_t bytes = dbias_zeros(p, kernels_)) launcher.clear(a.dbias_accum, bytes);
    size_t use = 0;
    for (const Config& c : kernels_) {
      if (c.kernel == Kernel::backward_dbias)
        launcher(use++, dbias_params(p, kernels_, a.dbias_accum));
      else
        launcher(use++, a);
    }
    for (const common::UncoveredParams& u : uncovered_outputs(p)) launcher(use++, u);
  }

  const std::vector<Config> kernels_;
  const MmaWorkspace workspace_;
  const bool strided_;
};

}  // namespace

MmaWorkspace mma_workspace(const Problem& p, const std::vector<Config>& kernels) {
  const i64 rows = workspace_rows(p.packed, p.B, p.Sq, p.total_q);
  MmaWorkspace w{};
  const auto take = [&](i64 bytes) {
    const size_t at = w.bytes;
    w.bytes += size_t(round_up(bytes, 256));
    return at;
  };
  w.delta = take(row_statistics_bytes(p.H, rows));
  w.lse_log2 = take(row_statistics_bytes(p.H, rows));
  w.lse_rest = take(among(kernels, Kernel::backward_statistics) ? row_statistics_bytes(p.H, rows) : 0);
  const auto convert = std::find_if(kernels.begin(), kernels.end(),
                                    [](const Config& c) { return c.kernel == Kernel::backward_convert; });
  w.dq_accum = take(convert == kernels.end() ? 0 : dq_accum_bytes(p.H, rows, convert->d));
  w.dbias_accum = take(dbias_elements(p) * dbias_parts(p, kernels) * 4);
  w.spoiled = take(std::any_of(kernels.begin(), kernels.end(), mma::repairs) ? 4 : 0);
  return w;
}

AttentionParams mma_backward_params(const Problem& p, const MmaWorkspace& w, std::byte* workspace) {
  AttentionParams a = attention_params(p);
  a.delta = reinterpret_cast<float*>(workspace + w.delta);
  a.lse_log2 = reinterpret_cast<float*>(workspace + w.lse_log2);
  a.lse_rest = reinterpret_cast<float*>(workspace + w.lse_rest);
  a.dq_accum = reinterpret_cast<float*>(workspace + w.dq_accum);
  a.dbias_accum = reinterpret_cast<float*>(workspace + w.dbias_accum);
  if (w.spoiled < w.bytes) a.spoiled = reinterpret_cast<u32*>(workspace + w.spoiled);
  describe_dbias(a, p);
  return a;
}

size_t dbias_zeros(const Problem& p, const std::vector<Config>& kernels) {
  return among(kernels, Kernel::wide_dbias) ? 0 : size_t(dbias_elements(p)) * 4;
}

common::DbiasParams dbias_params(const Problem& p, const std::vector<Config>& kernels, const float* accum) {
  const i64* n = p.dbias.size;
  return {accum,
          dbias_parts(p, kernels),
          p.dbias.data,
          i32(element_of(p.dbias.dtype)),
          {n[0], n[1], n[2], n[3]},
          p.dbias.stride};
}

std::vector<KernelUse> mma_backward_uses(const Problem& p, const std::vector<Config>& kernels) {
  std::vector<KernelUse> uses;
  for (const Config& c : kernels) uses.push_back(use_of(p, c));
  return uses;
}

std::unique_ptr<Execution> make_mma_backward(const Problem& p, const plan::CudaChoice& choice) {
  return std::make_unique<MmaBackward>(p, choice.kernels);
}

}  // namespace tilewise::cuda
