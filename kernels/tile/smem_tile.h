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
};

// Rows [row0, row0 + kRows) into shared memory; rows outside [first, last) and columns that do not exist
// become zero and are not read. Plain: cp.async, to be committed and waited for. Strided: element by element,
// done on return.
template <class Tile, int kThreads, bool kStrided>
TILEWISE_INLINE void load_tile(u32 tile, const GlobalRows& from, i32 row0, i32 first, i32 last) {
  constexpr int kTotal = Tile::kRows * Tile::kChunks;
  constexpr bool kFixedColumn = kThreads % Tile::kChunks == 0;
  const u32 thread = ptx::thread_index();
#pragma unroll
  for (int step = 0; step < (kTotal + kThreads - 1) / kThreads; ++step) {
    const u32 index = thread + u32(step * kThreads);
    if (kTotal % kThreads != 0 && index >= u32(kTotal)) break;
    const u32 row = kFixedColumn ? thread / Tile::kChunks + u32(step * (kThreads / Tile::kChunks))
                                 : index / Tile::kChunks;
    const u32 chunk = kFixedColumn ? thread % Tile::kChunks : index % Tile::kChunks;
    const i32 i = row0 + i32(row);
    const bool exists = first <= i && i < last;
    const u32 to = tile + Tile::offset(row, chunk);
    constexpr int kPerChunk = 16 / Tile::kElement;
    const i32 left = from.columns - i32(chunk) * kPerChunk;
    const i32 count = !exists || left <= 0 ? 0 : left < kPerChunk ? left : kPerChunk;
    const unsigned char* source = from.base + i64{i} * from.row_bytes;
    if constexpr (!kStrided) {
      ptx::cp_async_16(to, source + chunk * 16, u32(count * Tile::kElement));
    } else {
      ptx::Vec4 data{};
      for (int x = 0; x < count; ++x) {
        const unsigned char* p = source + i64(i32(chunk) * kPerChunk + x) * from.col_bytes;
        if constexpr (Tile::kElement == 4) {
          data.w[x] = ptx::load_global(reinterpret_cast<const u32*>(p));
        } else {
          const u32 bits = ptx::load_global(reinterpret_cast<const unsigned short*>(p));
          data.w[x / 2] |= bits << (x % 2 * 16);
        }
      }
      ptx::st_shared_v4(to, data);
    }
  }
}

}  // namespace tilewise
