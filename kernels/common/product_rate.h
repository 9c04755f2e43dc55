// Arguments and launch of common/product_rate.cuh, for the host and the kernel.
#pragma once

#include "../shared/config.h"

namespace tilewise::common {

struct RateParams {
  float* out;  // one a thread of the launch: what keeps the products from being left out
  i32 steps;
};

// Products of one step: wgmma [Br, d] x [d, Bc] of the block, mma.sync [Br, d] x [d, Bc] of each warp.
constexpr Config rate_config(int arch, Element element) {
  Config c{.family = Family::mma, .kernel = Kernel::product_rate, .element = element};
  if (arch == 90 && element != Element::fp32) {
    c.family = Family::wgmma;
    c.Br = 128, c.Bc = 256, c.d = 64, c.warps = 8, c.min_blocks = 1;
  } else {
    c.Br = 64, c.Bc = 32, c.d = element == Element::fp32 ? 8 : 16, c.warps = 8, c.min_blocks = 2;
  }
  c.dv = c.d;
  return c;
}

constexpr int rate_threads(const Config& c) { return c.warps * 32; }
constexpr int rate_smem_bytes(const Config& c) {
  return c.family == Family::wgmma ? (c.Br + c.Bc) * c.d * 2 : 0;
}
// Of one block in one step; a product of fp32 counts once, though it takes three of tf32.
constexpr double rate_flops(const Config& c) {
  return 2.0 * c.Br * c.Bc * c.d * (c.family == Family::wgmma ? 1 : c.warps);
}

}  // namespace tilewise::common
