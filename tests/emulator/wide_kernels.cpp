#define TILEWISE_EMULATE
#include "wide_kernels.h"

#include <utility>

#include "kernels/common/bwd_convert.cuh"
#include "kernels/common/bwd_prepare.cuh"
#include "kernels/mma/bwd_repair.cuh"
#include "kernels/mma/bwd_statistics.cuh"
#include "kernels/mma/wide_bwd.cuh"
#include "wide_features.h"

namespace tilewise {

void emulate_wide_forward(const AttentionParams& p, const Config& config, const emulator::Launch& shape);

namespace {

template <Config F>
bool run(const AttentionParams& p, const common::DbiasParams& dbias, const Config& config,
         const emulator::Launch& shape) {
  constexpr auto kWide = [](Kernel kernel, bool with_dbias) {
    Config c = F;
    c.dbias = with_dbias && c.dbias;
    mma::choose_wide_tiles(c, kernel);
    return c;
  };
  constexpr auto kAround = [](Kernel kernel) {
    Config c = F;
    c.dv = 512, c.deterministic = true;
    return mma::around_backward(kernel, c);
  };
  constexpr Config kDkv = kWide(Kernel::wide_dkv, true), kDkvAlone = kWide(Kernel::wide_dkv, false),
                   kDq = kWide(Kernel::wide_dq, false), kDbias = kWide(Kernel::wide_dbias, false),
                   kPrepare = kAround(Kernel::backward_prepare),
                   kStatistics = kAround(Kernel::backward_statistics), kSink = kAround(Kernel::backward_sink),
                   kRepair = kAround(Kernel::backward_repair), kConvert = kAround(Kernel::backward_dbias);
  if (config == kDkv)
    emulator::launch(shape, [&] { mma::wide_dkv<kDkv>(p); });
  else if (config == kDkvAlone)
    emulator::launch(shape, [&] { mma::wide_dkv<kDkvAlone>(p); });
  else if (config == kDq)
    emulator::launch(shape, [&] { mma::wide_dq<kDq>(p); });
  else if (config == kDbias)
    emulator::launch(shape, [&] { mma::wide_dbias<kDbias>(p); });
  else if (config == kPrepare)
    emulator::launch(shape, [&] { common::bwd_prepare<kPrepare>(p); });
  else if (F.bias && config == kStatistics)
    emulator::launch(shape, [&] { mma::backward_statistics<kStatistics>(p); });
  else if (config == kSink)
    emulator::launch(shape, [&] { common::reduce_sink<kSink>(p); });
  else if (config == kRepair)
    emulator::launch(shape, [&] { mma::backward_repair<kRepair>(p); });
  else if (config == kConvert)
    emulator::launch(shape, [&] { common::convert_dbias<kConvert>(dbias); });
  else
    return false;
  return true;
}

template <size_t... kIndex>
bool run_listed(const AttentionParams& p, const common::DbiasParams& dbias, const Config& config,
                const emulator::Launch& shape, std::index_sequence<kIndex...>) {
  return (run<kWideFeatures[kIndex]>(p, dbias, config, shape) || ...);
}

}  // namespace

void emulate_wide(const AttentionParams& p, const common::DbiasParams& dbias, const Config& config,
                  const emulator::Launch& shape) {
  if (config.kernel == Kernel::wide_forward) return emulate_wide_forward(p, config, shape);
  if (!run_listed(p, dbias, config, shape, std::make_index_sequence<std::size(kWideFeatures)>()))
    throw emulator::Error("config not listed in wide_features.h");
}

}  // namespace tilewise
