// After the backward: dq = scale * dq_accum, from fp32 accumulator fragments (backward_layout.h) to rows of
// the caller's tensor, any strides. Each warp reads 512-byte pieces, rounds them into a shared-memory tile,
// and the block writes the tile's rows. Under a mask the last to write gradients also repairs them
// (mma/bwd_repair.cuh): each block the rows of dq where it has stored a NaN itself, and all blocks together
// dk and dv where p.spoiled says that the kernel before has. convert_dbias: the fp32 sums of dbias to the
// caller's tensor.
#pragma once

#include "../mma/bwd_repair.cuh"
#include "../ptx/barrier.h"
#include "../ptx/special.h"
#include "../tile/element.h"
#include "../tile/rows.h"
#include "../tile/sequence.h"
#include "bwd_launch.h"

namespace tilewise::common {

template <Config C>
TILEWISE_INLINE auto convert_smem() {
  return tile::SmemTile<C.element, bwd_convert_rows(C), C.d>{ptx::shared_address(ptx::dynamic_shared())};
}

// The tile of dq at `work`, rounded, to shared memory.
template <Config C>
TILEWISE_INLINE void round_tile(const AttentionParams& p, const TileWork& work, const SequenceView& seq) {
  using M = tile::Mma<C.element>;
  constexpr int kRows = bwd_convert_rows(C), kPieces = C.d / 8, kTotal = kRows / 16 * kPieces;
  constexpr int kWarps = kConvertThreads / 32, kSteps = (kTotal + kWarps - 1) / kWarps;
  const auto rows_smem = convert_smem<C>();
  const int thread = int(ptx::thread_index()), warp = thread / 32;
  const tile::Lane lane = tile::lane_of(thread);
  const i32 first = work.first, h = work.h, b = work.b;
  const i64 rows = workspace_rows(p), row0 = workspace_row(p.cu_seqlens_q != nullptr, b, p.Sq, seq.q_row);

  float x[kSteps][4] = {};
#pragma unroll
  for (int n = 0; n < kSteps; ++n) {
    const int piece = n * kWarps + warp, group = piece / kPieces, c = piece % kPieces;
    if (piece >= kTotal || first + group * 16 >= seq.sq) continue;
    tile::load_piece(x[n], p.dq_accum + dq_accum_piece(h, rows, (row0 + first) / kRowGroup + group, c, C.d),
                     lane.lane);
  }
#pragma unroll
  for (int n = 0; n < kSteps; ++n) {
    const int piece = n * kWarps + warp, row = piece / kPieces * 16 + lane.g,
              col = piece % kPieces * 8 + 2 * lane.q;
    if (piece >= kTotal) continue;
    M::store_pair(rows_smem, row, col, x[n][0] * p.scale, x[n][1] * p.scale);
    M::store_pair(rows_smem, row + 8, col, x[n][2] * p.scale, x[n][3] * p.scale);
  }
  ptx::sync_threads();
}

// From there to the caller's tensor. True: this thread has stored a NaN or an infinity.
template <Config C>
TILEWISE_INLINE bool store_tile(const AttentionParams& p, const TileWork& work, const SequenceView& seq) {
  const tile::Rows dq =
      tile::rows(p.dq, tile::element_bytes(C.element), p.dq_stride, work.b, seq.q_row, work.h, p.D);
  return tile::store_rows<kConvertThreads>(dq, convert_smem<C>(), work.first, seq.sq,
                                           int(ptx::thread_index()));
}

template <Config C>
TILEWISE_KERNEL(kConvertThreads, bwd_convert_residents(C))
bwd_convert(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  const TileWork work = tile_work(ptx::block_number(), bwd_convert_rows(C), p.Sq, p.H, p.B);
  if (work.none) return;
  const SequenceView seq = find_sequence<C.varlen>(p, work.b);
  const bool rows = work.first < seq.sq;
  if (rows) round_tile<C>(p, work, seq);
  if constexpr (!mma::repairs(C)) {
    if (rows) store_tile<C>(p, work, seq);
  } else {
    const bool keys_spoiled = ptx::load_global(p.spoiled) != 0;  // on its way while rows are stored
    const bool nan = rows && ptx::sync_threads_or(store_tile<C>(p, work, seq));
    if (nan || keys_spoiled)
      mma::repair_gradients<C>(p, nan ? mma::Gradient::dq : mma::Gradient::dk,
                               keys_spoiled ? mma::Gradient::dv : mma::Gradient::dq, bwd_convert_rows(C),
                               bwd_convert_blocks(C, p.B, p.H, p.Sq));
  }
}

template <Config C>
TILEWISE_KERNEL(kConvertThreads, 1)
convert_dbias(const TILEWISE_GRID_CONSTANT DbiasParams p) {
  const i64 n = i64(ptx::block_number()) * kConvertThreads + ptx::thread_index();
  const i64 columns = p.size[3], rows = p.size[2] * columns, heads = p.size[1] * rows;
  if (n >= p.size[0] * heads) return;
  const i64 b = n / heads, h = n % heads / rows, i = n % rows / columns, j = n % columns;
  const i64 at = b * p.stride.b + h * p.stride.h + i * p.stride.i + j * p.stride.j;
  float x = 0.0f;
  for (i64 part = 0; part < p.parts; ++part) x += ptx::load_global(p.from + part * p.size[0] * heads + n);
  if (p.to_element == i32(Element::fp32))
    tile::store_float<Element::fp32>(p.to, at, x);
  else if (p.to_element == i32(Element::bf16))
    tile::store_float<Element::bf16>(p.to, at, x);
  else
    tile::store_float<Element::fp16>(p.to, at, x);
}

}  // namespace tilewise::common
