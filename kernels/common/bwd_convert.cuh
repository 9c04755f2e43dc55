// After the backward: dq = scale * dq_accum, from fp32 accumulator fragments (backward_layout.h) to rows of
// the caller's tensor, any strides. A thread takes 8 columns of rows g and g + 8 of one 16 x 8 piece: 64
// bytes in, two times 8 elements out.
#pragma once

#include "../ptx/special.h"
#include "../tile/element.h"
#include "../tile/sequence.h"
#include "bwd_launch.h"

namespace tilewise::common {

template <Config C>
TILEWISE_KERNEL(kConvertThreads, 1)
bwd_convert(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  constexpr int kPieces = C.d / 8;
  const int thread = int(ptx::thread_index());
  const TileWork work = tile_work(ptx::block_number(), kConvertRows, p.Sq, p.H, p.B);
  if (work.none) return;
  const i32 first = work.first, h = work.h, b = work.b;
  const SequenceView seq = find_sequence<C.varlen>(p, b);
  const i64 rows = workspace_rows(p), row0 = workspace_row(p.cu_seqlens_q != nullptr, b, p.Sq, seq.q_row);
  const bool aligned = tile::rows_aligned<C.element>(p.dq, p.dq_stride);
  const i64 dq0 = b * p.dq_stride.b + seq.q_row * p.dq_stride.s + h * p.dq_stride.h;

  for (int index = thread; index < kConvertRows / 2 * kPieces; index += kConvertThreads) {
    const int c = index % kPieces, g = index / kPieces % 8, group = index / kPieces / 8;
    const i32 i = first + group * 16 + g;
    if (i >= seq.sq || c * 8 >= p.D) continue;
    const float* piece = p.dq_accum + dq_accum_piece(h, rows, (row0 + first) / kRowGroup + group, c, C.d);
    float x[2][8];  // rows g and g + 8
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      // Vector layout: lane 4g + v's four elements. Scalar layout: element v of lanes 4g .. 4g + 3.
      const int at =
          ptx::kVectorAdds ? dq_accum_element(true, 4 * g + v, 0) : dq_accum_element(false, 4 * g, v);
      const ptx::Vec4 w = ptx::load_global(reinterpret_cast<const ptx::Vec4*>(piece + at));
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int q = ptx::kVectorAdds ? v : e, reg = ptx::kVectorAdds ? e : v;
        x[reg >> 1][2 * q + (reg & 1)] = ptx::float_of(w.w[e]) * p.scale;
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (i + half * 8 >= seq.sq) break;
      tile::store_8<C.element>(x[half], p.dq, dq0 + (i + half * 8) * p.dq_stride.s + c * 8 * p.dq_stride.d,
                               p.dq_stride.d, p.D - c * 8, aligned && c * 8 + 8 <= p.D);
    }
  }
}

}  // namespace tilewise::common
