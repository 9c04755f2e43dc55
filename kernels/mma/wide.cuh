// What the wide kernels (wide.h) share: shared memory, and the product that streams both operands.
#pragma once

#include "../ptx/barrier.h"
#include "../tile/rows.h"
#include "wide.h"

namespace tilewise::mma {

// fp32 instructions in a chain (operand.h); narrow columns are those of kernels short of registers, as are
// those of dQ beside a softcap's derivative.
template <Config C>
inline constexpr int kWideLongest = C.dv < 64 || (C.element == Element::fp32 && C.kernel == Kernel::wide_dq &&
                                                  C.softcap)
                                        ? 1
                                        : 2;

template <Config C>
struct WideSmem {
  using Piece = tile::SmemTile<C.element, kWideRows, C.d>;
  using Columns = tile::SmemTile<C.element, kWideRows, C.dv>;
  using Scores = tile::SmemTile<C.element, kWideRows, kWideRows>;
  alignas(128) unsigned char a[C.stages][Piece::kBytes];
  alignas(128) unsigned char b[C.stages][Piece::kBytes];
  alignas(128) unsigned char columns[wide_column_tiles(C.kernel)][Columns::kBytes];
};

template <Config C>
struct WideDkvSmem : WideSmem<C> {
  alignas(128) unsigned char scores[WideSmem<C>::Scores::kBytes];  // P
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
  // Addresses are made where they are used: kept over the kernel's loop, they take the registers of its sums.
  const int thread = int(ptx::opaque(ptx::thread_index())), lane = thread % 32, row = thread / 32 * 16;
  const i32 pieces = (a.rows.columns + C.d - 1) / C.d;
  const auto load = [&](i32 piece) {
    const int stage = piece & 1;
    const int loader = int(ptx::opaque(u32(thread)));
    const Piece to_a{ptx::shared_address(smem.a[stage])}, to_b{ptx::shared_address(smem.b[stage])};
    tile::load_rows<kWideThreads, C.strided>(to_a, from_column(a.rows, piece * C.d), a.first, a.end, loader);
    tile::load_rows<kWideThreads, C.strided>(to_b, from_column(b.rows, piece * C.d), b.first, b.end, loader);
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
    tile::multiply_add<M, C.d, false, kWideLongest<C>>(
        s, [&](int, int k) { return M::a_along(a_smem, lane, row, k); },
        [&](int nt, int k) { return M::b_along(b_smem, lane, nt * 16, k); });
  }
  ptx::sync_threads();  // the pieces may be overwritten
}

// A warp's 16 rows of 64 scores into and out of a tile: each lane its own elements.
template <Config C>
TILEWISE_INLINE void put_scores(const typename WideSmem<C>::Scores& to,
                                const float (&x)[1][kWideRows / 8][4]) {
  using M = tile::Mma<C.element>;
  const tile::Lane lane = tile::lane_of(int(ptx::opaque(ptx::thread_index())));
  const int row = int(lane.warp) * 16 + lane.g;
  tile::for_blocks<1, kWideRows / 8>([&](int, int nt) {
    M::store_pair(to, row, nt * 8 + 2 * lane.q, x[0][nt][0], x[0][nt][1]);
    M::store_pair(to, row + 8, nt * 8 + 2 * lane.q, x[0][nt][2], x[0][nt][3]);
  });
}

// C += X Y: X [16, 64] a warp's accumulators, Y 64 rows of a tile of columns. fp32: X goes through the shared
// memory of the pieces, so that depth is a loop; as constants in registers it takes NVRTC seconds.
template <Config C>
TILEWISE_INLINE void wide_add(WideSmem<C>& smem, float (&c)[1][C.dv / 8][4],
                              const float (&x)[1][kWideRows / 8][4], const typename WideSmem<C>::Columns& y) {
  using M = tile::Mma<C.element>;
  const tile::Lane lane = tile::lane_of(int(ptx::opaque(ptx::thread_index())));
  if constexpr (C.element != Element::fp32) {
    tile::multiply_add<M, kWideRows>(
        c, [&](int, int k) { return M::a_of_row(x[0], k); },
        [&](int nt, int k) { return M::b_across(y, lane.lane, nt * 16, k); });
  } else {
    using Scores = typename WideSmem<C>::Scores;
    static_assert(Scores::kBytes <= sizeof(smem.a));
    const Scores x_smem{ptx::shared_address(smem.a[0])};
    put_scores<C>(x_smem, x);
    ptx::sync_warp();  // the warp's own rows
    tile::multiply_add<M, kWideRows, false, kWideLongest<C>>(
        c, [&](int, int k) { return M::a_along(x_smem, lane.lane, int(lane.warp) * 16, k); },
        [&](int nt, int k) { return M::b_across(y, lane.lane, nt * 16, k); });
    ptx::sync_threads();  // the pieces may be overwritten
  }
}

}  // namespace tilewise::mma
