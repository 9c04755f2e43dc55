// Exactness where a NaN or infinity in V meets a mask. P V multiplies a hidden key's V by a P of 0, and 0 x
// NaN is NaN; only keys hidden from a whole tile of queries can be left out by the loads. Such a row has a
// finite LSE and a non-finite output although no key that it sees has a non-finite V in that column. The warp
// that owns the row then computes it again, key by key over the visible ones. Slow and rare: never taken
// while the values that the tile reads are finite.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/warp.h"
#include "exponential.h"
#include "score.h"
#include "smem_tile.h"
#include "store.h"

namespace tilewise {

template <Config c>
struct RowRepair {
  const Scores<c>& score;
  const Dropout& dropout;
  GlobalRows q, k, v;
  GlobalOut out;
  float scale, sink, inv_keep;

  static constexpr int kColumns = c.dv / 32;  // of a lane: lane, lane + 32, ...

  // All lanes of one warp: row i, whose output the warp has stored.
  TILEWISE_INLINE void operator()(i32 i) const {
    const i32 lane = i32(ptx::thread_index() % 32);
    const Range<i32> keys = score.band.row(i);
    ptx::sync_warp();
    u32 wrong = 0;  // this lane's columns that are not finite and not yet explained by a visible key
#pragma unroll 1
    for (int x = 0; x < kColumns; ++x)
      if (lane + 32 * x < out.columns && !is_finite(element(out, i, x))) wrong |= 1u << x;
    float explained[kColumns] = {};  // the sum of infinities that the row does see
#pragma unroll 1
    for (i32 j = keys.begin; j < keys.end && ptx::vote_any(wrong != 0); ++j) {
      if (!score.visible(i, j)) continue;
#pragma unroll
      for (int x = 0; x < kColumns; ++x) {
        const float seen = wrong >> x & 1 ? element(v, j, x) : 0.f;
        if (is_finite(seen)) continue;
        explained[x] += c.dropout && !dropout.keeps(i, j) ? 0.f * seen : seen;
        if (explained[x] != explained[x]) wrong &= ~(1u << x);  // NaN it is
      }
    }
#pragma unroll
    for (int x = 0; x < kColumns; ++x) {
      if (!(wrong >> x & 1) || explained[x] == 0.f) continue;
      store(i, x, explained[x]);
      wrong &= ~(1u << x);
    }
    if (!ptx::vote_any(wrong != 0)) return;

    float maximum = -infinity(), sum = 0.f, acc[kColumns] = {};
#pragma unroll 1
    for (i32 j = keys.begin; j < keys.end; ++j) {
      if (!score.visible(i, j)) continue;
      float s = 0.f;
#pragma unroll 1
      for (int x = 0; lane + 32 * x < q.columns; ++x) s = ptx::fma(element(q, i, x), element(k, j, x), s);
#pragma unroll
      for (int mask = 16; mask > 0; mask /= 2) s += ptx::shfl_xor(s, mask);
      s = Scores<c>::kRaw ? s * scale : score.value(s, i, j) * score.natural;
      if (s == -infinity()) continue;
      const float raised = ptx::max(maximum, s), factor = exp_of(maximum - raised);
      float probability = exp_of(s - raised);
      maximum = raised;
      sum = sum * factor + probability;
      if constexpr (c.dropout) probability = dropout.keeps(i, j) ? probability * inv_keep : 0.f;
#pragma unroll
      for (int x = 0; x < kColumns; ++x)
        acc[x] = acc[x] * factor + (wrong >> x & 1 ? probability * element(v, j, x) : 0.f);
    }
    const float top = ptx::max(maximum, sink);
    const float shift = exp_of(maximum - top);
    const float factor = ptx::div(shift, sum * shift + exp_of(sink - top));
#pragma unroll
    for (int x = 0; x < kColumns; ++x)
      if (wrong >> x & 1) store(i, x, acc[x] * factor);
  }

 private:
  using N = Number<c.element>;

  // This lane's x-th column of a row.
  template <class Matrix>
  static TILEWISE_INLINE unsigned char* address(const Matrix& m, i32 row, int x) {
    const i64 column = i64(ptx::thread_index() % 32 + 32 * u32(x));
    return const_cast<unsigned char*>(m.base) + i64{row} * m.row_bytes + column * m.col_bytes;
  }
  template <class Matrix>
  static TILEWISE_INLINE float element(const Matrix& m, i32 row, int x) {
    return N::value(ptx::load_global(reinterpret_cast<const typename N::Storage*>(address(m, row, x))));
  }
  TILEWISE_INLINE void store(i32 row, int x, float value) const {
    ptx::store_global(reinterpret_cast<typename N::Storage*>(address(out, row, x)), N::rounded(value));
  }
};

}  // namespace tilewise
