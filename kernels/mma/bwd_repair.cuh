// Exactness where a NaN or infinity meets a mask in the backward, after all of its other kernels. The
// products multiply a hidden pair's row by a dS or P of 0, and 0 x NaN is NaN: a row of q or dO that the mask
// hides from a key of its tile spoils that key's dK and dV, a hidden row of k the query's dQ. Elements that
// are NaN are computed again, pair by visible pair, a warp a row:
//   dQ_i = sum_j dS_ij K_j     dK_j = sum_i dS_ij Q_i     dV_j = sum_i P_ij dO_i
// A NaN that a visible pair brings comes back, and ends the sum. Slow, and in nobody's way: the kernel that
// converts dQ does it at its end (common/bwd_convert.cuh) when its block has stored a NaN or the word
// p.spoiled says that dK or dV hold one; where no such kernel comes last, backward_repair reads the word.
#pragma once

#include "../tile/element.h"
#include "../tile/fragment.h"
#include "backward_tiles.h"
#include "bwd_scores.cuh"

namespace tilewise::mma {

enum class Gradient { dq, dk, dv };

TILEWISE_INLINE bool is_nan(float x) { return x != x; }

// Query i and key j of query head h in sequence b, and their rows. Everything is looked up anew for each
// pair, which costs some loads from a cache: the converting kernel has few registers.
template <Config C>
struct Pair {
  static constexpr Element E = C.element;

  struct Row {
    void* data;
    i64 start, step;
    i32 columns;
    TILEWISE_INLINE float get(i32 c) const { return tile::load_float<E>(data, start + c * step); }
    TILEWISE_INLINE void set(i32 c, float x) const { tile::store_float<E>(data, start + c * step, x); }
  };

  const AttentionParams& p;
  SequenceView seq;
  i32 h, i, j;

  TILEWISE_INLINE Pair(const AttentionParams& params, i32 b, i32 head, i32 query, i32 key)
      : p(params), seq(find_sequence<C.varlen>(params, b)), h(head), i(query), j(key) {}

  TILEWISE_INLINE Row row(const void* data, const Strides& s, i64 at, i32 head, i32 columns) const {
    return {const_cast<void*>(data), seq.b * s.b + at * s.s + head * s.h, s.d, columns};
  }
  TILEWISE_INLINE Row of_query(const void* data, const Strides& s, i32 columns) const {
    return row(data, s, seq.q_row + i, h, columns);
  }
  TILEWISE_INLINE Row of_key(const void* data, const Strides& s, i32 columns) const {
    return row(data, s, seq.k_row + j, h / p.group, columns);
  }
  TILEWISE_INLINE Row q() const { return of_query(p.q, p.q_stride, p.D); }
  TILEWISE_INLINE Row dout() const { return of_query(p.dout, p.dout_stride, p.Dv); }
  TILEWISE_INLINE Row k() const { return of_key(p.k, p.k_stride, p.D); }
  TILEWISE_INLINE Row v() const { return of_key(p.v, p.v_stride, p.Dv); }

  static TILEWISE_INLINE float dot(const Row& a, const Row& b) {
    float sum = 0.0f;
#pragma unroll 1
    for (i32 c = i32(ptx::thread_index() % 32); c < a.columns; c += 32)
      sum = ptx::fma(a.get(c), b.get(c), sum);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shfl_xor(sum, mask);
    return sum;
  }

  // What the pair's row is multiplied by, P_ij or scale dS_ij. False: the pair takes no part.
  TILEWISE_INLINE bool weight(Gradient of, float& w) const {
    Scores<C> scores(p, band_of(p, seq), seq);
    scores.select_head(h);
    if (!scores.unhidden(i, j)) return false;
    float slope;
    const float qk = dot(q(), k());
    const i64 at =
        h * workspace_rows(p) + workspace_row(p.cu_seqlens_q != nullptr, seq.b, p.Sq, seq.q_row) + i;
    const float lse = ptx::load_global(p.lse_log2 + at);
    if (scores.value(qk, i, j, slope) == -__builtin_bit_cast(float, 0x7F800000u) && lse == lse) return false;
    w = scores.probability(qk, i, j, lse, slope);
    float keep = 1.0f;
    if constexpr (C.dropout)
      keep = dropout_bits(scores.key, u32(seq.b), u32(h), u32(i), u32(j)) >= p.dropout_threshold ? p.inv_keep
                                                                                                 : 0.0f;
    if (of == Gradient::dv)
      w *= keep;
    else
      w *= (dot(dout(), v()) * keep - ptx::load_global(p.delta + at)) * slope * p.scale;
    return true;
  }
};

// All lanes: row `at` of head `head` of a gradient.
template <Config C>
TILEWISE_INLINE void repair_row(const AttentionParams& p, Gradient of, i32 b, i32 head, i32 at) {
  constexpr int kColumns = 4;  // of a lane at a time: lane, lane + 32, ...
  const bool of_query = of == Gradient::dq;
  const i32 columns = of == Gradient::dv ? p.Dv : p.D, lane = i32(ptx::thread_index() % 32);
  const i32 heads = of_query ? 1 : p.group, head0 = head * heads;  // the query heads that add to it
  const auto anew = [](i32 x) { return i32(ptx::opaque(u32(x))); };
  const auto to = [&] {
    const Pair<C> pair(p, anew(b), head0, at, at);
    return of == Gradient::dq   ? pair.of_query(p.dq, p.dq_stride, columns)
           : of == Gradient::dk ? pair.of_key(p.dk, p.dk_stride, columns)
                                : pair.of_key(p.dv, p.dv_stride, columns);
  };
#pragma unroll 1
  for (i32 first = lane; first - lane < columns; first += 32 * kColumns) {
    u32 wrong = 0;
    const auto before = to();
#pragma unroll 1
    for (int x = 0; x < kColumns; ++x)
      if (const i32 c = first + 32 * x; c < columns && is_nan(before.get(c))) wrong |= 1u << x;
    if (!ptx::vote_any(wrong != 0)) continue;
    float sum[kColumns] = {};
    bool open = true;  // does one of the sums not hold a NaN yet?
    const Band<i32> band = band_of(p, find_sequence<C.varlen>(p, b));
    const Range<i32> all{0, of_query ? band.sk : band.sq}, others = !C.masked  ? all
                                                                    : of_query ? band.row(at)
                                                                               : band.queries_any(at, at + 1);
#pragma unroll 1
    for (i32 n = 0; n < heads; ++n) {
#pragma unroll 1
      for (i32 other = others.begin; other < others.end && ptx::vote_any(open); ++other) {
        const Pair<C> pair(p, anew(b), anew(head0 + n), of_query ? at : other, of_query ? other : at);
        float w;
        if (!pair.weight(of, w)) continue;
        const auto from = of == Gradient::dq ? pair.k() : of == Gradient::dk ? pair.q() : pair.dout();
        open = false;
#pragma unroll
        for (int x = 0; x < kColumns; ++x) {
          if (!(wrong >> x & 1)) continue;
          sum[x] = ptx::fma(w, from.get(first + 32 * x), sum[x]);
          open |= sum[x] == sum[x];
        }
      }
    }
    const auto after = to();
#pragma unroll
    for (int x = 0; x < kColumns; ++x)
      if (wrong >> x & 1) after.set(first + 32 * x, sum[x]);
  }
}

// The share of this block, one of `blocks`, of the gradients `from` to `to`: every blocks-th tile, of dq_rows
// rows of dq or of kRepairRows rows of dk and dv.
template <Config C>
TILEWISE_INLINE void repair_gradients(const AttentionParams& p, Gradient from, Gradient to, i32 dq_rows,
                                      u64 blocks) {
#pragma unroll 1
  for (int g = int(from); g <= int(to); ++g) {
    const Gradient of = Gradient(g);
    const bool of_query = of == Gradient::dq;
    const i32 rows = of_query ? dq_rows : kRepairRows, length = of_query ? p.Sq : p.Sk,
              heads = of_query ? p.H : p.Hk;
    const u64 tiles = tile_blocks(rows, length, heads, p.B);
#pragma unroll 1
    for (u64 n = ptx::block_number(); n < tiles; n += blocks) {
      const TileWork work = tile_work(n, rows, length, heads, p.B);
      const SequenceView seq = find_sequence<C.varlen>(p, work.b);
      const i32 end = of_query ? seq.sq : seq.sk;
#pragma unroll 1
      for (i32 r = i32(ptx::thread_index() / 32); r < rows && work.first + r < end; r += kRepairRows)
        repair_row<C>(p, of, work.b, work.h, work.first + r);
    }
  }
}

template <Config C>
TILEWISE_KERNEL(kRepairThreads, 1)
backward_repair(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  if (ptx::load_global(p.spoiled) == 0) return;
  repair_gradients<C>(p, Gradient::dq, Gradient::dv, kRepairRows,
                      backward_repair_blocks(p.B, p.H, p.Hk, p.Sq, p.Sk));
}

}  // namespace tilewise::mma
