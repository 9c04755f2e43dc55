// The forward of wide heads (wide.h): Algorithm 1 with 64 queries a block, of whose O the block owns C.dv
// columns. Q_i K_j^T streams both operands; V_j's columns arrive meanwhile. Scores, softmax and epilogue are
// fwd.cuh's.
#pragma once

#include "../tile/repair.h"
#include "../tile/softmax.h"
#include "../tile/store.h"
#include "wide.cuh"

namespace tilewise::mma {

template <Config C>
TILEWISE_KERNEL(kWideThreads, C.min_blocks)
wide_forward(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  constexpr bool kCanHide = C.masked || C.boolean_mask;
  constexpr int kElement = tile::element_bytes(C.element);
  auto& smem = *reinterpret_cast<WideSmem<C>*>(ptx::dynamic_shared());
  static_assert(sizeof(smem) <= wide_smem_bytes(C) && kWideRows * C.dv * kElement <= sizeof(smem));
  const typename WideSmem<C>::Columns v_smem{ptx::shared_address(smem.columns[0])};
  const int thread = int(ptx::thread_index()), lane = thread % 32, warp_row = thread / 32 * 16;

  const WideWork work = wide_work(C, ptx::block_number(), p.B, p.H, p.Sq, p.Dv);
  if (work.none) return;
  const i32 b = work.b, h = work.h, kv_head = h / p.group;
  const i32 i0 = (p.Sq - 1) / kWideRows * kWideRows - work.first;  // the longest rows first
  const SequenceView seq = find_sequence<C.varlen>(p, b);
  if (i0 >= seq.sq) return;

  const RowBlock q{tile::rows(p.q, kElement, p.q_stride, b, seq.q_row, h, p.D), i0, seq.sq};
  const tile::Rows k = tile::rows(p.k, kElement, p.k_stride, b, seq.k_row, kv_head, p.D);
  const tile::Rows v = tile::rows(p.v, kElement, p.v_stride, b, seq.k_row, kv_head, p.Dv);
  const tilewise::Scores<C> score(p, seq, h);
  const float sign = query_sign<C>(p);
  const i32 i_end = i0 + kWideRows < seq.sq ? i0 + kWideRows : seq.sq;
  const Range<i32> keys = score.band.any(i0, i_end);
  const i32 first = keys.begin / kWideRows, last = keys.empty() ? first - 1 : (keys.end - 1) / kWideRows;
  const i32 i = i0 + warp_row + lane / 4;

  float o_acc[1][C.dv / 8][4] = {};
  OnlineSoftmax<1, tilewise::Scores<C>::kExact> softmax;
  const Dropout dropout(p, b, h);
#pragma unroll 1
  for (i32 j = last; j >= first; --j) {
    tile::load_rows<kWideThreads, C.strided>(v_smem, from_column(v, work.column), j * kWideRows, seq.sk,
                                             thread);
    ptx::cp_async_commit();
    float s_frag[1][kWideRows / 8][4];
    wide_product<C>(smem, s_frag, q, {k, j * kWideRows, seq.sk});
    if (sign != 1.0f)
      tile::for_elements<1, kWideRows / 8>([&](int, int n, int r) { s_frag[0][n][r] *= sign; });
    const i32 column = j * kWideRows + lane % 4 * 2;
    score.template apply<true>(s_frag[0], i, column);
    softmax.raise(s_frag, o_acc, score.multiplier);
    softmax.exponentiate(s_frag, score.multiplier);
    if constexpr (C.dropout) dropout.apply(s_frag[0], i, column);
    wide_add<C>(smem, o_acc, s_frag, v_smem);
    ptx::sync_threads();  // V_j may be overwritten
  }

  const float sink = p.sink ? ptx::load_global(p.sink + i64{h} * p.sink_h) : -infinity();
  u32 suspects = 0;  // rows whose output is not finite though their LSE is
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const auto row = softmax.finish(0, r, score, sink);
    const float factor = C.dropout ? row.factor * p.inv_keep : row.factor;
#pragma unroll
    for (int n = 0; n < C.dv / 8; ++n)
#pragma unroll
      for (int x = 2 * r; x < 2 * r + 2; ++x) {
        o_acc[0][n][x] = row.empty ? 0.0f : o_acc[0][n][x] * factor;
        if (kCanHide && !is_finite(o_acc[0][n][x]) && is_finite(row.lse)) suspects |= 1u << r;
      }
    const i32 at = i + 8 * r;
    if (p.lse && work.column == 0 && lane % 4 == 0 && at < seq.sq)
      ptx::store_global(p.lse + (i64{b} * p.lse_b * (p.cu_seqlens_q == nullptr) + i64{h} * p.lse_h +
                                 (seq.q_row + at) * p.lse_s),
                        row.lse);
  }
  // The block's columns of each tensor.
  const i64 step = work.column * i64{kElement};
  const GlobalOut out{const_cast<unsigned char*>(head_base(p.out, p.out_stride, b, seq.q_row, h, kElement)) +
                          step * p.out_stride.d,
                      p.out_stride.s * kElement, p.out_stride.d * kElement,
                      p.Dv - work.column < C.dv ? p.Dv - work.column : C.dv, seq.sq};
  store_fragment<C.element, tilewise::SmemTile<C.element, kWideRows, C.dv, Access::matrix>>(
      ptx::shared_address(ptx::dynamic_shared()), o_acc, warp_row, out, i0);
  if constexpr (kCanHide) {
    if (!ptx::vote_any(suspects != 0)) return;
    const auto rows = [&](const void* data, const Strides& s, i64 row, i32 head, i64 offset, i32 columns) {
      return GlobalRows{head_base(data, s, b, row, head, kElement) + offset * s.d, s.s * kElement,
                        s.d * kElement, columns};
    };
    const RowRepair<C> repair{score,
                              dropout,
                              rows(p.q, p.q_stride, seq.q_row, h, 0, p.D),
                              rows(p.k, p.k_stride, seq.k_row, kv_head, 0, p.D),
                              rows(p.v, p.v_stride, seq.k_row, kv_head, step, out.columns),
                              out,
                              p.scale,
                              sink,
                              p.inv_keep};
#pragma unroll 1
    for (int row = 0; row < 16; ++row) {
      const i32 at = i0 + warp_row + row;
      const bool suspect = lane / 4 == row % 8 && (suspects >> (row / 8) & 1);
      if (ptx::vote_any(suspect) && at < seq.sq) repair(at);
    }
  }
}

}  // namespace tilewise::mma
