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

// Features that take registers from a backward, each for itself.
constexpr int backward_features(const Config& c) {
  return c.softcap + c.alibi + c.bias + c.boolean_mask + c.dropout + c.strided + c.dbias;
}
// Where these take so many that kernels make anew in each step what they keep elsewhere: 16 bits hold one.
constexpr bool backward_crowded(const Config& c) {
  return c.element == Element::fp32 ? backward_features(c) > 0 : backward_features(c) + c.varlen > 1;
}

namespace backward_tiles {

// `light`: nothing is read for each score, and a softcap and dropout are not both there. `plain`: no feature
// that keeps more than one register per score; a tile with 64 scores a thread leaves no room for more.
// `plain_masked`: plain with a mask, atomic dQ and head dims of 128 alone: this tile has not a register more.
enum class When { always, light, plain, plain_masked };

struct Tile {
  int largest_dim;
  When when;
  int Br, Bc, warps, stages, warps_s, warps_dkv, warps_dq, min_blocks;
};

// The first that fits, in the order in which they were measured to be fast on an H200 (docs/measurements.md);
// the ones with less shared memory serve the devices that have less.
inline constexpr Tile kHalf[] = {
    {64, When::plain, 32, 128, 4, 2, 4, 4, 2, 2},  {64, When::always, 64, 64, 4, 2, 4, 4, 2, 2},
    {64, When::always, 64, 64, 4, 1, 4, 4, 2, 1},  {128, When::plain_masked, 128, 128, 8, 1, 2, 4, 4, 1},
    {128, When::light, 64, 128, 8, 2, 4, 4, 2, 1}, {128, When::light, 64, 128, 8, 2, 4, 4, 4, 1},
    {128, When::always, 64, 64, 8, 2, 4, 4, 2, 1}, {128, When::always, 64, 64, 8, 2, 4, 4, 4, 1},
    {128, When::always, 64, 64, 8, 1, 4, 4, 2, 1}, {128, When::always, 64, 64, 8, 1, 4, 4, 4, 1},
    {192, When::plain, 128, 64, 8, 1, 2, 2, 4, 1}, {256, When::plain, 128, 64, 8, 1, 4, 2, 4, 1},
    {256, When::always, 64, 64, 8, 2, 4, 2, 2, 1}, {256, When::always, 64, 64, 8, 1, 4, 2, 2, 1},
    {256, When::always, 64, 64, 8, 1, 4, 4, 4, 1}, {256, When::always, 32, 32, 4, 1, 2, 2, 2, 1},
};
inline constexpr Tile kFloat[] = {
    {64, When::always, 32, 64, 4, 2, 2, 2, 2, 1},  {128, When::always, 32, 64, 8, 1, 4, 4, 2, 1},
    {128, When::always, 32, 32, 4, 1, 2, 2, 2, 1}, {256, When::always, 32, 32, 4, 1, 2, 2, 2, 1},
    {256, When::always, 32, 16, 2, 1, 1, 1, 2, 1},
};

constexpr bool suits(const Tile& t, const Config& c, const TileRoom& room) {
  const bool plain = !c.softcap && !c.alibi && !c.bias && !c.boolean_mask && !c.dropout && !c.strided;
  switch (t.when) {
    case When::always: return true;
    case When::light: return !c.bias && !c.boolean_mask && !(c.softcap && c.dropout);
    case When::plain: return plain;
    case When::plain_masked:
      return plain && c.masked && !c.deterministic && c.d == 128 && c.dv == 128 && !room.fewer_registers;
  }
  return false;
}

}  // namespace backward_tiles

// Fills the tile of a backward whose element, dims and features are set; false when nothing fits.
constexpr bool choose_backward_tiles(Config& c, int D, int Dv, const TileRoom& room) {
  c.family = Family::mma;
  c.kernel = Kernel::backward;
  c.d = tile_dim(D), c.dv = tile_dim(Dv);
  if (!c.d || !c.dv) return false;
  const int widest = c.d > c.dv ? c.d : c.dv;
  const auto fits = [&](const backward_tiles::Tile& t) {
    c.Br = t.Br, c.Bc = t.Bc, c.warps = t.warps, c.stages = t.stages, c.min_blocks = t.min_blocks;
    c.warps_s = t.warps_s, c.warps_dkv = t.warps_dkv, c.warps_dq = t.warps_dq;
    const int dkv_groups = c.warps / c.warps_dkv, dq_groups = c.warps / c.warps_dq;  // warps side by side
    const bool divides =
        c.d % (16 * dkv_groups) == 0 && c.dv % (16 * dkv_groups) == 0 && c.d % (16 * dq_groups) == 0;
    return widest <= t.largest_dim && divides && backward_tiles::suits(t, c, room) &&
           backward_smem_bytes(c) <= room.shared_memory;
  };
  if (c.element == Element::fp32) {
    for (const auto& t : backward_tiles::kFloat)
      if (fits(t)) return true;
  } else {
    for (const auto& t : backward_tiles::kHalf)
      if (fits(t)) return true;
  }
  return false;
}

// The dQ kernel of the deterministic backward (bwd_dq.cuh): 16 query rows a warp.
constexpr int backward_dq_threads(const Config& c) { return c.warps * 32; }

// dS goes through the shared memory of V_j where registers are short: as constants in them, depth cannot be a
// loop.
constexpr bool backward_dq_ds_shared(const Config& c) {
  const bool features = c.softcap || c.alibi || c.bias || c.boolean_mask || c.dropout || c.strided;
  const int most = features ? 64 : 128;
  return c.element == Element::fp32 && (c.d > most || c.dv > most) && c.dv >= c.Br;
}

// Bytes of dynamic shared memory: Q, dO, `stages` buffers of K and V.
constexpr int backward_dq_smem_bytes(const Config& c) {
  return (c.Br + c.stages * c.Bc) * (c.d + c.dv) * (c.element == Element::fp32 ? 4 : 2);
}

constexpr u64 backward_dq_blocks(const Config& c, i64 B, i64 H, i64 Sq) {
  return tile_blocks(c.Br, Sq, H, B);
}

// Can a mask hide a NaN from some of a tile's rows, so that gradients must be looked at (bwd_repair.cuh)?
constexpr bool repairs(const Config& c) { return c.masked || c.boolean_mask; }

// A kernel around the main ones. Of their config only what it reads, so that problems share compiled kernels.
constexpr Config around_backward(Kernel kernel, const Config& main) {
  Config c;
  c.kernel = kernel;
  if (kernel == Kernel::backward_dbias) return c;  // element types at run time
  c.element = main.element, c.varlen = main.varlen;
  if (kernel == Kernel::backward_prepare) {
    c.dv = main.dv, c.deterministic = main.deterministic;
    if (!c.deterministic) c.d = main.d;
  } else if (kernel == Kernel::backward_convert) {
    c.d = main.d;
  }
  const bool repairing = kernel == Kernel::backward_repair || kernel == Kernel::backward_convert;
  if (kernel == Kernel::backward_statistics || (repairing && repairs(main))) {
    c.masked = main.masked, c.softcap = main.softcap, c.alibi = main.alibi, c.bias = main.bias;
    c.boolean_mask = main.boolean_mask, c.dropout = repairing && main.dropout;
  }
  return c;
}

// A launch of its own where no convert kernel comes last: a warp takes one row after another. Few blocks:
// nearly always there is nothing to repair, and what remains is the cost of a launch.
inline constexpr int kRepairThreads = 256, kRepairRows = kRepairThreads / 32;
inline constexpr u64 kRepairBlocks = 64;

constexpr u64 backward_repair_blocks(i64 B, i64 H, i64 Hk, i64 Sq, i64 Sk) {
  constexpr u64 kRows = kRepairThreads / 32;
  if (B * H * Sq == 0) return 0;
  const u64 blocks = (u64(B) * (u64(H) * u64(Sq) + u64(Hk) * u64(Sk)) + kRows - 1) / kRows;
  return blocks < kRepairBlocks ? blocks : kRepairBlocks;
}

// The statistics kernel: a warp a row, of so many rows a thread block.
inline constexpr int kStatisticsThreads = 256, kStatisticsRows = 64;

constexpr u64 backward_statistics_blocks(i64 B, i64 H, i64 Sq) {
  return tile_blocks(kStatisticsRows, Sq, H, B);
}

constexpr bool choose_backward_dq_tiles(Config& c, int D, int Dv, int smem_limit) {
  c.family = Family::mma;
  c.kernel = Kernel::backward_dq;
  c.d = tile_dim(D), c.dv = tile_dim(Dv);
  if (!c.d || !c.dv) return false;
  const int widest = c.d > c.dv ? c.d : c.dv;
  const bool fp32 = c.element == Element::fp32;
  const bool short_of_registers = widest > 128 || fp32 || (c.softcap && backward_crowded(c));
  c.warps = 4, c.Bc = short_of_registers ? 32 : 64, c.stages = 2,
  c.min_blocks = widest <= 128 && !fp32 ? 2 : 1;
  c.Br = c.warps * 16;
  while (backward_dq_smem_bytes(c) > smem_limit) {
    if (c.stages > 1)
      c.stages = 1;
    else if (c.Bc > 16)
      c.Bc /= 2;
    else if (c.warps > 1)
      c.warps /= 2, c.Br /= 2;
    else
      return false;
  }
  return true;
}

}  // namespace tilewise::mma
