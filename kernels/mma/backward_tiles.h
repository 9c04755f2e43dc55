// Tile sizes of the mma family's backward and what follows from them: shared by planner, launcher, kernels
// and tests. No device code.
#pragma once

#include "../shared/backward_layout.h"
#include "../shared/config.h"
#include "tiles.h"

namespace tilewise::mma {

constexpr int backward_threads(const Config& c) { return c.warps * 32; }

// P^T and dS^T as accumulated are the A operands of dV and dK: one warp owns all queries of its keys.
constexpr bool backward_direct(const Config& c) {
  return c.element != Element::fp32 && c.warps_s == c.warps && c.warps_dkv == c.warps;
}

// Bytes of dynamic shared memory: K, V, `stages` buffers of Q, dO, lse and delta, then dS^T and P^T.
constexpr int backward_smem_bytes(const Config& c) {
  const int e = c.element == Element::fp32 ? 4 : 2, dims = c.d + c.dv, scores = c.Bc * c.Br * e;
  const int tiles = (c.Bc + c.stages * c.Br) * dims * e + scores + (backward_direct(c) ? 16 : scores);
  return (tiles + c.stages * c.Br * 8 + 127) / 128 * 128;
}

constexpr u64 backward_blocks(const Config& c, i64 B, i64 Hk, i64 Sk) { return tile_blocks(c.Bc, Sk, Hk, B); }

// Fills the tile of a backward whose element, dims and features are set; false when nothing fits.
constexpr bool choose_backward_tiles(Config& c, int D, int Dv, int smem_limit) {
  struct Tile {
    int largest_dim, Br, Bc, warps, stages, warps_s, warps_dkv, warps_dq;
  };
  constexpr Tile kHalf[] = {
      {64, 64, 128, 8, 2, 4, 4, 4},  {64, 64, 64, 4, 2, 2, 2, 2},  {128, 64, 128, 8, 2, 4, 4, 4},
      {128, 64, 128, 8, 1, 4, 4, 4}, {128, 64, 64, 8, 1, 4, 4, 4}, {256, 64, 64, 8, 2, 4, 2, 2},
      {256, 64, 64, 8, 1, 4, 2, 2},  {256, 32, 32, 4, 1, 2, 2, 2},
  };
  constexpr Tile kFloat[] = {
      {64, 32, 64, 4, 2, 2, 2, 2},  {128, 32, 64, 8, 1, 4, 4, 2}, {128, 32, 64, 4, 1, 4, 4, 2},
      {128, 32, 32, 4, 1, 2, 2, 2}, {256, 32, 32, 4, 1, 2, 2, 2}, {192, 32, 16, 2, 1, 1, 1, 2},
  };
  c.family = Family::mma;
  c.kernel = Kernel::backward;
  c.d = tile_dim(D), c.dv = tile_dim(Dv);
  if (!c.d || !c.dv) return false;
  const int widest = c.d > c.dv ? c.d : c.dv;
  const auto fits = [&](const Tile& t) {
    c.Br = t.Br, c.Bc = t.Bc, c.warps = t.warps, c.stages = t.stages;
    c.warps_s = t.warps_s, c.warps_dkv = t.warps_dkv, c.warps_dq = t.warps_dq;
    c.min_blocks = 1;
    const int dkv_groups = c.warps / c.warps_dkv, dq_groups = c.warps / c.warps_dq;  // warps side by side
    const bool divides =
        c.d % (16 * dkv_groups) == 0 && c.dv % (16 * dkv_groups) == 0 && c.d % (16 * dq_groups) == 0;
    return widest <= t.largest_dim && divides && backward_smem_bytes(c) <= smem_limit;
  };
  if (c.element == Element::fp32) {
    for (const Tile& t : kFloat)
      if (fits(t)) return true;
  } else {
    for (const Tile& t : kHalf)
      if (fits(t)) return true;
  }
  return false;
}

}  // namespace tilewise::mma
