// A matrix tile in shared memory, rows of kCols elements, 16-byte chunks swizzled so that the accesses named
// below touch every bank once. Addresses are 32-bit shared addresses.
//   16-bit  ldmatrix, plain or .trans: eight rows at one chunk
//   fp32    k_pairs: rows g, 8-byte pairs 2q, 2q + 1 (Q, K) · n_rows: rows 2q, words g (V)
#pragma once

#include "../ptx/cp_async.h"
#include "../ptx/special.h"
#include "fragment.h"

namespace tilewise {

enum class Access { matrix, k_pairs, n_rows };

template <Element e, int rows, int cols, Access access>
struct SmemTile {
  static constexpr int kRows = rows, kCols = cols;
  static constexpr int kElement = bytes_of(e);
  static constexpr int kPitch = cols * kElement;
  static constexpr int kBytes = rows * kPitch;
  static constexpr int kChunks = kPitch / 16;
  // Chunks are permuted inside spans of this many bytes (the largest power of two that divides the pitch, up
  // to all banks).
  static constexpr int kSpan = kPitch % 128 == 0 ? 128 : 64;
  static_assert(kPitch % 64 == 0);

  static constexpr u32 swizzle(u32 row) {  // what a row's chunk indices are XORed with
    if (access == Access::k_pairs) return 2 * (row & 3);
    if (access == Access::n_rows) return 2 * ((row >> 1) & 3);
    return kSpan == 128 ? row & 7 : (row >> 1) & 3;
  }
  static constexpr u32 offset(u32 row, u32 chunk) { return row * kPitch + ((chunk ^ swizzle(row)) << 4); }

  // 16-bit: from the address of (row, chunk) with chunk in {0, 1} to that of (row, chunk + 2 k); k is a
  // constant after unrolling.
  static constexpr u32 advance(u32 address, int k) {
    constexpr int kSteps = kSpan / 32;
    return (address ^ u32((k % kSteps) * 32)) + u32(k / kSteps * kSpan);
  }
};

// Where a matrix of a head lies in global memory.
struct GlobalRows {
  const unsigned char* base;  // row 0, column 0
  i64 row_bytes, col_bytes;   // strides
  i32 columns;                // that exist; the tile's further ones become zero

  // 16-byte pieces reach all of it and nothing else.
  TILEWISE_INLINE bool direct(int element_bytes) const {
    return col_bytes == element_bytes &&
           (u64(base) | u64(row_bytes) | u64(columns * element_bytes)) % 16 == 0;
  }
};

// Rows that the threads load at a time: a power of two, so that it divides the tile's.
constexpr int rows_per_step(int chunks, int threads, int rows) {
  int n = 1;
  while (2 * n * chunks <= threads && 2 * n <= rows) n *= 2;
  return n;
}

// 16 bytes of elements that do not lie side by side; those from `count` on are zeros.
template <int element_bytes>
TILEWISE_INLINE ptx::Vec4 gather(const unsigned char* source, i64 step, i32 count) {
  ptx::Vec4 data{};
#pragma unroll
  for (int x = 0; x < 16 / element_bytes; ++x) {
    if (x >= count) continue;
    const unsigned char* p = source + x * step;
    if constexpr (element_bytes == 4)
      data.w[x] = ptx::load_global(reinterpret_cast<const u32*>(p));
    else
      data.w[x / 2] |= u32{ptx::load_global(reinterpret_cast<const unsigned short*>(p))} << (x % 2 * 16);
  }
  return data;
}

// Rows [row0, row0 + kRows) into shared memory by cp.async, to be committed and waited for; rows outside
// [first, last) and columns that do not exist become zero and are not read. kStrided: what is not `direct`
// goes element by element instead. A thread keeps to one 16-byte column, so that a step costs one addition
// and one copy.
template <class Tile, int kThreads, bool kStrided, bool kRecompute = false>
TILEWISE_INLINE void load_tile(u32 tile, const GlobalRows& from, i32 row0, i32 first, i32 last) {
  constexpr int kRowsPerStep = rows_per_step(Tile::kChunks, kThreads, Tile::kRows);
  constexpr int kActive = kRowsPerStep * Tile::kChunks, kPerChunk = 16 / Tile::kElement;
  const u32 thread = kRecompute ? ptx::opaque(ptx::thread_index()) : ptx::thread_index();
  if (kActive < kThreads && thread >= u32(kActive)) return;
  const u32 row = thread / Tile::kChunks, chunk = thread % Tile::kChunks;
  const i32 left = from.columns - i32(chunk) * kPerChunk;
  const unsigned char* source =
      from.base + i64{row0 + i32(row)} * from.row_bytes + i64{chunk} * kPerChunk * from.col_bytes;
  const i64 step_bytes = kRowsPerStep * from.row_bytes;
  const u32 rows = left > 0 ? u32(last - first) : 0u, at = u32(row0 - first) + row;  // is at + r below rows?
  if (kStrided && !from.direct(Tile::kElement)) {
#pragma unroll 1
    for (u32 r = 0; r < u32(Tile::kRows); r += kRowsPerStep, source += step_bytes)
      ptx::st_shared_v4(tile + Tile::offset(row + r, chunk),
                        gather<Tile::kElement>(source, from.col_bytes, at + r < rows ? left : 0));
    return;
  }
#pragma unroll
  for (u32 r = 0; r < u32(Tile::kRows); r += kRowsPerStep, source += step_bytes)
    ptx::cp_async_16_if(tile + Tile::offset(row + r, chunk), source, at + r < rows);
}

}  // namespace tilewise
