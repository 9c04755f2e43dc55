// Tile sizes of the mma family and what follows from them: the one table that planner, launcher, kernels and
// tests share. No device code.
#pragma once

#include "../shared/config.h"
#include "../shared/schedule.h"

namespace tilewise::mma {

constexpr int threads(const Config& c) { return c.warps * 32; }

constexpr int tile_dim(int d) {  // the head dim in shared memory: padded with zeros
  constexpr int kSizes[] = {32, 64, 96, 128, 192, 256};
  for (int size : kSizes)
    if (d <= size) return size;
  return 0;  // beyond the family
}

namespace forward_tiles {

constexpr int rows_per_warp(const Config& c) { return c.Br / c.warps; }
constexpr int element_bytes(const Config& c) { return c.element == Element::fp32 ? 4 : 2; }

// Q stays in registers while the fragments of Q, S and O leave room for the rest.
constexpr bool query_in_registers(const Config& c) {
  const int tiles = rows_per_warp(c) / 16;
  const int q = tiles * c.d / 4, s = tiles * c.Bc / 2, o = tiles * c.dv / 2;
  const int cap = 65536 / (threads(c) * c.min_blocks) < 255 ? 65536 / (threads(c) * c.min_blocks) : 255;
  return c.element != Element::fp32 && q + s + o + 40 <= cap;
}

}  // namespace forward_tiles

// Bytes of dynamic shared memory: Q and `stages` buffers of K and V; O leaves through the same space.
constexpr int forward_smem_bytes(const Config& c) {
  const int e = forward_tiles::element_bytes(c);
  const int q = c.Br * c.d * e, kv = c.stages * c.Bc * (c.d + c.dv) * e, o = c.Br * c.dv * e;
  return q + kv > o ? q + kv : o;
}

// Fills the tile of a forward whose element and features are set; false when the head dims are beyond the
// family.
constexpr bool choose_forward_tiles(Config& c, int D, int Dv, int smem_limit) {
  c.family = Family::mma;
  c.kernel = Kernel::forward;
  c.d = tile_dim(D), c.dv = tile_dim(Dv);
  if (!c.d || !c.dv) return false;
  const int widest = c.d > c.dv ? c.d : c.dv;
  c.warps = 4;
  if (c.element == Element::fp32) {
    c.Br = 64, c.Bc = widest <= 64 ? 64 : 32, c.stages = 1, c.min_blocks = widest <= 128 ? 2 : 1;
    if (widest > 128) c.Bc = 16;
  } else {
    c.Br = widest <= 128 ? 128 : 64, c.Bc = 64, c.stages = widest <= 128 ? 2 : 1;
    c.min_blocks = widest <= 64 ? 3 : 2;
  }
  // Less shared memory: first without the second stage, then with shorter tiles.
  while (forward_smem_bytes(c) > smem_limit) {
    if (c.stages > 1)
      c.stages = 1;
    else if (c.Bc > 16)
      c.Bc /= 2;
    else
      return false;
  }
  return true;
}

constexpr Grid forward_grid(const Config& c, const AttentionParams& p) {
  return fold_grid(u64(query_tiles(p, c.Br)) * u64(p.B) * u64(p.H));
}

}  // namespace tilewise::mma
