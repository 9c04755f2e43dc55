// Where the backward's workspace keeps what: used by the kernels that write and read it and by the host that
// sizes it.
//
//   lse_log2, delta  fp32 [H][rows]                     one value per query row
//   dq_accum         fp32 [H][rows / 16][d / 8][128]    a 16 x 8 piece of dq is one MMA accumulator fragment
//   of a warp, so
//                                                       that a warp adds its 512 bytes side by side
//
// A sequence's rows start at a multiple of 16 and never share a group of 16 with another sequence.
#pragma once

#include "params.h"

namespace tilewise {

inline constexpr i64 kRowGroup = 16;

constexpr i64 round_up(i64 x, i64 multiple) { return (x + multiple - 1) / multiple * multiple; }

// Workspace rows of one head over all sequences. packed: total_q rows, told apart by offsets.
constexpr i64 workspace_rows(bool packed, i64 B, i64 Sq, i64 total_q) {
  return packed ? (total_q / kRowGroup + B) * kRowGroup : B * round_up(Sq, kRowGroup);
}

// First workspace row of sequence b; q_row is its first row in the packed tensor.
constexpr i64 workspace_row(bool packed, i64 b, i64 Sq, i64 q_row) {
  return packed ? (q_row / kRowGroup + b) * kRowGroup : b * round_up(Sq, kRowGroup);
}

constexpr i64 workspace_rows(const AttentionParams& p) {
  return workspace_rows(p.cu_seqlens_q != nullptr, p.B, p.Sq, p.total_q);
}

// Bytes of the three parts, each a multiple of 64.
constexpr i64 row_statistics_bytes(i64 H, i64 rows) { return H * rows * 4; }
constexpr i64 dq_accum_bytes(i64 H, i64 rows, int d) { return H * rows * d * 4; }

// The 16 x 8 piece of dq_accum that holds rows 16 r.. and columns 8 c.. of head h, r counting from the
// workspace's first row.
constexpr i64 dq_accum_piece(i64 h, i64 rows, i64 r, int c, int d) {
  return ((h * (rows / kRowGroup) + r) * (d / 8) + c) * 128;
}

// Inside a piece: element `reg` of `lane`'s accumulator. Where the hardware adds 16 bytes at once a lane's
// four elements lie side by side, else the lanes of one element do.
constexpr int dq_accum_element(bool vector_adds, int lane, int reg) {
  return vector_adds ? lane * 4 + reg : reg * 32 + lane;
}

// The blocks of one-dimensional launches: tiles of a sequence fastest, then heads, then sequences.
constexpr u64 tile_blocks(i64 tile_rows, i64 length, i64 heads, i64 B) {
  return u64((length + tile_rows - 1) / tile_rows) * u64(heads) * u64(B);
}

struct TileWork {
  i32 first, h, b;  // first row of the tile
  bool none;        // a launch folded into two dimensions has a few blocks too many
};

constexpr TileWork tile_work(u64 block, i32 tile_rows, i32 length, i32 heads, i32 B) {
  const u64 tiles = u64((length + tile_rows - 1) / tile_rows), head = block / tiles;
  return {i32(block - head * tiles) * tile_rows, i32(head % u64(heads)), i32(head / u64(heads)),
          head >= u64(heads) * u64(B)};
}

}  // namespace tilewise
