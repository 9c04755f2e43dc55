// Rows of a strided global tensor into and out of shared-memory tiles. Rows and columns outside the tensor
// become zeros on the way in and are left alone on the way out. `direct` tensors (columns side by side, rows
// 16-byte aligned) move in 16-byte pieces, others element by element.
#pragma once

#include "../ptx/cp_async.h"
#include "../ptx/math.h"
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
  if (!kStrided || from.direct) {
    // A thread keeps its column and walks down the rows, then takes the next group of columns: rows advance
    // in steps that leave the swizzle alone, so that addresses advance by constants.
    constexpr int kPower = Tile::kChunks & -Tile::kChunks;
    constexpr int kGroup =
        kPower < kThreads / 8 ? kPower : kThreads / 8;  // chunks side by side: a power of two
    constexpr int kStep = kThreads / kGroup;
    static_assert(kGroup % 4 == 0 && kStep % 8 == 0);
    const int row0 = thread / kGroup, c = thread % kGroup;
    const char* source = from.data + (i64(first) + row0) * from.stride + c * 16;
    const i64 step = kStep * from.stride;
    const u32 address = to.chunk(row0, c);
    const int rows = end - first - row0;  // that exist below this thread's first
#pragma unroll
    for (int r = 0; r < kRows; r += kStep) {
#pragma unroll
      for (int g = 0; g < Tile::kChunks; g += kGroup) {
        if (kRows % kStep != 0 && r + row0 >= kRows) break;
        const int bytes = from.columns * Tile::kElement - (c + g) * 16;
        const int count = r >= rows || bytes < 0 ? 0 : bytes > 16 ? 16 : bytes;
        ptx::cp_async_16(address + r * Tile::kRowBytes + g * 16, source + g * 16, u32(count));
      }
      source += step;
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

// Zeros over the tile's rows below `end`: tensor rows that take no part, whose NaN times a P of 0 would be
// NaN. Cold; seen by the others after a barrier.
template <int kThreads, Element E, int kRows, int kCols>
TILEWISE_INLINE void clear_rows(SmemTile<E, kRows, kCols> tile, i32 end, int thread) {
  using Tile = SmemTile<E, kRows, kCols>;
#pragma unroll 1
  for (int index = thread; index < kRows * Tile::kChunks; index += kThreads)
    if (index / Tile::kChunks < end)
      ptx::st_shared_v4(tile.chunk(index / Tile::kChunks, index % Tile::kChunks), ptx::Vec4{});
}

// Has one of the elements in the words that were shown to it been a NaN or an infinity? Their multiple of 0
// is a NaN, and so is every sum from there on: an instruction a word.
template <Element E>
struct Spoiled {
  u32 sum = 0;
  TILEWISE_INLINE void look_at(u32 word) {
    if constexpr (E == Element::fp32)
      sum = ptx::bits_of(ptx::fma(ptx::float_of(word), 0.f, ptx::float_of(sum)));
    else
      sum = E == Element::bf16 ? ptx::fma_bf16x2(word, 0, sum) : ptx::fma_f16x2(word, 0, sum);
  }
  TILEWISE_INLINE bool found() const { return (sum & (E == Element::fp32 ? 0x7FFFFFFFu : 0x7FFF7FFFu)) != 0; }
};

// The same way back. True: this thread stored a NaN or an infinity; where nobody looks, the test is not
// there.
template <int kThreads, Element E, int kRows, int kCols>
TILEWISE_INLINE bool store_rows(const Rows& to, SmemTile<E, kRows, kCols> from, i32 first, i32 end,
                                int thread) {
  Spoiled<E> spoiled;
  using Tile = SmemTile<E, kRows, kCols>;
  constexpr int kPerChunk = 16 / Tile::kElement, kTotal = kRows * Tile::kChunks;
  if (to.direct && to.columns % kPerChunk == 0) {
#pragma unroll 4
    for (int index = thread; index < kTotal; index += kThreads) {
      const int row = index / Tile::kChunks, c = index % Tile::kChunks;
      if (first + row >= end || c * kPerChunk >= to.columns) continue;
      const ptx::Vec4 data = ptx::ld_shared_v4(from.chunk(row, c));
      ptx::store_global(reinterpret_cast<ptx::Vec4*>(to.data + (first + row) * to.stride + c * 16), data);
#pragma unroll
      for (int x = 0; x < 4; ++x) spoiled.look_at(data.w[x]);
    }
  } else {
#pragma unroll 1
    for (int index = thread; index < kRows * kCols; index += kThreads) {
      const int row = index / kCols, col = index % kCols;
      if (first + row >= end || col >= to.columns) continue;
      char* at = to.data + (first + row) * to.stride + col * to.step;
      const u32 word = ptx::ld_shared(from.element(row, Tile::kElement == 4 ? col : col & ~1));
      if constexpr (Tile::kElement == 4)
        ptx::store_global(reinterpret_cast<u32*>(at), word);
      else
        ptx::store_global(reinterpret_cast<unsigned short*>(at), (unsigned short)(word >> (col % 2 * 16)));
      spoiled.look_at(word);
    }
  }
  return spoiled.found();
}

}  // namespace tilewise::tile
