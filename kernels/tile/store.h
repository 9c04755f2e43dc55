// The epilogue's way out: a warp's fp32 fragments, rounded to the element type, through shared memory to rows
// in global memory in 16-byte pieces where the layout allows, element by element where not.
#pragma once

#include "../ptx/barrier.h"
#include "smem_tile.h"

namespace tilewise {

struct GlobalOut {
  unsigned char* base;  // row 0, column 0
  i64 row_bytes, col_bytes;
  i32 columns, rows;  // that exist
};

// Fragment of rows first_row .. + 16 tiles of the tile `to`, whose row 0 is row `row0` of the output. The
// warp's rows of `to` are its own; whatever they held before must be out of use.
template <Element e, class Tile, int tiles, int n>
TILEWISE_INLINE void store_fragment(u32 to, const float (&x)[tiles][n][4], int first_row,
                                    const GlobalOut& out, i32 row0) {
  const u32 lane = ptx::thread_index() % 32, g = lane / 4, q = lane % 4;
#pragma unroll
  for (int m = 0; m < tiles; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const u32 row = u32(first_row + 16 * m + 8 * half) + g;
#pragma unroll
      for (int c = 0; c < n; ++c) {
        const float a = x[m][c][2 * half], b = x[m][c][2 * half + 1];
        if constexpr (e == Element::fp32)
          ptx::st_shared_v2(to + Tile::offset(row, u32(2 * c) + q / 2) + q % 2 * 8,
                            {{ptx::bits_of(a), ptx::bits_of(b)}});
        else
          ptx::st_shared(to + Tile::offset(row, u32(c)) + q * 4, Number<e>::pack(a, b));
      }
    }
  ptx::sync_warp();
  constexpr int kPieces = 16 * tiles * Tile::kChunks, kPerChunk = 16 / Tile::kElement;
  const bool aligned =
      out.col_bytes == Tile::kElement && out.row_bytes % 16 == 0 && (unsigned long)(out.base) % 16 == 0;
#pragma unroll 2
  for (int piece = int(lane); piece < kPieces; piece += 32) {
    const int row = first_row + piece / Tile::kChunks, chunk = piece % Tile::kChunks;
    const i32 i = row0 + row, column = chunk * kPerChunk;
    if (i >= out.rows || column >= out.columns) continue;
    const ptx::Vec4 data = ptx::ld_shared_v4(to + Tile::offset(u32(row), u32(chunk)));
    unsigned char* at = out.base + i64{i} * out.row_bytes + i64{column} * out.col_bytes;
    if (aligned && column + kPerChunk <= out.columns) {
      ptx::store_global(reinterpret_cast<ptx::Vec4*>(at), data);
      continue;
    }
#pragma unroll
    for (int y = 0; y < kPerChunk; ++y) {
      if (column + y >= out.columns) break;
      if constexpr (e == Element::fp32)
        ptx::store_global(reinterpret_cast<u32*>(at + y * out.col_bytes), data.w[y]);
      else
        ptx::store_global(reinterpret_cast<unsigned short*>(at + y * out.col_bytes),
                          (unsigned short)(data.w[y / 2] >> (y % 2 * 16)));
    }
  }
}

}  // namespace tilewise
