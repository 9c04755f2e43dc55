#define TILEWISE_EMULATE
#include <utility>

#include "emulator.h"
#include "kernels/mma/wide_fwd.cuh"
#include "wide_features.h"

namespace tilewise {
namespace {

template <Config F>
bool run(const AttentionParams& p, const Config& config, const emulator::Launch& shape) {
  constexpr Config kForward = [] {
    Config c = F;
    c.dbias = false;
    mma::choose_wide_tiles(c, Kernel::wide_forward);
    return c;
  }();
  if (config != kForward) return false;
  emulator::launch(shape, [&] { mma::wide_forward<kForward>(p); });
  return true;
}

template <size_t... kIndex>
bool run_listed(const AttentionParams& p, const Config& config, const emulator::Launch& shape,
                std::index_sequence<kIndex...>) {
  return (run<kWideFeatures[kIndex]>(p, config, shape) || ...);
}

}  // namespace

void emulate_wide_forward(const AttentionParams& p, const Config& config, const emulator::Launch& shape) {
  if (!run_listed(p, config, shape, std::make_index_sequence<std::size(kWideFeatures)>()))
    throw emulator::Error("config not listed in wide_features.h");
}

}  // namespace tilewise
