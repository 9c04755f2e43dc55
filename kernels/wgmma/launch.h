// What the host must know to launch the wgmma forward, as plain data: tile table, shared memory, tensor maps,
// tile order. Shared with the kernel.
#pragma once

#include "../shared/config.h"
#include "../shared/params.h"
#include "../shared/schedule.h"
#include "../shared/tensor_map.h"

namespace tilewise::wgmma {

inline constexpr int kGroupRows = 64;         // query rows of a warpgroup
inline constexpr int kTileSlots = 4;          // tiles that a thread block keeps
inline constexpr int kMaxTiles = 256;         // that one thread block works on
inline constexpr int kWarpRows = 16;          // of them, of a warp
inline constexpr int kSmemBytes = 227 << 10;  // of a thread block
inline constexpr int kSwizzleCols = 64;       // 16-bit columns of a 128-byte swizzled box

// The kernel's second argument, after AttentionParams.
struct ForwardLaunch {
  TensorMap q, k, v, out;  // query_map(), key_value_map(), query_map() of a warp's rows
  TileOrder order;         // of packed heads
  u32 section_keys;        // sequences of different lengths: as many keys of all heads fit the L2 cache
  // 2^pack_log2 query heads that share a key/value head are one packed head with as many times the rows: its
  // row r is query r >> pack_log2 of head (packed head << pack_log2) + the low bits of r.
  i32 pack_log2;
  u32* tile_counter;  // workspace, zero before the launch; null: tiles are taken in turn
};

constexpr int groups(const Config& c) { return c.warps / 4; }
constexpr int threads(const Config& c) { return 128 + 32 * c.warps; }
constexpr int column_boxes(int columns) { return (columns + kSwizzleCols - 1) / kSwizzleCols; }

// Dynamic shared memory: Q, `stages` buffers of K and of V, barriers and the tiles at hand, and for each warp
// 16 rows of O on their way out, in as many boxes of columns as there is room for.
constexpr int inputs_smem_bytes(const Config& c) {
  const int q = c.Br * column_boxes(c.d), kv = c.stages * c.Bc * (column_boxes(c.d) + column_boxes(c.dv));
  return (q + kv) * 128 + 3072;
}
constexpr int stage_boxes(const Config& c) {
  const int room = (kSmemBytes - inputs_smem_bytes(c)) / (c.warps * kWarpRows * kSwizzleCols * 2);
  return room < column_boxes(c.dv) ? room : column_boxes(c.dv);
}
constexpr int forward_smem_bytes(const Config& c) {
  return inputs_smem_bytes(c) + c.warps * stage_boxes(c) * kWarpRows * kSwizzleCols * 2;
}

// The head dim in shared memory: padded with zeros. 0: beyond the family.
constexpr int tile_dim(int d) {
  return d <= 64 ? 64 : d <= 96 ? 96 : d <= 128 ? 128 : d <= 192 ? 192 : d <= 256 ? 256 : 0;
}

// Fills the tile of a forward whose element and features are set. rows: of a packed head; keys: of a
// sequence. False beyond head dim 256 and for fp32.
constexpr bool choose_forward_tiles(Config& c, int D, int Dv, i64 rows, i64 keys) {
  c.family = Family::wgmma;
  c.kernel = Kernel::forward;
  c.d = tile_dim(D), c.dv = tile_dim(Dv);
  if (!c.d || !c.dv || c.element == Element::fp32) return false;
  c.warps = 8, c.Br = 128, c.Bc = 128, c.stages = 2, c.q_registers = true;
  const int widest = c.d > c.dv ? c.d : c.dv;
  // Three warpgroups where registers allow, the rows fill their tiles and the loop over keys is long (many
  // rows of packed heads do not make it so); the score functors take registers.
  const bool plain = !(c.softcap || c.alibi || c.bias || c.boolean_mask || c.dropout);
  if (widest == 64) {
    c.stages = 3;
    const i64 least = c.masked ? 4096 : 2048;
    if (plain && rows >= least && keys >= least) c.warps = 12, c.Br = 192, c.q_registers = false;
  } else if (widest == 192) {
    c.q_registers = false;
    c.Bc = c.dv == 192 ? 96 : 128;
  } else if (widest == 256) {
    c.q_registers = false;
    c.Bc = c.d == c.dv ? 64 : 80;
  }
  if (!plain && widest > 64) c.q_registers = false;
  // What the scores need takes registers, and NVRTC's time.
  const bool reads = c.bias || c.boolean_mask;
  const int features = c.softcap + c.alibi + c.bias + c.boolean_mask + c.dropout;
  if (reads || features > 2 || (widest > 64 ? c.alibi || c.dropout : c.alibi && c.dropout))
    c.Bc = features > 2 || (reads && (features > 1 || widest > 128)) ? 32 : 64;
  return true;
}

// Heads can be packed when nothing else tells them apart (scores of their own, dropout). With a mask only
// short sequences gain by it.
constexpr i32 most_packed_log2(const Config& c, i32 group, i64 Sq) {
  if (c.softcap || c.alibi || c.bias || c.boolean_mask || c.dropout || (c.masked && Sq > 128)) return 0;
  i32 log2 = 0;
  while (log2 < 6 && group % (2 << log2) == 0) ++log2;
  return log2;
}

// They are where their rows then need fewer tiles. (Of the lengths of packed sequences only one is known.)
constexpr i32 pack_log2(const Config& c, i32 group, i64 Sq) {
  const i32 log2 = most_packed_log2(c, group, Sq);
  const auto tiles = [&](i64 rows) { return (rows + c.Br - 1) / c.Br; };
  return c.varlen || tiles(Sq << log2) < tiles(Sq) << log2 ? log2 : 0;
}

constexpr TileOrder tile_order(const Config& c, const AttentionParams& p) {
  const i32 pack = pack_log2(c, p.group, p.Sq);
  const i32 heads = p.H >> pack;
  const i32 tiles = p.Sq > 0 ? i32((i64{p.Sq} << pack) + c.Br - 1) / c.Br : 1;
  // Tiles of one length go head by head: all blocks then read the same keys and values.
  const i32 section = c.masked ? section_heads(p, 2) >> pack : p.group >> pack;
  return {tiles, heads, p.B, section > 0 ? section : 1};
}

constexpr u32 section_keys(const AttentionParams& p) {
  const i64 key = i64{p.Hk} * (p.D + p.Dv) * 2;
  return u32(key > 0 ? kSectionBytes / key : 0);
}

// Thread blocks: one a multiprocessor, or one a tile when those are fewer (not where there are lengths: the
// rows that no sequence covers are shared out among all), or as many as the tiles need.
constexpr i64 grid_blocks(const Config& c, const TileOrder& order, i32 multiprocessors) {
  const i64 tiles = order.count(), least = (tiles + kMaxTiles - 1) / kMaxTiles;
  const i64 blocks = tiles < multiprocessors && !c.varlen ? tiles : multiprocessors;
  return blocks < least ? least : blocks;
}

// Bytes of workspace for the tile counter, which must be zero at launch; 0: the launch needs none.
constexpr i64 counter_bytes(const TileOrder& order, i32 multiprocessors) {
  return order.count() > multiprocessors ? 4 : 0;
}

// One tensor map as cuTensorMapEncodeTiled takes it, innermost dimension first: 16-bit elements,
// 128-byte swizzle, element strides 1, no interleave, L2 promotion of 256 bytes, zeros out of bounds. Strides
// in bytes, of dimensions 1 to 4; that of a dimension of one element is arbitrary but must be legal.
struct MapShape {
  const void* address;
  u32 rank;
  u64 dim[5];
  u64 stride[4];
  u32 box[5];
};

constexpr u64 map_stride(i64 elements, i64 extent) { return extent > 1 ? u64(elements) * 2 : 16; }

// Can TMA read (b, s, h, d) rows of 16-bit elements? If not, another family or a packed copy has to.
constexpr bool tma_readable(u64 address, Strides s) {
  return s.d == 1 && address % 16 == 0 && s.s % 8 == 0 && s.h % 8 == 0 && s.b % 8 == 0 && s.s >= 0 &&
         s.h >= 0 && s.b >= 0;
}

// Can the kernel write such rows, eight elements at a time? If not, another family has to.
constexpr bool tma_writable(u64 address, Strides s, i64 columns) {
  return tma_readable(address, s) && columns % 8 == 0;
}

// Q and O: (d, head in pack, row, packed head, batch), boxes of box_rows packed rows. rows: Sq, or the total
// of a packed tensor, whose batches = 1.
constexpr MapShape query_map(const void* q, Strides s, i64 rows, i32 batches, i32 heads, i32 columns,
                             i32 pack, i32 box_rows) {
  const i64 n = i64{1} << pack;
  return {
      q,
      5,
      {u64(columns), u64(n), u64(rows), u64(heads >> pack), u64(batches)},
      {map_stride(s.h, n), map_stride(s.s, rows), map_stride(s.h * n, heads >> pack),
       map_stride(s.b, batches)},
      {kSwizzleCols, u32(n < box_rows ? n : box_rows), u32(box_rows >> pack ? box_rows >> pack : 1), 1, 1}};
}

// K, V: (d, row, head, batch), boxes of one block's keys. Without rows: of any 16 bytes, which nobody will
// see.
constexpr MapShape key_value_map(const void* x, Strides s, i64 rows, i32 batches, i32 heads, i32 columns,
                                 i32 Bc) {
  if (rows == 0) rows = batches = heads = 1, columns = 8;
  return {x,
          4,
          {u64(columns), u64(rows), u64(heads), u64(batches), 1},
          {map_stride(s.s, rows), map_stride(s.h, heads), map_stride(s.b, batches), 16},
          {kSwizzleCols, u32(Bc), 1, 1, 1}};
}

}  // namespace tilewise::wgmma
