#include "cuda/probe.h"

#include <algorithm>

#include "core/error.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernels.h"
#include "kernels/common/product_rate.h"

namespace tilewise::cuda {
namespace {

constexpr double kWindow = 2e-3;                  // seconds that a measurement lasts
constexpr size_t kCopyBytes = size_t{256} << 20;  // several times what any L2 cache holds

}  // namespace

ProductRate::ProductRate(int ordinal, Element element)
    : device_(ordinal),
      config_(common::rate_config(device(ordinal).capability(), element)),
      shape_{.grid = {unsigned(device(ordinal).multiprocessors * config_.min_blocks), 1, 1},
             .threads = unsigned(common::rate_threads(config_)),
             .shared_bytes = unsigned(common::rate_smem_bytes(config_))},
      sums_(ordinal, size_t(shape_.grid[0]) * shape_.threads * sizeof(float)),
      timer_(ordinal) {
  const CurrentDevice current(ordinal);
  function_ = load_kernel(config_, device(ordinal), current.context(), int(shape_.shared_bytes));
  constexpr int kFirst = 256;
  run(kFirst);
  steps_ = std::clamp(int(kFirst * kWindow / std::max(run(kFirst), 1e-7)), 1, 1 << 20);
}

double ProductRate::run(int steps) {
  const common::RateParams p{.out = reinterpret_cast<float*>(sums_.data()), .steps = steps};
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&p))};
  timer_.start(nullptr);
  {
    const CurrentDevice current(device_);
    launch(function_, shape_, arguments, nullptr, "the kernel that measures the tensor cores' rate");
  }
  timer_.stop(nullptr);
  return timer_.seconds();
}

double ProductRate::measure() { return shape_.grid[0] * common::rate_flops(config_) * steps_ / run(steps_); }

std::string ProductRate::meaning() const {
  if (config_.family == Family::wgmma)
    return cat("wgmma m64n256k16 ", name_of(config_.element), " from shared memory");
  if (config_.element == Element::fp32)
    return "mma.sync m16n8k8 tf32 in registers, three for a product of fp32";
  return cat("mma.sync m16n8k16 ", name_of(config_.element), " in registers");
}

CopyRate::CopyRate(int ordinal)
    : device_(ordinal), from_(ordinal, kCopyBytes), to_(ordinal, kCopyBytes), timer_(ordinal) {
  for (const DeviceBuffer* b : {&from_, &to_}) {
    const CurrentDevice current(ordinal);
    fill_zero(b->data(), b->bytes(), nullptr);
  }
  measure();
}

double CopyRate::measure() {
  constexpr int kCopies = 8;
  timer_.start(nullptr);
  for (int i = 0; i < kCopies; ++i) copy_on_device(device_, to_.data(), from_.data(), kCopyBytes, nullptr);
  timer_.stop(nullptr);
  return 2.0 * kCopies * double(kCopyBytes) / timer_.seconds();
}

}  // namespace tilewise::cuda
