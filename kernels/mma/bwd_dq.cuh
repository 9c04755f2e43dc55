// dQ of the deterministic backward, without atomic additions: a thread block owns the query block Q_i, dO_i
// of one head and walks over the key blocks that it sees; bwd.cuh with C.deterministic computes dK and dV
// alone. Together 14 d instead of 10 d multiply-adds a score: S and dP are computed twice.
//   (1) S = Q_i K_j^T   (2) P = exp2(S - lse)   (3) dP = dO_i V_j^T   (4) dS = P (dP - delta)   (5) dQ_i +=
//   dS K_j
// Every warp owns 16 query rows, so that nothing passes between warps: dS is the A operand of (5) as
// accumulated (fp32 beyond head dim 128: through shared memory, as the registers are full). Q and dO stay in
// shared memory; K and V of the next block arrive by cp.async while this one is worked on.
#pragma once

#include "../ptx/barrier.h"
#include "../tile/rows.h"
#include "backward_tiles.h"
#include "bwd_scores.cuh"

namespace tilewise::mma {

template <Config C>
struct BackwardDqSmem {
  using QTile = tile::SmemTile<C.element, C.Br, C.d>;
  using OTile = tile::SmemTile<C.element, C.Br, C.dv>;
  using KTile = tile::SmemTile<C.element, C.Bc, C.d>;
  using VTile = tile::SmemTile<C.element, C.Bc, C.dv>;
  struct Plan {
    alignas(128) unsigned char q[QTile::kBytes];
    alignas(128) unsigned char dout[OTile::kBytes];
    alignas(128) unsigned char k[C.stages][KTile::kBytes];
    alignas(128) unsigned char v[C.stages][VTile::kBytes];
  };
  static_assert(sizeof(Plan) == backward_dq_smem_bytes(C));
};

template <Config C>
TILEWISE_KERNEL(backward_dq_threads(C), C.min_blocks)
backward_dq(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  using Smem = BackwardDqSmem<C>;
  using M = tile::Mma<C.element>;
  constexpr int kElement = tile::element_bytes(C.element), kThreads = backward_dq_threads(C), NT = C.Bc / 8;
  static_assert(C.Br == 16 * C.warps && NT % 2 == 0);

  constexpr bool kFull = C.d > 128 || C.dv > 128;  // of registers
  constexpr bool kFeatures = C.softcap || C.alibi || C.bias || C.boolean_mask || C.dropout || C.strided;
  constexpr bool kFullest = C.element == Element::fp32 && (kFull || backward_dq_ds_shared(C));
  constexpr bool kShortest = kFullest || (kFull && kFeatures) || (C.strided && C.element != Element::fp32);
  constexpr int kLongest = kShortest ? 1 : kFull ? 2 : 4;  // operand.h
  auto& smem = *reinterpret_cast<typename Smem::Plan*>(ptx::dynamic_shared());
  const typename Smem::QTile q_smem{ptx::shared_address(smem.q)};
  const typename Smem::OTile do_smem{ptx::shared_address(smem.dout)};
  const int thread = int(ptx::thread_index());
  const int warp = int(ptx::shfl_idx(thread / 32, 0));

  const TileWork work = tile_work(ptx::block_number(), C.Br, p.Sq, p.H, p.B);
  if (work.none) return;
  const i32 h = work.h, b = work.b, hk = h / p.group;
  const SequenceView seq = kFull ? find_sequence_of_warp<C.varlen>(p, b) : find_sequence<C.varlen>(p, b);
  const i32 blocks = (p.Sq + C.Br - 1) / C.Br,
            i0 = (blocks - 1) * C.Br - work.first;  // the longest rows first
  if (i0 >= seq.sq) return;
  const Band<i32> band = band_of(p, seq);
  Scores<C> scores(p, band, seq);
  scores.select_head(h);

  const i32 i1 = i0 + C.Br < seq.sq ? i0 + C.Br : seq.sq;
  const Range<i32> keys = C.masked ? band.any(i0, i1) : Range<i32>{0, seq.sk};
  const i32 first = keys.begin / C.Bc, count = keys.empty() ? 0 : (keys.end + C.Bc - 1) / C.Bc - first;

  // Keys that no query sees are zeros, whatever they hold: 0 * NaN is NaN.
  const auto seen_keys = [&] {
    return scores.band.any(0, kFullest ? i32(ptx::opaque(u32(seq.sq))) : seq.sq);
  };
  const auto load_keys = [&](i32 block, int stage) {
    const i32 batch = i32(ptx::opaque(u32(b)));  // addresses are made where they are used
    const int loader = int(ptx::opaque(u32(thread)));
    const tile::Rows k = tile::rows(p.k, kElement, p.k_stride, batch, seq.k_row, hk, p.D);
    const tile::Rows v = tile::rows(p.v, kElement, p.v_stride, batch, seq.k_row, hk, p.Dv);
    const typename Smem::KTile k_smem{ptx::shared_address(smem.k[stage])};
    const typename Smem::VTile v_smem{ptx::shared_address(smem.v[stage])};
    const i32 end = C.masked ? seen_keys().end : seq.sk;
    tile::load_rows<kThreads, C.strided>(k_smem, k, block * C.Bc, end, loader);
    tile::load_rows<kThreads, C.strided>(v_smem, v, block * C.Bc, end, loader);
  };

  float dq_acc[1][C.d / 8][4];
  tile::clear(dq_acc);
  float lse[2], delta[2];  // of rows g and g + 8
  const tile::Lane home = tile::lane_of(thread);
  const auto read_statistics = [&](i32 head, i32 batch, i32 row) {
    const i64 statistics =
        head * workspace_rows(p) + workspace_row(p.cu_seqlens_q != nullptr, batch, p.Sq, seq.q_row);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 i = row + half * 8;
      lse[half] = i < seq.sq ? ptx::load_global(p.lse_log2 + statistics + i) : 0.0f;
      delta[half] = i < seq.sq ? ptx::load_global(p.delta + statistics + i) : 0.0f;
    }
  };
  if constexpr (!kFullest) read_statistics(h, b, i0 + warp * 16 + home.g);
  if (count > 0) {
    const tile::Rows q = tile::rows(p.q, kElement, p.q_stride, b, seq.q_row, h, p.D);
    const tile::Rows dout = tile::rows(p.dout, kElement, p.dout_stride, b, seq.q_row, h, p.Dv);
    tile::load_rows<kThreads, C.strided>(q_smem, q, i0, seq.sq, thread);
    tile::load_rows<kThreads, C.strided>(do_smem, dout, i0, seq.sq, thread);
    load_keys(first, 0);
  }
  ptx::cp_async_commit();

#pragma unroll 1
  for (i32 it = 0; it < count; ++it) {
    const int stage = C.stages == 1 ? 0 : it & 1;
    const tile::Lane lane = tile::lane_of(int(ptx::opaque(u32(thread))));
    const int warp_row = (kFull ? int(lane.warp) : warp) * 16;
    ptx::cp_async_wait<0>();
    ptx::sync_threads();  // K_j, V_j are here; every warp is done with the block before
    if (C.stages == 2 && it + 1 < count) {
      load_keys(first + it + 1, stage ^ 1);
      ptx::cp_async_commit();
    }
    const typename Smem::KTile k_smem{ptx::shared_address(smem.k[stage])};
    const typename Smem::VTile v_smem{ptx::shared_address(smem.v[stage])};
    const i32 j0 = (first + it) * C.Bc, i = i0 + warp_row + lane.g, j = j0 + 2 * lane.q;
    if constexpr (C.masked) {
      const i32 seen = seen_keys().begin;
      if (j0 < seen) {
        tile::clear_rows<kThreads>(k_smem, seen - j0, thread);
        ptx::sync_threads();
      }
    }

    // (1) S = Q_i K_j^T   [16 of Br, Bc] fp32
    float s_frag[1][NT][4];
    tile::clear(s_frag);
    constexpr int kScoreChain = C.element != Element::fp32 ? kLongest
                                : C.d <= 64                ? 2
                                                           : 4;  // as in products.h
    tile::multiply_add<M, C.d, false, kScoreChain>(
        s_frag, [&](int, int k) { return M::a_along(q_smem, lane.lane, warp_row, k); },
        [&](int nt, int k) { return M::b_along(k_smem, lane.lane, nt * 16, k); });

    // (2) P = exp2(S - lse)
    if constexpr (kFullest) read_statistics(i32(ptx::opaque(u32(h))), i32(ptx::opaque(u32(b))), i);
    float derivative[C.softcap ? NT : 1][4];
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float& s = s_frag[0][nt][r];
        float slope;
        s = scores.probability(s, i + (r >> 1) * 8, j + nt * 8 + (r & 1), lse[r >> 1], slope);
        if constexpr (C.softcap) derivative[nt][r] = slope;
      }

    // (3) dP = dO_i V_j^T   [16 of Br, Bc] fp32
    float dp_frag[1][NT][4];
    tile::clear(dp_frag);
    tile::multiply_add<M, C.dv, false, kLongest>(
        dp_frag, [&](int, int k) { return M::a_along(do_smem, lane.lane, warp_row, k); },
        [&](int nt, int k) { return M::b_along(v_smem, lane.lane, nt * 16, k); });

    // (4) dS = P (dP - delta), 0 where an element takes no part
    if constexpr (backward_crowded(C)) scores.forget();
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) {
      u32 bits[4];
      if constexpr (C.dropout) {
        const PhiloxWords x =
            dropout_words(scores.key, u32(scores.b), u32(scores.h), u32(i), u32(j + nt * 8));
#pragma unroll
        for (int r = 0; r < 4; ++r) bits[r] = x.w[r];
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float& dp = dp_frag[0][nt][r];
        if constexpr (C.dropout) dp = bits[r] >= p.dropout_threshold ? dp * p.inv_keep : 0.0f;
        dp = s_frag[0][nt][r] * (dp - delta[r >> 1]);
        if constexpr (C.softcap) dp *= derivative[nt][r];
      }
    }
    const i32 start = kFullest ? i32(ptx::opaque(u32(i0))) : i0;  // as above: made anew
    if (!scores.complete(start, C.Br, j0, C.Bc)) scores.hide_row(dp_frag[0], i, j);

    // (5) dQ_i += dS K_j   [16 of Br, d] fp32
    if constexpr (backward_dq_ds_shared(C)) {
      const tile::SmemTile<C.element, C.Br, C.Bc> ds_smem{ptx::shared_address(smem.v[stage])};
      ptx::sync_threads();  // nobody reads V_j any more
      tile::for_blocks<1, NT>([&](int, int nt) {
        M::store_pair(ds_smem, warp_row + lane.g, nt * 8 + 2 * lane.q, dp_frag[0][nt][0], dp_frag[0][nt][1]);
        M::store_pair(ds_smem, warp_row + lane.g + 8, nt * 8 + 2 * lane.q, dp_frag[0][nt][2],
                      dp_frag[0][nt][3]);
      });
      ptx::sync_warp();
      tile::multiply_add<M, C.Bc, false, kLongest>(
          dq_acc, [&](int, int k) { return M::a_along(ds_smem, lane.lane, warp_row, k); },
          [&](int nt, int k) {
            return M::b_across(tile::few_addresses<kFeatures>(k_smem), lane.lane, nt * 16, k);
          });
    } else {
      tile::multiply_add<M, C.Bc, true>(
          dq_acc, [&](int, int k) { return M::a_of_row(dp_frag[0], k); },
          [&](int nt, int k) { return M::b_across_row(k_smem, lane.lane, nt * 16, k); });
    }

    if (C.stages == 1 && it + 1 < count) {
      ptx::sync_threads();  // K_j and V_j may be overwritten
      load_keys(first + it + 1, 0);
      ptx::cp_async_commit();
    }
  }

  // dQ_i leaves through the shared memory of Q_i, each warp through its own rows.
  ptx::cp_async_wait<0>();
  ptx::sync_threads();
#pragma unroll
  for (int nt = 0; nt < C.d / 8; ++nt)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      M::store_pair(q_smem, warp * 16 + home.g + half * 8, nt * 8 + 2 * home.q,
                    dq_acc[0][nt][half * 2] * p.scale, dq_acc[0][nt][half * 2 + 1] * p.scale);
  ptx::sync_threads();
  const bool spoiled = tile::store_rows<kThreads>(
      tile::rows(p.dq, kElement, p.dq_stride, b, seq.q_row, h, p.D), q_smem, i0, seq.sq, thread);
  if constexpr (C.masked || C.boolean_mask) note_spoiled(p, spoiled);
}

}  // namespace tilewise::mma
