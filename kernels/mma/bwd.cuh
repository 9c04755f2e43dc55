// FlashAttention-2 backward (Algorithm 2) with mma.sync. A thread block owns the key block K_j, V_j of one
// key/value head and walks over the query blocks Q_i, dO_i that see it, for every query head of its group:
//   (1) S^T = K_j Q_i^T   (2) P^T = exp2(S^T - lse)   (3) dP^T = V_j dO_i^T   (4) dS^T = P^T (dP^T - delta)
//   (5) dV_j += P^T dO_i   (6) dK_j += dS^T Q_i   (7) dQ_i += dS K_j
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

  // Where S^T and dP^T do not fit the registers side by side, P^T leaves them first, rounded to the element
  // type.
  static constexpr bool kEarlyP = kSKeys * kSQueries / 32 >= 64 && !C.dropout;
  // By the registers that are left, how far products are unrolled (operand.h).
  static constexpr bool kWide = C.d > 128 || C.dv > 128;
  static constexpr bool kFeatures =
      C.softcap || C.alibi || C.bias || C.boolean_mask || C.dropout || C.strided;
  static constexpr bool kShortest =
      E == Element::fp32 ? C.warps == 2 || C.d > 192 || (kFeatures && C.Bc < 64)
                         : (kWide&& kFeatures) ||  // a softcap and dropout take twice what others do
                               backward_features(C) + C.softcap + C.dropout + (C.varlen || !C.masked) > 2;
  static constexpr int kLongest = kShortest ? 1 : kWide || C.Bc < 64 || (kFeatures && C.warps == 8) ? 2 : 4;
  // dQ in column passes where it does not fit beside dK and dV, by what their accumulators take of the
  // registers (fp32 operands are pairs).
  static constexpr int kAccumulators = (kDkvKeys * (kDvCols + kDkCols)) / 32;
  static constexpr int kRoom = E == Element::fp32 ? (kFeatures ? 112 : 128) : C.d <= 192 ? 208 : 190;
  static constexpr bool kDqFits = kAccumulators + kDqQueries * kDqCols / 32 <= kRoom;
  static constexpr int kDqPasses = kDqFits || kDqCols % 32 != 0              ? 1
                                   : E == Element::fp32 && kDqCols % 64 == 0 ? 4
                                                                             : 2;

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
  constexpr bool kNextLate =
      TILEWISE_ARCH > 0 &&
      (backward_crowded(C) || (TILEWISE_ARCH < 900 && !C.masked && C.element != Element::fp32));
  constexpr int kThreads = Shape::kThreads, kStages = C.stages;

  auto& smem = *reinterpret_cast<typename Shape::Smem*>(ptx::dynamic_shared());
  const typename Shape::KTile k_smem{ptx::shared_address(smem.k)};
  const typename Shape::VTile v_smem{ptx::shared_address(smem.v)};
  const typename Shape::STile ds_smem{ptx::shared_address(smem.ds)}, p_smem{ptx::shared_address(smem.p)};

  const int thread = int(ptx::thread_index());
  const tile::Lane home = tile::lane_of(thread);

  // This block's keys, key/value head and sequence: key blocks fastest, so that neighbours share Q and dO in
  // L2.
  const TileWork work = tile_work(ptx::block_number(), C.Bc, p.Sk, p.Hk, p.B);
  if (work.none) return;
  const i32 j0 = work.first, hk = work.h, b = work.b;
  const SequenceView seq = find_sequence_of_warp<C.varlen>(p, b);
  if (j0 >= seq.sk) return;
  const Band<i32> band = band_of(p, seq);
  Scores<C> scores(p, band, seq);

  // The query blocks that see a key of this block, walked from the diagonal on and round to the start:
  // without a mask, every block starts elsewhere, so that not all of them add to the same dQ at once.
  const i32 j1 = j0 + C.Bc < seq.sk ? j0 + C.Bc : seq.sk;
  const Range<i32> queries = C.masked ? band.queries_any(j0, j1) : Range<i32>{0, seq.sq};
  const i32 first = queries.begin / C.Br,
            count = queries.empty() ? 0 : (queries.end + C.Br - 1) / C.Br - first;
  const i32 diagonal = (j0 - band.shift) / C.Br - first;
  const i32 start = diagonal > 0 && diagonal < count ? diagonal : 0;
  const i32 steps = count * p.group;
  // Queries that see no key and keys that no query sees are zeros in shared memory, whatever they hold: 0 *
  // NaN is NaN. Those past the visible ones are not loaded, those before them are cleared.
  const auto seen_queries = [&] {
    return C.masked ? scores.band.queries_any(0, seq.sk) : Range<i32>{0, seq.sq};
  };
  const auto seen_keys = [&] { return C.masked ? scores.band.any(0, seq.sq) : Range<i32>{0, seq.sk}; };

  // Workspace row of this sequence's first query, made anew where it is used.
  const auto first_row = [&] {
    return workspace_row(p.cu_seqlens_q != nullptr, i32(ptx::opaque(u32(b))), p.Sq, seq.q_row);
  };

  // This thread's lane and warp, looked up anew in every step: kept over the loop, what follows from them
  // takes registers.
  const auto here = [&] { return tile::lane_of(int(ptx::opaque(u32(thread)))); };
  const auto dkv_row = [](const tile::Lane& at) { return int(at.warp % C.warps_dkv) * Shape::kDkvKeys; };
  const auto dv_col = [](const tile::Lane& at) { return int(at.warp / C.warps_dkv) * Shape::kDvCols; };
  const auto dk_col = [](const tile::Lane& at) { return int(at.warp / C.warps_dkv) * Shape::kDkCols; };

  struct Step {
    i32 i, n, head;  // query block, how many of this head are done, query head
  };
  const auto next = [&](Step s) {
    if (++s.n == count) return Step{first + start, 0, s.head + 1};
    return Step{s.i + 1 == first + count ? first : s.i + 1, s.n, s.head};
  };
  const auto load_queries = [&](const Step& s, int stage) {
    const i32 batch = i32(ptx::opaque(u32(b)));  // addresses are made where they are used
    const int loader = int(ptx::opaque(u32(thread)));
    const tile::Rows q = tile::rows(p.q, kElement, p.q_stride, batch, seq.q_row, s.head, p.D);
    const tile::Rows dout = tile::rows(p.dout, kElement, p.dout_stride, batch, seq.q_row, s.head, p.Dv);
    const typename Shape::QTile q_smem{ptx::shared_address(smem.q[stage])};
    const typename Shape::OTile do_smem{ptx::shared_address(smem.dout[stage])};
    tile::load_rows<kThreads, C.strided>(q_smem, q, s.i * C.Br, seen_queries().end, loader);
    tile::load_rows<kThreads, C.strided>(do_smem, dout, s.i * C.Br, seen_queries().end, loader);
    constexpr int kPieces = C.Br / 4;
    if (loader < 2 * kPieces) {
      const int piece = loader % kPieces, i = s.i * C.Br + piece * 4;
      const bool inside = i < seq.sq;  // the workspace is there up to the next multiple of 16
      const float* from =
          (loader < kPieces ? p.lse_log2 : p.delta) + (s.head * workspace_rows(p) + first_row());
      float* to = (loader < kPieces ? smem.lse[stage] : smem.delta[stage]) + piece * 4;
      ptx::cp_async_16(ptx::shared_address(to), inside ? from + i : from, inside ? 16u : 0u);
    }
  };

  float dk_acc[Shape::kDkvKeys / 16][Shape::kDkCols / 8][4],
      dv_acc[Shape::kDkvKeys / 16][Shape::kDvCols / 8][4];
  tile::clear(dk_acc);
  tile::clear(dv_acc);

  Step step{first + start, 0, hk * p.group};
  if (steps > 0) {
    const tile::Rows k = tile::rows(p.k, kElement, p.k_stride, b, seq.k_row, hk, p.D);
    const tile::Rows v = tile::rows(p.v, kElement, p.v_stride, b, seq.k_row, hk, p.Dv);
    tile::load_rows<kThreads, C.strided>(k_smem, k, j0, seen_keys().end, thread);
    tile::load_rows<kThreads, C.strided>(v_smem, v, j0, seen_keys().end, thread);
    load_queries(step, 0);
  }
  ptx::cp_async_commit();

#pragma unroll 1
  for (i32 it = 0; it < steps; ++it) {
    const int stage = kStages == 1 ? 0 : it & 1;
    const auto coming = [&, early = next(step)] { return kNextLate ? next(step) : early; };
    ptx::cp_async_wait<0>();
    ptx::sync_threads();  // Q_i, dO_i are here; every warp is done with the block before
    if (kStages == 2 && it + 1 < steps) {
      load_queries(coming(), stage ^ 1);
      ptx::cp_async_commit();
    }
    const typename Shape::QTile q_smem{ptx::shared_address(smem.q[stage])};
    const typename Shape::OTile do_smem{ptx::shared_address(smem.dout[stage])};
    const i32 i0 = step.i * C.Br;
    if constexpr (C.masked) {
      const i32 queries_begin = seen_queries().begin, keys_begin = it == 0 ? seen_keys().begin : 0;
      if (i0 < queries_begin || j0 < keys_begin) {
        tile::clear_rows<kThreads>(q_smem, queries_begin - i0, thread);
        tile::clear_rows<kThreads>(do_smem, queries_begin - i0, thread);
        tile::clear_rows<kThreads>(k_smem, keys_begin - j0, thread);
        ptx::sync_threads();
      }
    }
    scores.select_head(step.head);
    if constexpr (backward_crowded(C)) scores.forget();

    constexpr int MT = Shape::kSKeys / 16, NT = Shape::kSQueries / 8;
    constexpr int kFragments = Shape::kDirect ? MT : 1, kFragmentColumns = Shape::kDirect ? NT / 2 : 1;
    typename M::A p_frag[kFragments][kFragmentColumns], ds_frag[kFragments][kFragmentColumns];
    {
      const tile::Lane lane = here();
      const int s_row = int(lane.warp % C.warps_s) * Shape::kSKeys,
                s_col = int(lane.warp / C.warps_s) * Shape::kSQueries;
      // Where element r of this lane's accumulator (mt, nt) lies in the sequence.
      const auto query = [&](int nt, int r) { return i0 + s_col + nt * 8 + 2 * lane.q + (r & 1); };
      const auto key = [&](int mt, int r) { return j0 + s_row + mt * 16 + lane.g + (r >> 1) * 8; };

      Bits<C.boolean_mask ? MT : 1, C.boolean_mask ? NT : 1> seen;
      if constexpr (C.boolean_mask) scores.look(seen, query(0, 0), key(0, 0));

      // (1) S^T = K_j Q_i^T   [Bc, Br] fp32, rounded where the forward rounds: P and delta must be of the
      // same scores
      float s_frag[MT][NT][4];
      tile::clear(s_frag);
      tile::multiply_add<M, C.d>(
          s_frag, [&](int mt, int k) { return M::a_along(k_smem, lane.lane, s_row + mt * 16, k); },
          [&](int nt, int k) { return M::b_along(q_smem, lane.lane, s_col + nt * 16, k); });

      // How many column blocks go through a step at a time: operands are packed, and registers freed, one by
      // one. A loop over more than some features would be too long to be unrolled, and the arrays that it
      // indexes local memory.
      constexpr bool kTooLong = C.dbias && (C.softcap || C.dropout);
      constexpr int kGroup = Shape::kDirect && !kTooLong ? 2 : NT;
      // Elements that take no part: whatever is computed for them, an infinity or a NaN too, is thrown away.
      const bool complete = scores.complete(i0, C.Br, j0, C.Bc);
      const auto hide = [&](float(&x)[MT][NT][4], int nt) {
        if constexpr (C.boolean_mask)
          scores.template hide<kGroup>(x, nt, seen);
        else if (!complete)
          scores.template hide<kGroup>(x, nt, query(0, 0), key(0, 0));
      };
      // A group of column blocks of a fragment into shared memory, or into operands.
      const auto store = [&](const typename Shape::STile& to, const float(&x)[MT][NT][4], int nt) {
        tile::for_blocks<MT, kGroup>([&](int mt, int n) {
          const int row = s_row + mt * 16 + lane.g, col = s_col + (nt + n) * 8 + 2 * lane.q;
          M::store_pair(to, row, col, x[mt][nt + n][0], x[mt][nt + n][1]);
          M::store_pair(to, row + 8, col, x[mt][nt + n][2], x[mt][nt + n][3]);
        });
      };
      const auto leave = [&](float(&x)[MT][NT][4], int nt) {  // P^T
        if constexpr (Shape::kDirect)
          tile::pack<M, kGroup>(p_frag, x, nt);
        else
          store(p_smem, x, nt);
      };

      // (2) P^T = exp2(S^T - lse)
      float derivative[C.softcap ? MT : 1][C.softcap ? NT : 1][4];
#pragma unroll
      for (int group = 0; group < NT; group += kGroup) {
#pragma unroll
        for (int nt = group; nt < group + kGroup; ++nt) {
          const u32 at = ptx::shared_address(&smem.lse[stage][s_col + nt * 8 + 2 * lane.q]);
          const ptx::Vec2 lse = ptx::ld_shared_v2(at);
#pragma unroll
          for (int mt = 0; mt < MT; ++mt)
#pragma unroll
            for (int r = 0; r < 4; ++r) {
              float& s = s_frag[mt][nt][r];
              float slope;
              s = scores.probability(s, query(nt, r), key(mt, r), ptx::float_of(lse.w[r & 1]), slope);
              if constexpr (C.softcap) derivative[mt][nt][r] = slope;
            }
        }
        if constexpr (Shape::kEarlyP) hide(s_frag, group), leave(s_frag, group);
      }

      // (3) dP^T = V_j dO_i^T   [Bc, Br] fp32
      float dp_frag[MT][NT][4];
      tile::clear(dp_frag);
      tile::multiply_add<M, C.dv, false, Shape::kLongest>(
          dp_frag, [&](int mt, int k) { return M::a_along(v_smem, lane.lane, s_row + mt * 16, k); },
          [&](int nt, int k) { return M::b_along(do_smem, lane.lane, s_col + nt * 16, k); });

      // (4) dS^T = P^T (dP^T - delta)
      Bits<C.dropout ? MT : 1, C.dropout ? NT : 2> keep;
      if constexpr (C.dropout) scores.kept(keep, i0 + s_col, j0 + s_row, lane);
#pragma unroll
      for (int group = 0; group < NT; group += kGroup) {
#pragma unroll
        for (int nt = group; nt < group + kGroup; ++nt) {
          const u32 at = ptx::shared_address(&smem.delta[stage][s_col + nt * 8 + 2 * lane.q]);
          const ptx::Vec2 delta = ptx::ld_shared_v2(at);
#pragma unroll
          for (int mt = 0; mt < MT; ++mt)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
              float pr[2] = {s_frag[mt][nt][half * 2], s_frag[mt][nt][half * 2 + 1]};
              if constexpr (Shape::kEarlyP) {
                const int row = s_row + mt * 16 + lane.g + half * 8, col = s_col + nt * 8 + 2 * lane.q;
                if constexpr (Shape::kDirect)
                  M::unpack(pr, p_frag[mt][nt / 2].r[nt % 2 * 2 + half]);
                else
                  M::load_pair(pr, p_smem, row, col);
              }
#pragma unroll
              for (int e = 0; e < 2; ++e) {
                const int r = half * 2 + e;
                float& dp = dp_frag[mt][nt][r];
                if constexpr (C.dropout) dp = keep.get(mt, nt, r) ? dp * p.inv_keep : 0.0f;
                dp = pr[e] * (dp - ptx::float_of(delta.w[e]));
                if constexpr (C.dropout) s_frag[mt][nt][r] = keep.get(mt, nt, r) ? pr[e] * p.inv_keep : 0.0f;
              }
            }
        }
        hide(dp_frag, group);
        if constexpr (C.dbias) {
          const i32 i = i32(ptx::opaque(u32(query(group, 0)))), j = i32(ptx::opaque(u32(key(0, 0))));
          tile::for_elements<MT, kGroup>([&](int mt, int n, int r) {
            scores.add_dbias(i + n * 8 + (r & 1), j + mt * 16 + (r >> 1) * 8, dp_frag[mt][group + n][r]);
          });
        }
        if constexpr (C.softcap)
          tile::for_elements<MT, kGroup>([&](int mt, int n, int r) {
            float& ds = dp_frag[mt][group + n][r];
            ds = ds != 0.0f ? ds * derivative[mt][group + n][r] : 0.0f;  // hidden ones stay 0
          });
        if constexpr (!C.deterministic || !Shape::kDirect) store(ds_smem, dp_frag, group);
        if constexpr (Shape::kDirect) tile::pack<M, kGroup>(ds_frag, dp_frag, group);
        if constexpr (!Shape::kEarlyP) hide(s_frag, group), leave(s_frag, group);
      }
    }
    ptx::sync_threads();  // P^T and dS^T of all warps are here

    // (5) dV_j += P^T dO_i   [Bc, dv] fp32
    {
      const tile::Lane lane = here();
      const auto operand = [&](int mt, int k) {
        if constexpr (Shape::kDirect)
          return p_frag[mt][k / 16];
        else
          return M::a_along(p_smem, lane.lane, dkv_row(lane) + mt * 16, k);
      };
      tile::multiply_add<M, C.Br, Shape::kDirect, Shape::kLongest>(dv_acc, operand, [&](int nt, int k) {
        return M::b_across(do_smem, lane.lane, dv_col(lane) + nt * 16, k);
      });
    }

    // (6) dK_j += dS^T Q_i   [Bc, d] fp32
    {
      const tile::Lane lane = here();
      const auto operand = [&](int mt, int k) {
        if constexpr (Shape::kDirect)
          return ds_frag[mt][k / 16];
        else
          return M::a_along(ds_smem, lane.lane, dkv_row(lane) + mt * 16, k);
      };
      tile::multiply_add<M, C.Br, Shape::kDirect, Shape::kLongest>(dk_acc, operand, [&](int nt, int k) {
        return M::b_across(q_smem, lane.lane, dk_col(lane) + nt * 16, k);
      });
    }

    if (kStages == 1 && it + 1 < steps) {
      ptx::sync_threads();  // nobody reads Q_i and dO_i any more
      load_queries(coming(), 0);
      ptx::cp_async_commit();
    }

    // (7) dQ_i += dS K_j   [Br, d] fp32, added in global memory
    if constexpr (!C.deterministic) {
      const tile::Lane lane = here();
      const int dq_row = int(lane.warp % C.warps_dq) * Shape::kDqQueries;
      const int dq_col = int(lane.warp / C.warps_dq) * Shape::kDqCols;
#pragma unroll(C.element == Element::fp32 ? 1 : 2)  // fp32: registers, and time to compile
      for (int pass = 0; pass < Shape::kDqPasses; ++pass) {
        constexpr int kCols = Shape::kDqCols / Shape::kDqPasses;
        const int col = dq_col + pass * kCols;
        float dq_frag[Shape::kDqQueries / 16][kCols / 8][4];
        tile::clear(dq_frag);
        tile::multiply_add<M, C.Bc, false, Shape::kLongest>(
            dq_frag, [&](int mt, int k) { return M::a_across(ds_smem, lane.lane, dq_row + mt * 16, k); },
            [&](int nt, int k) { return M::b_across(k_smem, lane.lane, col + nt * 16, k); });
#pragma unroll
        for (int mt = 0; mt < Shape::kDqQueries / 16; ++mt) {
          const i32 i = i0 + dq_row + mt * 16;
          if (i >= seq.sq) break;
          float* piece = p.dq_accum + dq_accum_piece(step.head, workspace_rows(p),
                                                     (first_row() + i) / kRowGroup, col / 8, C.d);
#pragma unroll
          for (int nt = 0; nt < kCols / 8; ++nt)
            tile::add_piece(piece + nt * 128, lane.lane, dq_frag[mt][nt]);
        }
      }
    }

    step = coming();
  }

  // dK_j, dV_j leave through the shared memory of K_j, V_j.
  ptx::cp_async_wait<0>();
  ptx::sync_threads();
#pragma unroll
  for (int mt = 0; mt < Shape::kDkvKeys / 16; ++mt)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = dkv_row(home) + mt * 16 + home.g + half * 8;
#pragma unroll
      for (int nt = 0; nt < Shape::kDkCols / 8; ++nt)
        M::store_pair(k_smem, row, dk_col(home) + nt * 8 + 2 * home.q, dk_acc[mt][nt][half * 2] * p.scale,
                      dk_acc[mt][nt][half * 2 + 1] * p.scale);
#pragma unroll
      for (int nt = 0; nt < Shape::kDvCols / 8; ++nt)
        M::store_pair(v_smem, row, dv_col(home) + nt * 8 + 2 * home.q, dv_acc[mt][nt][half * 2],
                      dv_acc[mt][nt][half * 2 + 1]);
    }
  ptx::sync_threads();
  bool spoiled = tile::store_rows<kThreads>(tile::rows(p.dk, kElement, p.dk_stride, b, seq.k_row, hk, p.D),
                                            k_smem, j0, seq.sk, thread);
  spoiled |= tile::store_rows<kThreads>(tile::rows(p.dv, kElement, p.dv_stride, b, seq.k_row, hk, p.Dv),
                                        v_smem, j0, seq.sk, thread);
  if constexpr (C.masked || C.boolean_mask) note_spoiled(p, spoiled);
}

}  // namespace tilewise::mma
