// The tensor-core rate probes in the emulator: what they compute is what they say they count.
#define TILEWISE_EMULATE
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "emulator.h"
#include "hopper.h"
#include "kernels/common/product_rate.cuh"

namespace tilewise {
namespace {

constexpr u32 kBlocks = 2;

// Each thread's sum of accumulators after so many steps.
template <Config C>
std::vector<float> sums(int steps) {
  std::vector<float> out(size_t(kBlocks) * common::rate_threads(C), NAN);
  const emulator::Registered registered(out.data(), out.size() * sizeof(float), "out", true);
  const common::RateParams p{out.data(), steps};
  emulator::launch({.grid = {kBlocks, 1, 1},
                    .threads = u32(common::rate_threads(C)),
                    .shared_bytes = u32(common::rate_smem_bytes(C))},
                   [&] {
                     if constexpr (C.family == Family::wgmma)
                       common::wgmma_rate<C>(p);
                     else
                       common::mma_rate<C>(p);
                   });
  return out;
}

template <int arch, Element E>
void expect_products() {
  constexpr Config c = common::rate_config(arch, E);
  const std::vector<float> once = sums<c>(1), thrice = sums<c>(3);
  float largest = 0;
  for (size_t i = 0; i < once.size(); ++i) {
    ASSERT_NEAR(thrice[i], 3 * once[i], 1e-3) << i;  // every step adds the same products
    largest = std::max(largest, std::fabs(once[i]));
  }
  EXPECT_GT(largest, 1);
  EXPECT_LT(largest, 500);  // random signs: nowhere near the number of terms
}

TEST(ProductRate, StepsAddUp) {
  expect_products<80, Element::bf16>();
  expect_products<80, Element::fp16>();
  expect_products<90, Element::fp32>();
  expect_products<90, Element::bf16>();
  expect_products<90, Element::fp16>();
}

TEST(ProductRate, OperationsOfAStep) {
  EXPECT_EQ(common::rate_flops(common::rate_config(90, Element::bf16)), 2.0 * 2 * 4 * 64 * 256 * 16);
  EXPECT_EQ(common::rate_flops(common::rate_config(80, Element::bf16)), 2.0 * 8 * 16 * 16 * 8 * 16);
  EXPECT_EQ(common::rate_flops(common::rate_config(90, Element::fp32)), 2.0 * 8 * 16 * 16 * 8 * 8);
}

}  // namespace
}  // namespace tilewise
