// Exactness where a NaN or infinity meets a mask in the backward, after all of its other kernels. The
// products multiply a hidden pair's row by a dS or P of 0, and 0 x NaN is NaN: a row of q or dO that the mask
// hides from a key of its tile spoils that key's dK and dV, a hidden row of k the query's dQ. Where a block
// has found a NaN in a gradient (p.spoiled), warps look at every row of dq, dk and dv; elements that are NaN
// are computed again, pair by visible pair:
//   dQ_i = sum_j dS_ij K_j     dK_j = sum_i dS_ij Q_i     dV_j = sum_i P_ij dO_i
// A NaN that a visible pair brings comes back, and ends the sum. Slow where values hold NaN, one look at one
// word where they do not. Any head dim: one compiled kernel serves all.
#pragma once

#include "../tile/element.h"
#include "../tile/fragment.h"
#include "backward_tiles.h"
#include "bwd_scores.cuh"

namespace tilewise::mma {

enum class Gradient { dq, dk, dv };

TILEWISE_INLINE bool is_nan(float x) { return x != x; }

template <Config C>
struct RowGradient {
  static constexpr Element E = C.element;

  // One head of one sequence in a tensor.
  struct Matrix {
    const void* data;
    i64 start, row, column;
    i32 columns;
    TILEWISE_INLINE float get(i32 r, i32 c) const {
      return tile::load_float<E>(data, start + r * row + c * column);
    }
    TILEWISE_INLINE void set(i32 r, i32 c, float x) const {
      tile::store_float<E>(const_cast<void*>(data), start + r * row + c * column, x);
    }
  };

  const AttentionParams& p;
  const SequenceView& seq;
  Scores<C> scores;
  i32 lane;

  TILEWISE_INLINE RowGradient(const AttentionParams& params, const SequenceView& sequence)
      : p(params),
        seq(sequence),
        scores(params, band_of(params, sequence), sequence.b),
        lane(i32(ptx::thread_index() % 32)) {}

  TILEWISE_INLINE Matrix matrix(const void* data, const Strides& s, i64 first, i32 h, i32 columns) const {
    return {data, seq.b * s.b + first * s.s + h * s.h, s.s, s.d, columns};
  }

  TILEWISE_INLINE float dot(const Matrix& a, i32 i, const Matrix& b, i32 j) const {
    float sum = 0.0f;
#pragma unroll 1
    for (i32 c = lane; c < a.columns; c += 32) sum = ptx::fma(a.get(i, c), b.get(j, c), sum);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) sum += ptx::shfl_xor(sum, mask);
    return sum;
  }

  // What the pair's row is multiplied by, P_ij or scale dS_ij. False: the pair takes no part.
  template <Gradient kOf>
  TILEWISE_INLINE bool weight(i32 h, i32 i, i32 j, float& w) const {
    if (!scores.unhidden(i, j)) return false;
    const i32 hk = h / p.group;
    const Matrix q = matrix(p.q, p.q_stride, seq.q_row, h, p.D),
                 k = matrix(p.k, p.k_stride, seq.k_row, hk, p.D);
    float slope;
    const float qk = dot(q, i, k, j);
    const i64 at =
        h * workspace_rows(p) + workspace_row(p.cu_seqlens_q != nullptr, seq.b, p.Sq, seq.q_row) + i;
    const float lse = ptx::load_global(p.lse_log2 + at);
    if (scores.value(qk, i, j, slope) == -__builtin_bit_cast(float, 0x7F800000u) && lse == lse) return false;
    const float probability = scores.probability(qk, i, j, lse, slope);
    float keep = 1.0f;
    if constexpr (C.dropout)
      keep = dropout_bits(scores.key, u32(seq.b), u32(h), u32(i), u32(j)) >= p.dropout_threshold ? p.inv_keep
                                                                                                 : 0.0f;
    if constexpr (kOf == Gradient::dv) {
      w = probability * keep;
    } else {
      const Matrix dout = matrix(p.dout, p.dout_stride, seq.q_row, h, p.Dv),
                   v = matrix(p.v, p.v_stride, seq.k_row, hk, p.Dv);
      w = probability * (dot(dout, i, v, j) * keep - ptx::load_global(p.delta + at)) * slope * p.scale;
    }
    return true;
  }

  // All lanes: row `row` of head `head` of the gradient.
  template <Gradient kOf>
  TILEWISE_INLINE void repair(i32 head, i32 row) {
    constexpr int kColumns = 8;  // of a lane at a time: lane, lane + 32, ...
    const Matrix to = kOf == Gradient::dq   ? matrix(p.dq, p.dq_stride, seq.q_row, head, p.D)
                      : kOf == Gradient::dk ? matrix(p.dk, p.dk_stride, seq.k_row, head, p.D)
                                            : matrix(p.dv, p.dv_stride, seq.k_row, head, p.Dv);
#pragma unroll 1
    for (i32 first = lane; first - lane < to.columns; first += 32 * kColumns) {
      u32 wrong = 0;
#pragma unroll
      for (int x = 0; x < kColumns; ++x)
        if (const i32 at = first + 32 * x; at < to.columns && is_nan(to.get(row, at))) wrong |= 1u << x;
      if (!ptx::vote_any(wrong != 0)) continue;
      const Range<i32> band = kOf == Gradient::dq ? scores.keys(row)
                              : C.masked          ? scores.band.queries_any(row, row + 1)
                                                  : Range<i32>{0, seq.sq};
      const i64 pairs = i64{band.size()} * (kOf == Gradient::dq ? 1 : p.group);
      float sum[kColumns] = {};
      bool open = true;  // does one of the sums not hold a NaN yet?
#pragma unroll 1
      for (i64 n = 0; n < pairs && ptx::vote_any(open); ++n) {
        const i32 other = band.begin + i32(n % band.size());
        const i32 h = kOf == Gradient::dq ? head : head * p.group + i32(n / band.size());
        const i32 i = kOf == Gradient::dq ? row : other, j = kOf == Gradient::dq ? other : row;
        scores.select_head(h);
        float w;
        if (!weight<kOf>(h, i, j, w)) continue;
        const Matrix from = kOf == Gradient::dq   ? matrix(p.k, p.k_stride, seq.k_row, h / p.group, p.D)
                            : kOf == Gradient::dk ? matrix(p.q, p.q_stride, seq.q_row, h, p.D)
                                                  : matrix(p.dout, p.dout_stride, seq.q_row, h, p.Dv);
        open = false;
#pragma unroll
        for (int x = 0; x < kColumns; ++x) {
          if (!(wrong >> x & 1)) continue;
          sum[x] = ptx::fma(w, from.get(other, first + 32 * x), sum[x]);
          open |= sum[x] == sum[x];
        }
      }
#pragma unroll
      for (int x = 0; x < kColumns; ++x)
        if (wrong >> x & 1) to.set(row, first + 32 * x, sum[x]);
    }
  }
};

template <Config C>
TILEWISE_KERNEL(kRepairThreads, 1)
backward_repair(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  const u64 query_rows = u64(p.B) * u64(p.H) * u64(p.Sq), key_rows = u64(p.B) * u64(p.Hk) * u64(p.Sk);
  if (p.spoiled && ptx::load_global(p.spoiled) == 0) return;
  constexpr u64 kWarps = kRepairThreads / 32;
  const u64 blocks = backward_repair_blocks(p.B, p.H, p.Hk, p.Sq, p.Sk);
#pragma unroll 1
  for (u64 n = ptx::block_number() * kWarps + ptx::thread_index() / 32; n < query_rows + key_rows;
       n += blocks * kWarps) {
    const bool of_query = n < query_rows;
    const u64 row = of_query ? n : n - query_rows;
    const u64 length = u64(of_query ? p.Sq : p.Sk), heads = u64(of_query ? p.H : p.Hk);
    const i32 at = i32(row % length), h = i32(row / length % heads), b = i32(row / length / heads);
    const SequenceView seq = find_sequence<C.varlen>(p, b);
    if (at >= (of_query ? seq.sq : seq.sk)) continue;
    RowGradient<C> gradient(p, seq);
    if (of_query) {
      gradient.template repair<Gradient::dq>(h, at);
    } else {
      gradient.template repair<Gradient::dk>(h, at);
      gradient.template repair<Gradient::dv>(h, at);
    }
  }
}

}  // namespace tilewise::mma
