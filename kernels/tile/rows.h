// Rows of a strided global tensor into and out of shared-memory tiles. Rows and columns outside the tensor
// become zeros on the way in and are left alone on the way out. `direct` tensors (columns side by side, rows
// 16-byte aligned) move in 16-byte pieces, others element by element.
#pragma once

#include "../ptx/cp_async.h"
#include "operand.h"

namespace tilewise::tile {

struct Rows {
  char* data;        // row 0 of one head of one sequence
  i64 stride, step;  // bytes from row to row, from column to column
  i32 columns;
  bool direct;
};

TILEWISE_INLINE Rows rows(const void* data, int element_size, Strides s, i64 b, i64 row, i64 h, i32 columns) {
  Rows r;
  r.data = static_cast<char*>(const_cast<void*>(data)) + (b * s.b + row * s.s + h * s.h) * element_size;
  r.stride = s.s * element_size;
  r.step = s.d * element_size;
  r.columns = columns;
  r.direct = s.d == 1 && ((u64(r.data) | u64(r.stride)) & 15u) == 0;
  return r;
}

TILEWISE_INLINE u32 load_element(const char* from, int element_size) {
  if (element_size == 4) return ptx::load_global(reinterpret_cast<const u32*>(from));
  return ptx::load_global(reinterpret_cast<const unsigned short*>(from));
}

// Tile rows 0.. from tensor rows first..; those at `end` and beyond are zeros. Seen after cp_async_commit,
// wait and a barrier. kStrided: the tensor need not be direct.
template <int kThreads, bool kStrided, Element E, int kRows, int kCols>
TILEWISE_INLINE void load_rows(SmemTile<E, kRows, kCols> to, const Rows& from, i32 first, i32 end,
                               int thread) {
  using Tile = SmemTile<E, kRows, kCols>;
  constexpr int kPerChunk = 16 / Tile::kElement, kTotal = kRows * Tile::kChunks;
  if (!kStrided || from.direct) {
#pragma unroll
    for (int start = 0; start < kTotal; start += kThreads) {
      const int index = start + thread, row = index / Tile::kChunks, c = index % Tile::kChunks;
      if (kTotal % kThreads != 0 && index >= kTotal) break;
      const i32 columns = first + row < end ? from.columns - c * kPerChunk : 0;
      const u32 bytes = columns <= 0 ? 0u : columns >= kPerChunk ? 16u : u32(columns * Tile::kElement);
      ptx::cp_async_16(to.chunk(row, c), bytes ? from.data + (first + row) * from.stride + c * 16 : from.data,
                       bytes);
    }
  } else {
#pragma unroll 1
    for (int index = thread; index < kRows * kCols; index += kThreads) {
      const int row = index / kCols, col = index % kCols;
      const bool inside = first + row < end && col < from.columns;
      const u32 x =
          inside ? load_element(from.data + (first + row) * from.stride + col * from.step, Tile::kElement)
                 : 0u;
      if constexpr (Tile::kElement == 4)
        ptx::st_shared(to.element(row, col), x);
      else
        ptx::st_shared_b16(to.element(row, col), x);
    }
  }
}

// The same way back.
template <int kThreads, Element E, int kRows, int kCols>
TILEWISE_INLINE void store_rows(const Rows& to, SmemTile<E, kRows, kCols> from, i32 first, i32 end,
                                int thread) {
  using Tile = SmemTile<E, kRows, kCols>;
  constexpr int kPerChunk = 16 / Tile::kElement;
#pragma unroll 1
  for (int index = thread; index < kRows * Tile::kChunks; index += kThreads) {
    const int row = index / Tile::kChunks, c = index % Tile::kChunks;
    if (first + row >= end || c * kPerChunk >= to.columns) continue;
    const ptx::Vec4 x = ptx::ld_shared_v4(from.chunk(row, c));
    char* at = to.data + (first + row) * to.stride + c * kPerChunk * to.step;
    if (to.direct && c * kPerChunk + kPerChunk <= to.columns) {
      ptx::store_global(reinterpret_cast<ptx::Vec4*>(at), x);
    } else {
#pragma unroll
      for (int e = 0; e < kPerChunk; ++e) {
        if (c * kPerChunk + e >= to.columns) break;
        if constexpr (Tile::kElement == 4)
          ptx::store_global(reinterpret_cast<u32*>(at + e * to.step), x.w[e]);
        else
          ptx::store_global(reinterpret_cast<unsigned short*>(at + e * to.step),
                            (unsigned short)(x.w[e / 2] >> (e % 2 * 16)));
      }
    }
  }
}

}  // namespace tilewise::tile
