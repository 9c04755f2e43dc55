// FlashAttention-2 backward (Algorithm 2) with mma.sync. A thread block owns the key block K_j, V_j of one
// key/value head and walks over the query blocks Q_i, dO_i that see it, for every query head of its group:
//   (1) S^T = K_j Q_i^T   (2) P^T = exp2(S^T - lse)   (3) dP^T = V_j dO_i^T   (4) dS^T = P^T (dP^T - delta)
//   (5) dV_j += P^T dO_i   (6) dQ_i += dS K_j   (7) dK_j += dS^T Q_i
// All warps share every product; S^T and dP^T live in registers, P^T and dS^T pass through shared memory
// because the warps cut S^T differently from dV and dQ. Where one warp owns all queries of its keys (warps_s
// = warps_dkv = warps) P^T and dS^T feed (5) and (7) straight from registers. dQ is added to fp32 fragments
// in global memory (backward_layout.h) unless C.deterministic: then bwd_dq.cuh computes it without a single
// atomic addition. K, V stay in shared memory; Q, dO, lse, delta of the next block arrive by cp.async while
// this one is worked on.
#pragma once

#include "../ptx/barrier.h"
#include "../shared/backward_layout.h"
#include "../tile/rows.h"
#include "backward_tiles.h"
#include "bwd_scores.cuh"

namespace tilewise::mma {

template <Config C>
struct BackwardShape {
  static constexpr Element E = C.element;
  static constexpr int kThreads = C.warps * 32;
  // A warp's part of S^T, dP^T [Bc x Br], of dV [Bc x dv] and dK [Bc x d], of dQ [Br x d].
  static constexpr int kSKeys = C.Bc / C.warps_s, kSQueries = C.Br / (C.warps / C.warps_s);
  static constexpr int kDkvKeys = C.Bc / C.warps_dkv, kDvCols = C.dv / (C.warps / C.warps_dkv);
  static constexpr int kDkCols = C.d / (C.warps / C.warps_dkv);
  static constexpr int kDqQueries = C.Br / C.warps_dq, kDqCols = C.d / (C.warps / C.warps_dq);
  static_assert(C.warps % C.warps_s == 0 && C.warps % C.warps_dkv == 0 && C.warps % C.warps_dq == 0);
  static_assert(kSKeys % 16 == 0 && kSQueries % 16 == 0 && kDkvKeys % 16 == 0 && kDvCols % 16 == 0);
  static_assert(kDkCols % 16 == 0 && kDqQueries % 16 == 0 && kDqCols % 16 == 0);
  // P^T and dS^T as accumulated are the A operands of dV and dK.
  static constexpr bool kDirect = backward_direct(C);

  using KTile = tile::SmemTile<E, C.Bc, C.d>;
  using VTile = tile::SmemTile<E, C.Bc, C.dv>;
  using QTile = tile::SmemTile<E, C.Br, C.d>;
  using OTile = tile::SmemTile<E, C.Br, C.dv>;
  using STile = tile::SmemTile<E, C.Bc, C.Br>;  // P^T, dS^T

  struct Smem {
    alignas(128) unsigned char k[KTile::kBytes];
    alignas(128) unsigned char v[VTile::kBytes];
    alignas(128) unsigned char q[C.stages][QTile::kBytes];
    alignas(128) unsigned char dout[C.stages][OTile::kBytes];
    alignas(128) unsigned char ds[STile::kBytes];
    alignas(128) unsigned char p[kDirect ? 16 : STile::kBytes];
    alignas(16) float lse[C.stages][C.Br];
    alignas(16) float delta[C.stages][C.Br];
  };
};

template <Config C>
TILEWISE_KERNEL(backward_threads(C), C.min_blocks)
backward(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  using Shape = BackwardShape<C>;
  static_assert(sizeof(typename Shape::Smem) <= backward_smem_bytes(C));
  using M = tile::Mma<C.element>;
  constexpr int kElement = tile::element_bytes(C.element);
  constexpr int kThreads = Shape::kThreads, kStages = C.stages;

  auto& smem = *reinterpret_cast<typename Shape::Smem*>(ptx::dynamic_shared());
  const typename Shape::KTile k_smem{ptx::shared_address(smem.k)};
  const typename Shape::VTile v_smem{ptx::shared_address(smem.v)};
  const typename Shape::STile ds_smem{ptx::shared_address(smem.ds)}, p_smem{ptx::shared_address(smem.p)};

  const int thread = int(ptx::thread_index());
  const int warp = int(ptx::shfl_idx(thread / 32, 0));
  const tile::Lane home = tile::lane_of(thread);

  // This block's keys, key/value head and sequence: key blocks fastest, so that neighbours share Q and dO in
  // L2.
  const TileWork work = tile_work(ptx::block_number(), C.Bc, p.Sk, p.Hk, p.B);
  if (work.none) return;
  const i32 j0 = work.first, hk = work.h, b = work.b;
  const SequenceView seq = find_sequence<C.varlen>(p, b);
  if (j0 >= seq.sk) return;
  const Band<i32> band = band_of(p, seq);
  Scores<C> scores(p, band, b);

  // The query blocks that see a key of this block, walked from the diagonal on and round to the start:
  // without a mask, every block starts elsewhere, so that not all of them add to the same dQ at once.
  const i32 j1 = j0 + C.Bc < seq.sk ? j0 + C.Bc : seq.sk;
  const Range<i32> queries = C.masked ? band.queries_any(j0, j1) : Range<i32>{0, seq.sq};
  const i32 first = queries.begin / C.Br,
            count = queries.empty() ? 0 : (queries.end + C.Br - 1) / C.Br - first;
  const i32 diagonal = (j0 - band.shift) / C.Br - first;
  const i32 start = diagonal > 0 && diagonal < count ? diagonal : 0;
  const i32 steps = count * p.group;

  const i64 rows = workspace_rows(p);
  const i64 row0 = workspace_row(p.cu_seqlens_q != nullptr, b, p.Sq, seq.q_row);

  struct Step {
    i32 i, n, head;  // query block, how many of this head are done, query head
  };
  const auto next = [&](Step s) {
    if (++s.n == count) return Step{first + start, 0, s.head + 1};
    return Step{s.i + 1 == first + count ? first : s.i + 1, s.n, s.head};
  };
  const auto load_queries = [&](const Step& s, int stage) {
    const tile::Rows q = tile::rows(p.q, kElement, p.q_stride, b, seq.q_row, s.head, p.D);
    const tile::Rows dout = tile::rows(p.dout, kElement, p.dout_stride, b, seq.q_row, s.head, p.Dv);
    const typename Shape::QTile q_smem{ptx::shared_address(smem.q[stage])};
    const typename Shape::OTile do_smem{ptx::shared_address(smem.dout[stage])};
    tile::load_rows<kThreads, C.strided>(q_smem, q, s.i * C.Br, seq.sq, thread);
    tile::load_rows<kThreads, C.strided>(do_smem, dout, s.i * C.Br, seq.sq, thread);
    constexpr int kPieces = C.Br / 4;
    if (thread < 2 * kPieces) {
      const int piece = thread % kPieces, i = s.i * C.Br + piece * 4;
      const bool inside = i < seq.sq;  // the workspace is there up to the next multiple of 16
      const float* from = (thread < kPieces ? p.lse_log2 : p.delta) + (s.head * rows + row0);
      float* to = (thread < kPieces ? smem.lse[stage] : smem.delta[stage]) + piece * 4;
      ptx::cp_async_16(ptx::shared_address(to), inside ? from + i : from, inside ? 16u : 0u);
    }
  };

  float dk_acc[Shape::kDkvKeys / 16][Shape::kDkCols / 8][4],
      dv_acc[Shape::kDkvKeys / 16][Shape::kDvCols / 8][4];
  tile::clear(dk_acc);
  tile::clear(dv_acc);
  const int dkv_row = warp % C.warps_dkv * Shape::kDkvKeys;
  const int dv_col = warp / C.warps_dkv * Shape::kDvCols, dk_col = warp / C.warps_dkv * Shape::kDkCols;

  Step step{first + start, 0, hk * p.group};
  if (steps > 0) {
    const tile::Rows k = tile::rows(p.k, kElement, p.k_stride, b, seq.k_row, hk, p.D);
    const tile::Rows v = tile::rows(p.v, kElement, p.v_stride, b, seq.k_row, hk, p.Dv);
    tile::load_rows<kThreads, C.strided>(k_smem, k, j0, seq.sk, thread);
    tile::load_rows<kThreads, C.strided>(v_smem, v, j0, seq.sk, thread);
    load_queries(step, 0);
  }
  ptx::cp_async_commit();

#pragma unroll 1
  for (i32 it = 0; it < steps; ++it) {
    const int stage = kStages == 1 ? 0 : it & 1;
    const tile::Lane lane =
        tile::lane_of(int(ptx::opaque(u32(thread))));  // addresses are made where they are used
    const Step coming = next(step);
    ptx::cp_async_wait<0>();
    ptx::sync_threads();  // Q_i, dO_i are here; every warp is done with the block before
    if (kStages == 2 && it + 1 < steps) {
      load_queries(coming, stage ^ 1);
      ptx::cp_async_commit();
    }
    const typename Shape::QTile q_smem{ptx::shared_address(smem.q[stage])};
    const typename Shape::OTile do_smem{ptx::shared_address(smem.dout[stage])};
    const i32 i0 = step.i * C.Br;
    scores.select_head(step.head);

    constexpr int MT = Shape::kSKeys / 16, NT = Shape::kSQueries / 8;
    const int s_row = warp % C.warps_s * Shape::kSKeys, s_col = warp / C.warps_s * Shape::kSQueries;
    typename M::A p_frag[Shape::kDirect ? MT : 1][Shape::kDirect ? NT / 2 : 1],
        ds_frag[Shape::kDirect ? MT : 1][Shape::kDirect ? NT / 2 : 1];
    {
      // (1) S^T = K_j Q_i^T   [Bc, Br] fp32
      float s_frag[MT][NT][4];
      tile::clear(s_frag);
      tile::multiply_add<M, C.d>(
          s_frag, [&](int mt, int k) { return M::a_along(k_smem, lane.lane, s_row + mt * 16, k); },
          [&](int nt, int k) { return M::b_along(q_smem, lane.lane, s_col + nt * 16, k); });

      // (2) P^T = exp2(S^T - lse)
      float derivative[C.softcap ? MT : 1][C.softcap ? NT : 1][4];
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const u32 at = ptx::shared_address(&smem.lse[stage][s_col + nt * 8 + 2 * lane.q]);
        const ptx::Vec2 lse = ptx::ld_shared_v2(at);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            float& s = s_frag[mt][nt][r];
            const float minus_lse = -ptx::float_of(lse.w[r & 1]);
            if constexpr (Scores<C>::kPlain) {
              s = ptx::ex2(ptx::fma(s, scores.scale_log2, minus_lse));
            } else {
              float slope;
              s = scores.value(s, i0 + s_col + nt * 8 + 2 * lane.q + (r & 1),
                               j0 + s_row + mt * 16 + lane.g + (r >> 1) * 8, slope);
              if constexpr (C.softcap) derivative[mt][nt][r] = slope;
              s = ptx::ex2(s + minus_lse);
            }
          }
      }

      // (3) dP^T = V_j dO_i^T   [Bc, Br] fp32
      float dp_frag[MT][NT][4];
      tile::clear(dp_frag);
      tile::multiply_add<M, C.dv>(
          dp_frag, [&](int mt, int k) { return M::a_along(v_smem, lane.lane, s_row + mt * 16, k); },
          [&](int nt, int k) { return M::b_along(do_smem, lane.lane, s_col + nt * 16, k); });

      Bits<C.dropout ? MT : 1, C.dropout ? NT : 2> keep;
      if constexpr (C.dropout) scores.kept(keep, i0 + s_col, j0 + s_row, lane);

        // (4) dS^T = P^T (dP^T - delta)
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const u32 at = ptx::shared_address(&smem.delta[stage][s_col + nt * 8 + 2 * lane.q]);
        const ptx::Vec2 delta = ptx::ld_shared_v2(at);
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            float &s = s_frag[mt][nt][r], &dp = dp_frag[mt][nt][r];
            float kept_dp = dp;
            if constexpr (C.dropout) kept_dp = keep.get(mt, nt, r) ? dp * p.inv_keep : 0.0f;
            dp = s * (kept_dp - ptx::float_of(delta.w[r & 1]));
            if constexpr (C.dropout) s = keep.get(mt, nt, r) ? s * p.inv_keep : 0.0f;
          }
      }
      // Elements that take no part: whatever was computed for them, an infinity or a NaN too, is thrown away.
      if (!scores.complete(i0, C.Br, j0, C.Bc)) {
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int nt = 0; nt < NT; ++nt)
#pragma unroll
            for (int r = 0; r < 4; ++r)
              if (!scores.visible(i0 + s_col + nt * 8 + 2 * lane.q + (r & 1),
                                  j0 + s_row + mt * 16 + lane.g + (r >> 1) * 8))
                s_frag[mt][nt][r] = dp_frag[mt][nt][r] = 0.0f;
      }
      if constexpr (C.dbias || C.softcap) {
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int nt = 0; nt < NT; ++nt)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              const i64 i = i0 + s_col + nt * 8 + 2 * lane.q + (r & 1),
                        j = j0 + s_row + mt * 16 + lane.g + (r >> 1) * 8;
              if constexpr (C.dbias) {
                const ScoreStrides& t = p.dbias_stride;
                if (i < seq.sq && j < seq.sk && dp_frag[mt][nt][r] != 0.0f)
                  ptx::red_add(p.dbias_accum + (b * t.b + step.head * t.h + i * t.i + j * t.j),
                               dp_frag[mt][nt][r]);
              }
              if constexpr (C.softcap) dp_frag[mt][nt][r] *= derivative[mt][nt][r];
            }
      }
#pragma unroll
      for (int mt = 0; mt < MT; ++mt)
#pragma unroll
        for (int nt = 0; nt < NT; ++nt) {
          const int row = s_row + mt * 16 + lane.g, col = s_col + nt * 8 + 2 * lane.q;
          const float(&ds)[4] = dp_frag[mt][nt];
          const float(&pr)[4] = s_frag[mt][nt];
          if constexpr (!C.deterministic || !Shape::kDirect) {
            M::store_pair(ds_smem, row, col, ds[0], ds[1]);
            M::store_pair(ds_smem, row + 8, col, ds[2], ds[3]);
          }
          if constexpr (!Shape::kDirect) {
            M::store_pair(p_smem, row, col, pr[0], pr[1]);
            M::store_pair(p_smem, row + 8, col, pr[2], pr[3]);
          } else if (nt % 2 == 0) {
            p_frag[mt][nt / 2] = M::a_of(s_frag[mt][nt], s_frag[mt][nt + 1]);
            ds_frag[mt][nt / 2] = M::a_of(dp_frag[mt][nt], dp_frag[mt][nt + 1]);
          }
        }
    }
    if constexpr (!Shape::kDirect) ptx::sync_threads();  // P^T and dS^T of all warps are here

    // (5) dV_j += P^T dO_i   [Bc, dv] fp32
    const auto p_operand = [&](int mt, int k) {
      if constexpr (Shape::kDirect)
        return p_frag[mt][k / 16];
      else
        return M::a_along(p_smem, lane.lane, dkv_row + mt * 16, k);
    };
    tile::multiply_add<M, C.Br>(dv_acc, p_operand, [&](int nt, int k) {
      return M::b_across(do_smem, lane.lane, dv_col + nt * 16, k);
    });

    // (6) dQ_i += dS K_j   [Br, d] fp32, added in global memory
    if constexpr (!C.deterministic) {
      if constexpr (Shape::kDirect) ptx::sync_threads();  // dS^T of all warps is here
      const int dq_row = warp % C.warps_dq * Shape::kDqQueries, dq_col = warp / C.warps_dq * Shape::kDqCols;
      float dq_frag[Shape::kDqQueries / 16][Shape::kDqCols / 8][4];
      tile::clear(dq_frag);
      tile::multiply_add<M, C.Bc>(
          dq_frag, [&](int mt, int k) { return M::a_across(ds_smem, lane.lane, dq_row + mt * 16, k); },
          [&](int nt, int k) { return M::b_across(k_smem, lane.lane, dq_col + nt * 16, k); });
#pragma unroll
      for (int mt = 0; mt < Shape::kDqQueries / 16; ++mt) {
        const i32 i = i0 + dq_row + mt * 16;
        if (i >= seq.sq) break;
        float* piece = p.dq_accum + dq_accum_piece(step.head, rows, (row0 + i) / kRowGroup, dq_col / 8, C.d);
#pragma unroll
        for (int nt = 0; nt < Shape::kDqCols / 8; ++nt) {
          const float(&x)[4] = dq_frag[mt][nt];
          if constexpr (ptx::kVectorAdds) {
            ptx::red_add_v4(piece + nt * 128 + dq_accum_element(true, lane.lane, 0), x[0], x[1], x[2], x[3]);
          } else {
#pragma unroll
            for (int r = 0; r < 4; ++r)
              ptx::red_add(piece + nt * 128 + dq_accum_element(false, lane.lane, r), x[r]);
          }
        }
      }
    }

    // (7) dK_j += dS^T Q_i   [Bc, d] fp32
    const auto ds_operand = [&](int mt, int k) {
      if constexpr (Shape::kDirect)
        return ds_frag[mt][k / 16];
      else
        return M::a_along(ds_smem, lane.lane, dkv_row + mt * 16, k);
    };
    tile::multiply_add<M, C.Br>(dk_acc, ds_operand, [&](int nt, int k) {
      return M::b_across(q_smem, lane.lane, dk_col + nt * 16, k);
    });

    step = coming;
    if (kStages == 1 && it + 1 < steps) {
      ptx::sync_threads();  // Q_i and dO_i may be overwritten
      load_queries(step, 0);
      ptx::cp_async_commit();
    }
  }

  // dK_j, dV_j leave through the shared memory of K_j, V_j.
  ptx::cp_async_wait<0>();
  ptx::sync_threads();
#pragma unroll
  for (int mt = 0; mt < Shape::kDkvKeys / 16; ++mt)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = dkv_row + mt * 16 + home.g + half * 8;
#pragma unroll
      for (int nt = 0; nt < Shape::kDkCols / 8; ++nt)
        M::store_pair(k_smem, row, dk_col + nt * 8 + 2 * home.q, dk_acc[mt][nt][half * 2] * p.scale,
                      dk_acc[mt][nt][half * 2 + 1] * p.scale);
#pragma unroll
      for (int nt = 0; nt < Shape::kDvCols / 8; ++nt)
        M::store_pair(v_smem, row, dv_col + nt * 8 + 2 * home.q, dv_acc[mt][nt][half * 2],
                      dv_acc[mt][nt][half * 2 + 1]);
    }
  ptx::sync_threads();
  tile::store_rows<kThreads>(tile::rows(p.dk, kElement, p.dk_stride, b, seq.k_row, hk, p.D), k_smem, j0,
                             seq.sk, thread);
  tile::store_rows<kThreads>(tile::rows(p.dv, kElement, p.dv_stride, b, seq.k_row, hk, p.Dv), v_smem, j0,
                             seq.sk, thread);
}

}  // namespace tilewise::mma
