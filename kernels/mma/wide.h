// The wide kernels: FlashAttention-2 for head dims that no tile holds. A thread block takes 64 queries and 64
// keys at a time; Q, K, dO and V stream through shared memory in pieces of `d` columns, and a block owns `dv`
// columns of its output (O, dQ, or dK and dV), so that S is computed once for every such group of columns.
// One compiled kernel serves all head dims. What host and kernels share; no device code.
#pragma once

#include "../shared/backward_layout.h"
#include "../shared/config.h"

namespace tilewise::mma {

inline constexpr int kWideRows = 64, kWideThreads = 128;

// Fills pieces and columns of a config whose element and features are set.
constexpr void choose_wide_tiles(Config& c, Kernel kernel) {
  c.family = Family::mma;
  c.kernel = kernel;
  const bool fp32 = c.element == Element::fp32;
  c.d = fp32 ? 32 : 64;
  // Registers decide, and what NVRTC takes: dkv keeps P, dS and two outputs.
  const bool dkv = kernel == Kernel::wide_dkv, both = c.softcap && c.dropout;
  const bool several = c.softcap + c.alibi + c.bias + c.boolean_mask + c.dropout + c.varlen + c.strided > 1;
  const bool narrow = kernel == Kernel::wide_dbias || (dkv && (fp32 ? c.softcap || c.dropout : both));
  c.dv = narrow ? 32 : fp32 || (dkv && (c.softcap || c.dbias || several)) ? 64 : 128;
  c.Br = c.Bc = kWideRows;
  c.warps = kWideThreads / 32, c.stages = 2, c.min_blocks = 1;
}

// Tiles of `dv` columns that a block needs beside the pieces: V · K · Q and dO · (dbias) sums of its warps.
constexpr int wide_column_tiles(Kernel kernel) { return kernel == Kernel::wide_dkv ? 2 : 1; }

constexpr int wide_smem_bytes(const Config& c) {
  const int e = c.element == Element::fp32 ? 4 : 2;
  // dkv: P waits there for dS; in registers it would take those of the sums.
  const int scores = c.kernel == Kernel::wide_dkv ? kWideRows : 0;
  return kWideRows * e * (2 * c.stages * c.d + wide_column_tiles(c.kernel) * c.dv + scores);
}

constexpr i32 wide_column_groups(const Config& c, i32 columns) { return (columns + c.dv - 1) / c.dv; }

// columns: of the output, the larger ones of dK and dV.
constexpr u64 wide_blocks(const Config& c, i64 B, i64 heads, i64 length, i32 columns) {
  return tile_blocks(kWideRows, length, heads, B) * u64(wide_column_groups(c, columns));
}

struct WideWork {
  i32 first, column;  // first row of the tile, first column of the output
  i32 h, b;
  bool none;
};

// n / d. NVRTC calls a function for the quotient of two u64, which takes registers from the kernel's loop.
constexpr u64 quotient(u64 n, u32 d) {
  if (n >> 32 == 0) return u32(n) / d;
  u64 part = d, bit = 1, q = 0;
  while (part <= n / 2) part *= 2, bit *= 2;
  for (; bit; bit /= 2, part /= 2)
    if (n >= part) n -= part, q += bit;
  return q;
}

constexpr WideWork wide_work(const Config& c, u64 block, i32 B, i32 heads, i32 length, i32 columns) {
  const u32 groups = u32(wide_column_groups(c, columns)), tiles = u32(length + kWideRows - 1) / kWideRows;
  const u64 tile = quotient(block, groups), head = quotient(tile, tiles), batch = quotient(head, u32(heads));
  return {i32(tile - head * tiles) * kWideRows, i32(block - tile * groups) * c.dv,
          i32(head - batch * u32(heads)), i32(batch), batch >= u64(B)};
}

// wide_dbias: dbias where a bias broadcasts and the sum must be deterministic. A block owns 64 x 64 scores of
// dbias and adds up dS over the dimensions in which it broadcasts (dbias_stride 0), in `parts` that share
// those sums out and that convert_dbias adds up in order: enough blocks also for a bias of one element.
struct DbiasWork {
  i64 b, h, i, j;                  // batches, heads, tiles of queries and keys in dbias
  i64 sum_b, sum_h, sum_i, sum_j;  // and of which each element is a sum
  i64 parts, elements;

  constexpr i64 tiles() const { return b * h * i * j; }
  constexpr i64 terms() const { return sum_b * sum_h * sum_i * sum_j; }
};

constexpr DbiasWork dbias_work(const AttentionParams& p) {
  const ScoreStrides& s = p.dbias_stride;
  const auto tiles = [](i64 length) { return (length + kWideRows - 1) / kWideRows; };
  DbiasWork w{};
  w.b = s.b ? p.B : 1, w.sum_b = s.b ? 1 : p.B;
  w.h = s.h ? p.H : 1, w.sum_h = s.h ? 1 : p.H;
  w.i = s.i ? tiles(p.dbias_rows) : 1, w.sum_i = s.i ? 1 : tiles(p.Sq);
  w.j = s.j ? tiles(p.dbias_columns) : 1, w.sum_j = s.j ? 1 : tiles(p.Sk);
  w.elements = w.b * w.h * p.dbias_rows * p.dbias_columns;
  constexpr i64 kBlocks = 512;
  const i64 parts = w.tiles() > 0 ? kBlocks / w.tiles() : 1;
  w.parts = parts < w.terms() ? parts : w.terms();
  if (w.parts < 1) w.parts = 1;
  return w;
}

}  // namespace tilewise::mma
