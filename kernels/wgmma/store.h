// A warp's 16 rows of O and L on their way from accumulators to global memory. O goes through shared memory
// by TMA, which neither the warp nor the products wait for.
#pragma once

#include "../ptx/ldmatrix.h"
#include "../ptx/tma.h"
#include "../tile/fragment.h"
#include "softmax.h"
#include "work.h"

namespace tilewise::wgmma {

// A warp's own shared memory: 16 rows of some boxes of columns, swizzled as the tensor map of out has it.
using StageBox = unsigned short[kWarpRows][kSwizzleCols];

// A packed row of a tile: a query and a head of the pack.
struct OutputRow {
  i32 i, head;
  TILEWISE_INLINE OutputRow(const WorkTile& tile, i32 pack, i32 row)
      : i(row >> pack), head((tile.head << pack) | (row & ((1 << pack) - 1))) {}
};

// Rows of a sequence that ends inside the warp's rows: TMA would write into the next one.
template <Config C>
TILEWISE_INLINE void store_rows_that_exist(const StageBox* stage, int boxes, i32 first_column,
                                           const WorkTile& tile, i32 row0, const AttentionParams& p,
                                           i32 pack) {
  unsigned short* out = static_cast<unsigned short*>(p.out) + (p.cu_seqlens_q ? 0 : tile.b) * p.out_stride.b;
#pragma unroll 1
  for (int piece = int(ptx::thread_index() % 32); piece < boxes * kWarpRows * 8; piece += 32) {
    const int box = piece / (kWarpRows * 8), r = piece / 8 % kWarpRows, chunk = piece % 8;
    const OutputRow row(tile, pack, row0 + r);
    const i32 column = first_column + box * kSwizzleCols + chunk * 8;
    if (row.i >= tile.sq || column >= p.Dv) continue;
    const ptx::Vec4 eight = ptx::ld_shared_v4(ptx::shared_address(&stage[box][r][(chunk ^ r % 8) * 8]));
    ptx::store_global(reinterpret_cast<ptx::Vec4*>(out + i64{tile.q_row + row.i} * p.out_stride.s +
                                                   row.head * p.out_stride.h + column),
                      eight);
  }
  ptx::sync_warp();
}

// O_i / l_i and L_i = m_i + log l_i of rows warp_row .. + 16 of the tile. o holds O_i, and is used up. True,
// of all lanes: some row is not finite though its L is.
template <Config C>
TILEWISE_INLINE bool store_output(float (&o)[C.dv / 8][4], const RowStats<Scores<C>::kExact>& stats,
                                  const WorkTile& tile, i32 warp_row, StageBox* stage,
                                  const AttentionParams& p, const ForwardLaunch& launch) {
  using N = Number<C.element>;
  constexpr bool kCanHide = C.masked || C.boolean_mask;  // keys of a loaded block from rows of the tile
  constexpr int kBoxes = column_boxes(C.dv), kStaged = stage_boxes(C);
  const int lane = int(ptx::opaque(ptx::thread_index()) % 32);  // what is made of it lives here only
  const i32 pack = launch.pack_log2, row0 = tile.row0 + warp_row, b = p.cu_seqlens_q ? 0 : tile.b;
  const OutputRow own[2] = {{tile, pack, row0 + lane / 4}, {tile, pack, row0 + lane / 4 + 8}};
  float sink[2] = {-infinity(), -infinity()};
  if (p.sink != nullptr)
#pragma unroll
    for (int h = 0; h < 2; ++h) sink[h] = ptx::load_global(p.sink + i64{own[h].head} * p.sink_h);
  const FinishedRow l[2] = {stats.finish(0, sink[0]), stats.finish(1, sink[1])};
  if (ptx::vote_any(l[0].empty || l[1].empty)) [[unlikely]] {
#pragma unroll
    for (int t = 0; t < C.dv / 8; ++t)
#pragma unroll
      for (int x = 0; x < 4; ++x)
        if (l[x / 2].empty) o[t][x] = 0;
  }
  const float factor[2] = {C.dropout ? l[0].factor * p.inv_keep : l[0].factor,
                           C.dropout ? l[1].factor * p.inv_keep : l[1].factor};
  u32 spoiled[2] = {};  // NaN once an element is not finite
  const int r = lane % kWarpRows;
  const u32 to = ptx::shared_address(&stage[0][r][(lane / kWarpRows ^ r % 8) * 8]);
  const bool whole = !C.varlen || ptx::vote_all(((row0 + kWarpRows - 1) >> pack) < tile.sq);
#pragma unroll
  for (int first = 0; first < kBoxes; first += kStaged) {
    if (ptx::elect_one()) ptx::tma_store_wait_read();
    ptx::sync_warp();
#pragma unroll
    for (int box = first; box < kBoxes && box < first + kStaged; ++box)
#pragma unroll
      for (int t = box * 8; t < box * 8 + 8 && t < C.dv / 8; t += 2) {
        u32 pair[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          const float* two = o[t + x / 2] + x % 2 * 2;
          pair[x] = N::pack(two[0] * factor[x % 2], two[1] * factor[x % 2]);
          if constexpr (kCanHide) spoiled[x % 2] = N::fma(pair[x], 0, spoiled[x % 2]);
        }
        ptx::stmatrix_x4((to ^ (t % 8 * 16)) + (box - first) * u32(sizeof(StageBox)), pair);
      }
    ptx::fence_proxy_async();
    ptx::sync_warp();
    if (whole) {
      if (ptx::elect_one()) {
#pragma unroll
        for (int box = first; box < kBoxes && box < first + kStaged; ++box)
          ptx::tma_store_5d(launch.out, stage[box - first], box * kSwizzleCols, row0 & ((1 << pack) - 1),
                            tile.q_row + (row0 >> pack), tile.head, b);
        ptx::tma_store_commit();
      }
    } else {
      const int left = kBoxes - first;
      store_rows_that_exist<C>(stage, left < kStaged ? left : kStaged, first * kSwizzleCols, tile, row0, p,
                               pack);
    }
  }
  bool suspect = false;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const bool exists = own[h].i < tile.sq;
    if (p.lse != nullptr && lane % 4 == 0 && exists)
      ptx::store_global(p.lse + b * p.lse_b + own[h].head * p.lse_h + i64{tile.q_row + own[h].i} * p.lse_s,
                        l[h].lse);
    if constexpr (kCanHide) suspect |= exists && (spoiled[h] & 0x7FFF7FFFu) != 0 && is_finite(l[h].lse);
  }
  return ptx::vote_any(suspect);
}

}  // namespace tilewise::wgmma
