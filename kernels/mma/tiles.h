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
  const bool plain = !(c.softcap || c.alibi || c.bias || c.boolean_mask || c.dropout || c.strided);
  return c.element != Element::fp32 && q + s + o + (plain ? 48 : 80) <= cap;
}

}  // namespace forward_tiles

// Bytes of dynamic shared memory: Q and `stages` buffers of K and V; O leaves through the same space.
constexpr int forward_smem_bytes(const Config& c) {
  const int e = forward_tiles::element_bytes(c);
  const int q = c.Br * c.d * e, kv = c.stages * c.Bc * (c.d + c.dv) * e, o = c.Br * c.dv * e;
  return q + kv > o ? q + kv : o;
}

// What a GPU has for a thread block's tile.
struct TileRoom {
  int shared_memory;  // bytes
  // sm_100 and up: NVRTC's code for the same loop takes some registers more, and what fits to the last one
  // elsewhere spills.
  bool fewer_registers = false;

  constexpr TileRoom(int bytes, int arch = 0) : shared_memory(bytes), fewer_registers(arch >= 100) {}
};

// Fills the tile of a forward whose element and features are set; false when the head dims are beyond the
// family.
constexpr bool choose_forward_tiles(Config& c, int D, int Dv, const TileRoom& room) {
  c.family = Family::mma;
  c.kernel = Kernel::forward;
  c.d = tile_dim(D), c.dv = tile_dim(Dv);
  if (!c.d || !c.dv) return false;
  // docs/measurements.md has what the choices were measured against.
  const int widest = c.d > c.dv ? c.d : c.dv;
  const bool per_element = c.bias || c.boolean_mask || c.dropout;  // these need registers: 16 rows a warp
  c.warps = 4, c.Br = 128, c.Bc = 64, c.stages = 2, c.min_blocks = 2;
  if (c.element == Element::fp32) {
    c.Br = 64, c.stages = 1;
    c.Bc = widest <= 64 && !per_element ? 64 : widest <= 128 ? 32 : 16;
    c.min_blocks = widest <= 128 ? 2 : 1;
  } else if (widest > 192) {
    c.stages = 1;
    if (c.masked || per_element)
      c.Br = 64, c.Bc = per_element ? 32 : 64;
    else
      c.warps = 8, c.min_blocks = 1;
  } else if (widest > 128) {
    c.Br = 64, c.stages = 1;
    if (per_element) c.Bc = 32;
  } else if (per_element) {
    c.Br = 64;
  } else if (widest > 64 && (c.softcap || c.alibi || (room.fewer_registers && c.masked && widest > 96))) {
    c.Bc = 32;
  } else if (widest <= 64 && c.masked && !c.softcap && !c.alibi && !room.fewer_registers) {
    c.min_blocks = 3;
  }
  // Less shared memory than an H100's: give up the second stage, then shorten the key blocks, while
  // min_blocks do not fit a multiprocessor (which has 1 KB more than a block may use, and takes 1 KB a block
  // for itself).
  while (c.min_blocks * (forward_smem_bytes(c) + 1024) > room.shared_memory + 1024) {
    if (c.stages > 1)
      c.stages = 1;
    else if (c.Bc > 16)
      c.Bc /= 2;
    else if (c.min_blocks > 1)
      --c.min_blocks;
    else
      return false;
  }
  return true;
}

constexpr Grid forward_grid(const Config& c, const AttentionParams& p) {
  return fold_grid(u64(query_tiles(p, c.Br)) * u64(p.B) * u64(p.H));
}

}  // namespace tilewise::mma
