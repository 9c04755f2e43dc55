// Packing: tensors of any dtype and any strides into the fp32 (or bf16 pair) layouts that the kernels read.
#pragma once

#include "cpu/generic/vec.h"
#include "cpu/task.h"

namespace tilewise::cpu {

// dst[c * ld + r] = src[r * row_stride + c * col_stride] * factor for rows x cols; rows up to `padded` become
// 0. The next rows are fetched meanwhile.
template <class V, class T>
[[gnu::noinline]] static void pack_transposed(float* dst, i64 ld, const T* src, i64 row_stride,
                                              i64 col_stride, int rows, int cols, int padded, float factor) {
  constexpr int W = V::W;
  for (int r0 = 0; r0 < padded; r0 += W) {
    const int n = rows - r0 < W ? (rows > r0 ? rows - r0 : 0) : W;
    const T* from = src + r0 * row_stride;
    int c0 = 0;
    if (col_stride == 1)
      for (; c0 + W <= cols; c0 += W) {
        typename V::F tile[W];
        for (int r = 0; r < W; ++r) {
          __builtin_prefetch(from + (r + W) * row_stride + c0);
          tile[r] = r < n ? V::widen(from + r * row_stride + c0) * factor : typename V::F{};
        }
        transpose<V>(tile);
        for (int c = 0; c < W; ++c) V::store(dst + (c0 + c) * ld + r0, tile[c]);
      }
    for (; c0 < cols; ++c0)
      for (int r = 0; r < W; ++r)
        dst[c0 * ld + r0 + r] = r < n ? V::widen1(from + r * row_stride + c0 * col_stride) * factor : 0.f;
  }
}

// The same for pairs of bf16 along the columns: dst[c / 2 * ld + r] = {src[r][c], src[r][c + 1]}; an odd last
// column is paired with 0. sign: -1, 0 or 1, multiplied in.
template <class V>
[[gnu::noinline]] static void pack_pairs_transposed(float* dst, i64 ld, const bf16* src, i64 row_stride,
                                                    i64 col_stride, int rows, int cols, int padded,
                                                    float sign) {
  constexpr int W = V::W;
  const u32 flip = sign < 0 ? 0x80008000u : 0u;
  for (int r0 = 0; r0 < padded; r0 += W) {
    const int n = rows - r0 < W ? (rows > r0 ? rows - r0 : 0) : W;
    const bf16* from = src + r0 * row_stride;
    int c0 = 0;
    if (col_stride == 1 && sign != 0)
      for (; c0 + 2 * W <= cols; c0 += 2 * W) {
        typename V::F tile[W];
        for (int r = 0; r < W; ++r) {
          __builtin_prefetch(from + (r + W) * row_stride + c0);
          tile[r] = r < n ? typename V::F(V::template load<typename V::U>(from + r * row_stride + c0) ^ flip)
                          : typename V::F{};
        }
        transpose<V>(tile);
        for (int c = 0; c < W; ++c) V::store(dst + (c0 / 2 + c) * ld + r0, tile[c]);
      }
    for (; c0 < cols; c0 += 2)
      for (int r = 0; r < W; ++r) {
        bf16 pair[2] = {};
        if (r < n) {
          const bf16* x = from + r * row_stride + c0 * col_stride;
          V::narrow1(&pair[0], V::widen1(x) * sign);
          if (c0 + 1 < cols) V::narrow1(&pair[1], V::widen1(x + col_stride) * sign);
        }
        __builtin_memcpy(dst + (c0 / 2) * ld + r0 + r, pair, 4);
      }
  }
}

// Rows of a head lie far apart in memory, often pages: the hardware does not see them coming. They share a
// few sets of the caches, so that not many may be on their way: so many rows into L1, and so many into L2.
static constexpr int kNearRows = 6, kFarRows = 24;
template <class T>
TILEWISE_INLINE void prefetch_row(const T* row, i64 row_stride, int cols) {
  const char *near = reinterpret_cast<const char*>(row + kNearRows * row_stride),
             *far = reinterpret_cast<const char*>(row + kFarRows * row_stride);
  for (i64 b = 0; b < cols * i64(sizeof(T)); b += 64) {
    __builtin_prefetch(far + b, 0, 2);
    __builtin_prefetch(near + b);
  }
}

// Brings the share'th of `shares` parts of rows [begin, end) into the L2 cache: the next key block, while
// this one is being computed.
template <class T>
static void fetch_next_rows(const Matrix& m, i32 begin, i32 end, int cols, int share, int shares) {
  if (m.column != 1) return;
  const i32 n = end - begin, last = begin + n * (share + 1) / shares;
  for (i32 r = begin + n * share / shares; r < last; ++r) {
    const char* row = reinterpret_cast<const char*>(static_cast<const T*>(m.data) + r * m.row);
    for (i64 b = 0; b < cols * i64(sizeof(T)); b += 64) __builtin_prefetch(row + b, 0, 2);
  }
}

// dst[r * ld + c] = src[r * row_stride + c * col_stride], widened.
template <class V, class T>
[[gnu::noinline]] static void pack_rows(float* dst, i64 ld, const T* src, i64 row_stride, i64 col_stride,
                                        int rows, int cols) {
  for (int r = 0; r < rows; ++r) {
    const T* from = src + r * row_stride;
    float* to = dst + r * ld;
    prefetch_row(from, row_stride, cols);
    int c = 0;
    if (col_stride == 1)
      for (; c + V::W <= cols; c += V::W) V::store(to + c, V::widen(from + c));
    for (; c < cols; ++c) to[c] = V::widen1(from + c * col_stride);
  }
}

// Rows of bf16 for pairs along the columns: a copy with unit stride, an odd last column followed by 0.
template <class V>
[[gnu::noinline]] static void pack_pair_rows(bf16* dst, i64 ld, const bf16* src, i64 row_stride,
                                             i64 col_stride, int rows, int cols) {
  for (int r = 0; r < rows; ++r) {
    const bf16* from = src + r * row_stride;
    if (col_stride == 1) {
      prefetch_row(from, row_stride, cols);
      __builtin_memcpy(dst + r * ld, from, size_t(cols) * sizeof(bf16));
    } else {
      for (int c = 0; c < cols; ++c) dst[r * ld + c] = from[c * col_stride];
    }
    if (cols & 1) dst[r * ld + cols] = {};
  }
}

// Pairs of bf16 along the rows: dst[r / 2 * ld + c] = {src[r][c], src[r + 1][c]}; an odd last row is paired
// with 0.
template <class V>
[[gnu::noinline]] static void interleave_rows(u32* dst, i64 ld, const bf16* src, i64 row_stride,
                                              i64 col_stride, int rows, int cols) {
  for (int r = 0; r < rows; r += 2) {
    const bf16 *low = src + r * row_stride, *high = r + 1 < rows ? low + row_stride : nullptr;
    u32* to = dst + r / 2 * ld;
    int c = 0;
    if (col_stride == 1 && high)
      for (; c + V::W <= cols; c += V::W) {
        const typename V::U a = typename V::U(V::widen(low + c)), b = typename V::U(V::widen(high + c));
        V::store(to + c, a >> 16 | b);
      }
    for (; c < cols; ++c)
      to[c] = low[c * col_stride].bits | (high ? u32(high[c * col_stride].bits) << 16 : 0u);
  }
}

// dst[r * row_stride + c * col_stride] = src[r * ld + c], rounded.
template <class V, class T>
[[gnu::noinline]] static void unpack_rows(T* dst, i64 row_stride, i64 col_stride, const float* src, i64 ld,
                                          int rows, int cols) {
  for (int r = 0; r < rows; ++r) {
    T* to = dst + r * row_stride;
    const float* from = src + r * ld;
    int c = 0;
    if (col_stride == 1)
      for (; c + V::W <= cols; c += V::W) V::narrow(to + c, V::load(from + c));
    for (; c < cols; ++c) V::narrow1(to + c * col_stride, from[c]);
  }
}

// finite[r]: are all elements of row r finite? Returns whether all rows are.
template <class V, class T>
[[gnu::noinline]] static bool rows_finite(const T* src, i64 row_stride, i64 col_stride, int rows, int cols,
                                          bool* finite) {
  bool all = true;
  for (int r = 0; r < rows; ++r) {
    const T* from = src + r * row_stride;
    typename V::F zero{};  // 0 * x is NaN for infinities and NaNs
    float tail = 0;
    int c = 0;
    if (col_stride == 1)
      for (; c + V::W <= cols; c += V::W) zero += V::widen(from + c) * 0.f;
    for (; c < cols; ++c) tail += V::widen1(from + c * col_stride) * 0.f;
    finite[r] = tail == 0 && !V::any(zero != zero);
    all &= finite[r];
  }
  return all;
}

}  // namespace tilewise::cpu
