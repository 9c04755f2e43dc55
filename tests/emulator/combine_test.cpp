// combine_splits under the emulator against fp64: two tensors, many splits, empty parts full of NaN, in
// place.
#define TILEWISE_EMULATE
#include <cmath>
#include <cstdio>
#include <vector>

#include "emulator.h"
#include "kernels/common/combine_splits.cuh"
#include "kernels/shared/schedule.h"

using namespace tilewise;

namespace {

constexpr Config kFloat{.kernel = Kernel::combine_splits, .element = Element::fp32};
constexpr double kInf = INFINITY;
int failures = 0;
u32 state = 7;
double random_value() {
  state = state * 1664525u + 1013904223u;
  return double(state >> 8) / double(1 << 24) * 4 - 2;
}

void check(int parts, bool in_place) {
  constexpr i64 B = 2, S = 3, H = 2, Dv = 37, kRows = B * S * H;
  std::vector<float> out(size_t(parts * kRows * Dv)), lse(size_t(parts * kRows)), to(size_t(kRows * Dv), NAN),
      to_lse(size_t(kRows), NAN);
  for (i64 n = 0; n < parts; ++n)
    for (i64 r = 0; r < kRows; ++r) {
      const bool empty = (r + n) % 3 == 0 || r == 4;
      const i64 h = r % H, s = r / H % S, b = r / H / S;
      lse[size_t(n * kRows + (b * H + h) * S + s)] = empty ? -INFINITY : float(random_value() * 20);
      for (i64 d = 0; d < Dv; ++d)
        out[size_t((n * kRows + r) * Dv + d)] = empty ? NAN : float(random_value());
    }
  const auto before = out;
  const auto lse_before = lse;
  common::CombineParams p{};
  p.first_out = out.data(), p.more_out = out.data() + kRows * Dv;
  p.first_lse = lse.data(), p.more_lse = lse.data() + kRows;
  p.first_stride = p.more_stride = p.out_stride = {S * H * Dv, H * Dv, Dv, 1};
  p.first_lse_b = p.more_lse_b = p.lse_b = H * S, p.first_lse_h = p.more_lse_h = p.lse_h = S;
  p.first_lse_s = p.more_lse_s = p.lse_s = 1;
  p.out_step = kRows * Dv, p.lse_step = kRows, p.parts = parts, p.part_element = i32(Element::fp32);
  p.out = in_place ? static_cast<void*>(out.data()) : to.data(),
  p.lse = in_place ? lse.data() : to_lse.data();
  p.B = B, p.S = S, p.H = H, p.Dv = Dv;
  const emulator::Registered r0(out.data(), out.size() * 4, "out", true),
      r1(lse.data(), lse.size() * 4, "lse", true), r2(to.data(), to.size() * 4, "to", true),
      r3(to_lse.data(), to_lse.size() * 4, "to_lse", true);
  emulator::launch({.grid = {u32(common::combine_blocks(p)), 1, 1}, .threads = common::kCombineThreads},
                   [&] { common::combine_splits<kFloat>(p); });
  const float *got = static_cast<float*>(p.out), *got_lse = p.lse;
  for (i64 b = 0; b < B; ++b)
    for (i64 s = 0; s < S; ++s)
      for (i64 h = 0; h < H; ++h) {
        const i64 row = (b * S + s) * H + h, at = (b * H + h) * S + s;
        double largest = -kInf, sum = 0;
        int full = 0;
        for (i64 n = 0; n < parts; ++n)
          largest = std::fmax(largest, double(lse_before[size_t(n * kRows + at)]));
        for (i64 n = 0; n < parts; ++n) {
          const double l = lse_before[size_t(n * kRows + at)];
          if (l != -kInf) sum += std::exp(l - largest), ++full;
        }
        const double want_lse = full ? largest + std::log(sum) : -kInf;
        bool ok = full ? std::fabs(got_lse[at] - want_lse) <= 2e-6 * (1 + std::fabs(want_lse))
                       : got_lse[at] == -INFINITY;
        for (i64 d = 0; d < Dv; ++d) {
          double want = 0;
          for (i64 n = 0; n < parts; ++n) {
            const double l = lse_before[size_t(n * kRows + at)];
            if (l != -kInf)
              want += std::exp(l - want_lse) * double(before[size_t((n * kRows + row) * Dv + d)]);
          }
          const float x = got[row * Dv + d];
          ok = ok && (full <= 1 ? double(x) == want || full == 1 : std::fabs(double(x) - want) <= 2e-6);
          if (full == 1)  // the identity, bit for bit
            for (i64 n = 0; n < parts; ++n)
              if (double(lse_before[size_t(n * kRows + at)]) != -kInf)
                ok = ok && x == before[size_t((n * kRows + row) * Dv + d)];
        }
        if (!ok) {
          std::printf("FAILED: %d parts, in place %d, b %ld s %ld h %ld\n", parts, in_place, b, s, h);
          ++failures;
        }
      }
}

}  // namespace

int main() {
  for (const int parts : {1, 2, 5})
    for (const bool in_place : {false, true}) check(parts, in_place);
  std::printf(failures ? "%d failures\n" : "combine: all passed\n", failures);
  return failures != 0;
}
