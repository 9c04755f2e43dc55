// FlashAttention 1 backward (Dao et al. 2022, Algorithm 4; sizes and limits in fa1.h). One thread block owns
// a key/value head of a sequence. For each key block it keeps dK_j, dV_j in registers and walks over the
// query blocks of every query head of the group, whose dQ_i it reads from and writes to global memory every
// time: one block a head needs no atomic addition. The warps split the keys of a block (16 each); their parts
// of dQ_i meet in shared memory.
#pragma once

#include "../mma/bwd_repair.cuh"
#include "../ptx/barrier.h"
#include "../ptx/math.h"
#include "../ptx/warp.h"
#include "../tile/element.h"
#include "../tile/rows.h"
#include "../tile/sequence.h"
#include "fa1.h"

namespace tilewise::baseline {

template <Config C>
TILEWISE_KERNEL(fa1_threads(C), C.d <= 32 ? 2 : 1)
fa1_backward(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  using M = tile::Mma<C.element>;
  using KTile = tile::SmemTile<C.element, C.Bc, C.d>;
  using VTile = tile::SmemTile<C.element, C.Bc, C.dv>;
  using QTile = tile::SmemTile<C.element, kFa1Rows, C.d>;
  using OTile = tile::SmemTile<C.element, kFa1Rows, C.dv>;
  using STile = tile::SmemTile<C.element, C.Bc, 32>;  // 16 columns of it
  static_assert(C.Bc == 16 * C.warps);
  constexpr int kThreads = fa1_threads(C);
  constexpr float kLog2OfE = 1.44269504088896341f;
  const int thread = int(ptx::thread_index());
  const int warp = int(ptx::shfl_idx(u32(thread / 32), 0)), key_row = warp * 16;
  const tile::Lane lane = tile::lane_of(thread);

  const KTile k_smem{ptx::shared_address(ptx::dynamic_shared())};
  const VTile v_smem{k_smem.base + KTile::kBytes};
  const QTile q_smem{v_smem.base + VTile::kBytes};
  const OTile do_smem{q_smem.base + QTile::kBytes};
  const STile ds_smem{do_smem.base + OTile::kBytes};
  const u32 part_smem = ds_smem.base + STile::kBytes;  // [warp][row][column]
  const auto part_at = [&](int w, int row, int column) {
    return part_smem + u32(((w * kFa1Rows + row) * C.d + column) * 4);
  };

  const u32 nan_smem = part_at(C.warps, 0, warp);  // has this warp stored a NaN?
  const auto note = [&](bool nan) {
    if (nan) ptx::st_shared(nan_smem, 1u);
  };
  if (lane.lane == 0) ptx::st_shared(nan_smem, 0u);

  const u64 block = ptx::block_number();
  if (block >= fa1_backward_blocks(p.B, p.Hk)) return;
  const i32 hk = i32(block % u64(p.Hk)), b = i32(block / u64(p.Hk)), first_head = hk * p.group;
  const SequenceView seq = find_sequence<false>(p, b);
  const Band<i32> band = band_of(p, seq);
  const i64 statistics = workspace_row(false, b, p.Sq, 0), statistics_head = workspace_rows(p);
  float* const dq_rows = p.dq_accum + (i64(b) * p.H + first_head) * p.Sq * C.d;  // of the group's heads
  for (i64 x = thread; x < i64(p.group) * p.Sq * C.d; x += kThreads) ptx::store_global(dq_rows + x, 0.0f);

  // Keys that no query sees are not read, nor are queries that see none of a block: what they hold times a P
  // of 0 could be a NaN. What comes of the others that hidden pairs let in is repaired at the end.
  const Range<i32> keys = band.any(0, p.Sq);
  const auto clear_gradient = [&](void* data, const Strides& t, i32 columns) {
    for (i64 x = thread; x < i64(p.Sk) * columns; x += kThreads)
      if (const i64 j = x / columns; !keys.contains(i32(j)))
        tile::store_float<C.element>(data, b * t.b + j * t.s + hk * t.h + x % columns * t.d, 0.0f);
  };
  clear_gradient(p.dk, p.dk_stride, p.D);
  clear_gradient(p.dv, p.dv_stride, p.Dv);
  // Addresses are made where they are used, except where registers are short either way.
  const auto anew = [](i32 x) { return C.d < 128 ? i32(ptx::opaque(u32(x))) : x; };
#pragma unroll 1
  for (i32 j0 = keys.begin; j0 < keys.end; j0 += C.Bc) {
    const i32 j1 = j0 + C.Bc < keys.end ? j0 + C.Bc : keys.end;
    const Range<i32> queries = band.queries_any(j0, j1);
    float dk_acc[1][C.d / 8][4], dv_acc[1][C.dv / 8][4];
    tile::clear(dk_acc);
    tile::clear(dv_acc);
    ptx::sync_threads();
    const i32 its = anew(b);
    const tile::Rows k = tile::rows(p.k, 2, p.k_stride, its, 0, hk, p.D),
                     v = tile::rows(p.v, 2, p.v_stride, its, 0, hk, p.Dv);
    tile::load_rows<kThreads, true>(k_smem, k, j0, keys.end, thread);
    tile::load_rows<kThreads, true>(v_smem, v, j0, keys.end, thread);
    ptx::cp_async_commit();
#pragma unroll 1
    for (i32 head = 0; head < p.group; ++head) {
      const i64 statistics_at = (first_head + head) * statistics_head + statistics;
#pragma unroll 1
      for (i32 i0 = queries.begin; i0 < queries.end; i0 += kFa1Rows) {
        const i32 batch = anew(b), loader = anew(thread);
        const tile::Rows q = tile::rows(p.q, 2, p.q_stride, batch, 0, first_head + head, p.D);
        const tile::Rows dout = tile::rows(p.dout, 2, p.dout_stride, batch, 0, first_head + head, p.Dv);
        tile::load_rows<kThreads, true>(q_smem, q, i0, queries.end, loader);
        tile::load_rows<kThreads, true>(do_smem, dout, i0, queries.end, loader);
        ptx::cp_async_commit();
        ptx::cp_async_wait<0>();
        ptx::sync_threads();

        // P^T = exp(scale K_w Q_i^T - lse), dP^T = V_w dO_i^T, dS^T = P^T (dP^T - delta)   [16 keys, 16
        // queries]
        float p_frag[1][2][4], ds_frag[1][2][4];
        tile::clear(p_frag);
        tile::clear(ds_frag);
        tile::multiply_add<M, C.d>(
            p_frag, [&](int, int depth) { return M::a_along(k_smem, lane.lane, key_row, depth); },
            [&](int nt, int depth) { return M::b_along(q_smem, lane.lane, nt * 16, depth); });
        tile::multiply_add<M, C.dv>(
            ds_frag, [&](int, int depth) { return M::a_along(v_smem, lane.lane, key_row, depth); },
            [&](int nt, int depth) { return M::b_along(do_smem, lane.lane, nt * 16, depth); });
#pragma unroll
        for (int nt = 0; nt < 2; ++nt)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const i32 i = i0 + nt * 8 + 2 * lane.q + e;
            const float lse = i < queries.end ? ptx::load_global(p.lse_log2 + statistics_at + i) : 0.0f;
            const float delta = i < queries.end ? ptx::load_global(p.delta + statistics_at + i) : 0.0f;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              const i32 j = j0 + key_row + lane.g + half * 8;
              float &pr = p_frag[0][nt][half * 2 + e], &ds = ds_frag[0][nt][half * 2 + e];
              const bool on = i < queries.end && band.sees(i, j);
              pr = on ? ptx::ex2(ptx::fma(pr, p.scale, -lse) * kLog2OfE) : 0.0f;
              ds = on ? pr * (ds - delta) : 0.0f;
            }
          }

        // dV_w += P^T dO_i, dK_w += dS^T Q_i
        tile::multiply_add<M, kFa1Rows>(
            dv_acc, [&](int, int depth) { return M::a_of_row(p_frag[0], depth); },
            [&](int nt, int depth) { return M::b_across(do_smem, lane.lane, nt * 16, depth); });
        tile::multiply_add<M, kFa1Rows>(
            dk_acc, [&](int, int depth) { return M::a_of_row(ds_frag[0], depth); },
            [&](int nt, int depth) { return M::b_across(q_smem, lane.lane, nt * 16, depth); });

        // This warp's part of dQ_i: dS_w K_w   [16 queries, d]
        tile::for_blocks<1, 2>([&](int, int nt) {
          M::store_pair(ds_smem, key_row + lane.g, nt * 8 + 2 * lane.q, ds_frag[0][nt][0], ds_frag[0][nt][1]);
          M::store_pair(ds_smem, key_row + lane.g + 8, nt * 8 + 2 * lane.q, ds_frag[0][nt][2],
                        ds_frag[0][nt][3]);
        });
        ptx::sync_warp();
        float dq_frag[1][C.d / 8][4];
        tile::clear(dq_frag);
        tile::multiply_add<M, 16>(
            dq_frag, [&](int, int depth) { return M::a_across(ds_smem, lane.lane, 0, key_row + depth); },
            [&](int nt, int depth) { return M::b_across(k_smem, lane.lane, nt * 16, key_row + depth); });
#pragma unroll
        for (int nt = 0; nt < C.d / 8; ++nt)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            ptx::st_shared_v2(
                part_at(warp, lane.g + half * 8, nt * 8 + 2 * lane.q),
                {{ptx::bits_of(dq_frag[0][nt][half * 2]), ptx::bits_of(dq_frag[0][nt][half * 2 + 1])}});
        ptx::sync_threads();
        for (int x = thread; x < kFa1Rows * C.d; x += kThreads) {
          const int row = x / C.d, column = x % C.d;
          if (i0 + row >= queries.end) break;
          float* at = dq_rows + (i64(head) * p.Sq + i0 + row) * C.d + column;
          float dq = ptx::load_global(at);
#pragma unroll
          for (int w = 0; w < C.warps; ++w) dq += ptx::float_of(ptx::ld_shared(part_at(w, row, column)));
          ptx::store_global(at, dq);
        }
      }
    }
    ptx::cp_async_wait<0>();
    ptx::sync_threads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = key_row + lane.g + half * 8;
#pragma unroll
      for (int nt = 0; nt < C.d / 8; ++nt)
        M::store_pair(k_smem, row, nt * 8 + 2 * lane.q, dk_acc[0][nt][half * 2] * p.scale,
                      dk_acc[0][nt][half * 2 + 1] * p.scale);
#pragma unroll
      for (int nt = 0; nt < C.dv / 8; ++nt)
        M::store_pair(v_smem, row, nt * 8 + 2 * lane.q, dv_acc[0][nt][half * 2], dv_acc[0][nt][half * 2 + 1]);
    }
    ptx::sync_threads();
    note(tile::store_rows<kThreads>(tile::rows(p.dk, 2, p.dk_stride, b, 0, hk, p.D), k_smem, j0, keys.end,
                                    thread));
    note(tile::store_rows<kThreads>(tile::rows(p.dv, 2, p.dv_stride, b, 0, hk, p.Dv), v_smem, j0, keys.end,
                                    thread));
  }

  ptx::sync_threads();
  for (i64 x = thread; x < i64(p.group) * p.Sq * p.D; x += kThreads) {
    const i64 column = x % p.D, i = x / p.D % p.Sq, head = x / p.D / p.Sq;
    const Strides& t = p.dq_stride;
    const float dq = p.scale * ptx::load_global(dq_rows + (head * p.Sq + i) * C.d + column);
    tile::store_float<C.element>(p.dq, b * t.b + i * t.s + (first_head + head) * t.h + column * t.d, dq);
    note(dq != dq);
  }
  ptx::sync_warp();
  if (!ptx::sync_threads_or(ptx::ld_shared(nan_smem) != 0)) return;
  constexpr Config kBanded = [] {
    Config c = C;
    c.masked = true;
    return c;
  }();
#pragma unroll 1
  for (int g = 0; g < 3; ++g) {
    const mma::Gradient of = mma::Gradient(g);
    const bool of_query = of == mma::Gradient::dq;
    const i32 length = of_query ? p.Sq : p.Sk, heads = of_query ? p.group : 1;
#pragma unroll 1
    for (i32 r = warp; r < heads * length; r += C.warps)
      mma::repair_row<kBanded>(p, of, b, of_query ? first_head + r / length : hk, r % length);
  }
}

}  // namespace tilewise::baseline
