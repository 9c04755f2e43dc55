// What the wide kernels (wide.h) share: shared memory, and the product that streams both operands.
#pragma once

#include "../ptx/barrier.h"
#include "../tile/rows.h"
#include "wide.h"

namespace tilewise::mma {

template <Config C>
struct WideSmem {
  using Piece = tile::SmemTile<C.element, kWideRows, C.d>;
  using Columns = tile::SmemTile<C.element, kWideRows, C.dv>;
  alignas(128) unsigned char a[C.stages][Piece::kBytes];
  alignas(128) unsigned char b[C.stages][Piece::kBytes];
  alignas(128) unsigned char columns[wide_column_tiles(C.kernel)][Columns::kBytes];
};

// 64 rows of one head, from `first` on; those at `end` and beyond count as zeros.
struct RowBlock {
  tile::Rows rows;
  i32 first, end;
};

TILEWISE_INLINE tile::Rows from_column(tile::Rows rows, i32 column) {
  rows.data += column * rows.step;
  rows.columns -= column;
  return rows;
}

// S = A B^T, 16 rows of A a warp: pieces of both arrive by cp.async while the ones before are multiplied.
// What was committed before has arrived afterwards, too.
template <Config C>
TILEWISE_INLINE void wide_product(WideSmem<C>& smem, float (&s)[1][kWideRows / 8][4], const RowBlock& a,
                                  const RowBlock& b) {
  using M = tile::Mma<C.element>;
  using Piece = typename WideSmem<C>::Piece;
  const int thread = int(ptx::thread_index()), lane = thread % 32, row = thread / 32 * 16;
  const i32 pieces = (a.rows.columns + C.d - 1) / C.d;
  const auto load = [&](i32 piece) {
    const int stage = piece & 1;
    const Piece to_a{ptx::shared_address(smem.a[stage])}, to_b{ptx::shared_address(smem.b[stage])};
    tile::load_rows<kWideThreads, C.strided>(to_a, from_column(a.rows, piece * C.d), a.first, a.end, thread);
    tile::load_rows<kWideThreads, C.strided>(to_b, from_column(b.rows, piece * C.d), b.first, b.end, thread);
    ptx::cp_async_commit();
  };
  tile::clear(s);
  load(0);
#pragma unroll 1
  for (i32 piece = 0; piece < pieces; ++piece) {
    ptx::cp_async_wait<0>();
    ptx::sync_threads();  // this piece is here; every warp is done with the one before
    if (piece + 1 < pieces) load(piece + 1);
    const Piece a_smem{ptx::shared_address(smem.a[piece & 1])},
        b_smem{ptx::shared_address(smem.b[piece & 1])};
    tile::multiply_add<M, C.d>(
        s, [&](int, int k) { return M::a_along(a_smem, lane, row, k); },
        [&](int nt, int k) { return M::b_along(b_smem, lane, nt * 16, k); });
  }
  ptx::sync_threads();  // the pieces may be overwritten
}

// C += X Y: X [16, 64] a warp's accumulators, Y 64 rows of a tile of columns. fp32: X goes through the shared
// memory of the pieces, so that depth is a loop; as constants in registers it takes NVRTC seconds.
template <Config C>
TILEWISE_INLINE void wide_add(WideSmem<C>& smem, float (&c)[1][C.dv / 8][4],
                              const float (&x)[1][kWideRows / 8][4], const typename WideSmem<C>::Columns& y) {
  using M = tile::Mma<C.element>;
  const tile::Lane lane = tile::lane_of(int(ptx::thread_index()));
  if constexpr (C.element != Element::fp32) {
    tile::multiply_add<M, kWideRows>(
        c, [&](int, int k) { return M::a_of_row(x[0], k); },
        [&](int nt, int k) { return M::b_across(y, lane.lane, nt * 16, k); });
  } else {
    using Scores = tile::SmemTile<Element::fp32, kWideRows, kWideRows>;
    static_assert(Scores::kBytes <= sizeof(smem.a));
    const Scores x_smem{ptx::shared_address(smem.a[0])};
    const int row = int(lane.warp) * 16;  // the warp's own rows
    tile::for_blocks<1, kWideRows / 8>([&](int, int nt) {
      M::store_pair(x_smem, row + lane.g, nt * 8 + 2 * lane.q, x[0][nt][0], x[0][nt][1]);
      M::store_pair(x_smem, row + lane.g + 8, nt * 8 + 2 * lane.q, x[0][nt][2], x[0][nt][3]);
    });
    ptx::sync_warp();
    tile::multiply_add<M, kWideRows>(
        c, [&](int, int k) { return M::a_along(x_smem, lane.lane, row, k); },
        [&](int nt, int k) { return M::b_across(y, lane.lane, nt * 16, k); });
    ptx::sync_threads();  // the pieces may be overwritten
  }
}

}  // namespace tilewise::mma
