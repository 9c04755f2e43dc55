// The backward of wide heads (wide.h), Algorithm 2 in two kernels that add nothing atomically but dbias:
//   wide_dkv  64 keys and C.dv columns of dK and dV a block: S^T = K_j Q_i^T, P^T, dP^T = V_j dO_i^T, dS^T,
//             dV_j += P^T dO_i, dK_j += dS^T Q_i over all queries of the group's heads
//   wide_dq   64 queries and C.dv columns of dQ a block: S = Q_i K_j^T, P, dP = dO_i V_j^T, dS, dQ_i += dS
//   K_j
//   wide_dbias  dbias without atomic additions, of a bias that broadcasts; for every head dim
// S and dP are computed once for each group of columns and in each kernel. Rows that a mask hides may hold
// anything: bwd_repair.cuh comes after.
#pragma once

#include "backward_tiles.h"
#include "bwd_scores.cuh"
#include "wide.cuh"

namespace tilewise::mma {

// One head's operands of the scores, and where its row statistics begin.
struct WideHead {
  tile::Rows q, k, v, dout;
  i64 statistics;

  template <Element E>
  static TILEWISE_INLINE WideHead of(const AttentionParams& p, const SequenceView& seq, i32 h) {
    constexpr int kElement = tile::element_bytes(E);
    const i32 hk = h / p.group;
    return {tile::rows(p.q, kElement, p.q_stride, seq.b, seq.q_row, h, p.D),
            tile::rows(p.k, kElement, p.k_stride, seq.b, seq.k_row, hk, p.D),
            tile::rows(p.v, kElement, p.v_stride, seq.b, seq.k_row, hk, p.Dv),
            tile::rows(p.dout, kElement, p.dout_stride, seq.b, seq.q_row, h, p.Dv),
            h * workspace_rows(p) + workspace_row(p.cu_seqlens_q != nullptr, seq.b, p.Sq, seq.q_row)};
  }
};

template <Config C>
TILEWISE_KERNEL(kWideThreads, C.min_blocks)
wide_dkv(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  using M = tile::Mma<C.element>;
  constexpr int kElement = tile::element_bytes(C.element), NT = kWideRows / 8;
  auto& smem = *reinterpret_cast<WideDkvSmem<C>*>(ptx::dynamic_shared());
  static_assert(sizeof(smem) <= wide_smem_bytes(C));
  using Columns = typename WideSmem<C>::Columns;
  const Columns q_smem{ptx::shared_address(smem.columns[0])}, do_smem{ptx::shared_address(smem.columns[1])};
  const typename WideSmem<C>::Scores p_smem{ptx::shared_address(smem.scores)};

  const WideWork work = wide_work(C, ptx::block_number(), p.B, p.Hk, p.Sk, p.D > p.Dv ? p.D : p.Dv);
  if (work.none) return;
  const i32 b = work.b, hk = work.h, j0 = work.first;
  const SequenceView seq =
      ptx::kFewerRegisters ? find_sequence_of_warp<C.varlen>(p, b) : find_sequence<C.varlen>(p, b);
  if (j0 >= seq.sk) return;
  const Band<i32> band = band_of(p, seq);
  Scores<C> scores(p, band, seq);
  const i32 j1 = j0 + kWideRows < seq.sk ? j0 + kWideRows : seq.sk;
  const Range<i32> queries = C.masked ? band.queries_any(j0, j1) : Range<i32>{0, seq.sq};

  float dk_acc[1][C.dv / 8][4], dv_acc[1][C.dv / 8][4];
  tile::clear(dk_acc);
  tile::clear(dv_acc);
#pragma unroll 1
  for (i32 h = hk * p.group; h < (hk + 1) * p.group; ++h) {
    scores.select_head(h);
    // Made anew where it is used: kept over the loop, it takes the registers of the sums.
    const auto head = [&] { return WideHead::of<C.element>(p, seq, i32(ptx::opaque(u32(h)))); };
#pragma unroll 1
    for (i32 i0 = queries.begin / kWideRows * kWideRows; i0 < queries.end; i0 += kWideRows) {
      if constexpr (backward_crowded(C)) scores.forget();
      const int thread = int(ptx::opaque(ptx::thread_index())), warp_row = thread / 32 * 16;
      const tile::Lane lane = tile::lane_of(thread);
      tile::load_rows<kWideThreads, C.strided>(q_smem, from_column(head().q, work.column), i0, seq.sq,
                                               thread);
      tile::load_rows<kWideThreads, C.strided>(do_smem, from_column(head().dout, work.column), i0, seq.sq,
                                               thread);
      ptx::cp_async_commit();
      const bool complete = scores.complete(i0, kWideRows, j0, kWideRows);
      const i32 i = i0 + 2 * lane.q, j = j0 + warp_row + lane.g;  // of this lane's first element

      // P^T = exp2(S^T - lse); dropout's share of it goes into dV_j
      float p_frag[1][NT][4], derivative[C.softcap ? NT : 1][4];
      Bits<1, NT> seen;
      if (!complete) scores.look(seen, i, j);
      Bits<1, C.dropout ? NT : 2> keep;
      if constexpr (C.dropout) scores.kept(keep, i0, j0 + warp_row, lane);
      wide_product<C>(smem, p_frag, {head().k, j0, seq.sk}, {head().q, i0, seq.sq});
      // Of this lane's two queries of a column block: the workspace is there up to the next multiple of 16.
      const auto statistics = [&](const float* of, int nt) {
        const float* at = of + head().statistics + i;
        return i + nt * 8 < seq.sq ? ptx::load_global(reinterpret_cast<const ptx::Vec2*>(at + nt * 8))
                                   : ptx::Vec2{};
      };
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const ptx::Vec2 lse = statistics(p.lse_log2, nt);
#pragma unroll
        for (int e = 0; e < 2; ++e)
#pragma unroll
          for (int r = e; r < 4; r += 2) {
            float slope;
            p_frag[0][nt][r] = scores.probability(p_frag[0][nt][r], i + nt * 8 + e, j + (r >> 1) * 8,
                                                  ptx::float_of(lse.w[e]), slope);
            if constexpr (C.softcap) derivative[nt][r] = slope;
          }
      }
      if (!complete) scores.template hide<NT>(p_frag, 0, seen);
      put_scores<C>(p_smem, p_frag);
      if constexpr (C.dropout) {
        float kept[1][NT][4];
        tile::for_elements<1, NT>([&](int, int nt, int r) {
          kept[0][nt][r] = keep.get(0, nt, r) ? p_frag[0][nt][r] * p.inv_keep : 0.0f;
        });
        wide_add<C>(smem, dv_acc, kept, do_smem);
      } else {
        wide_add<C>(smem, dv_acc, p_frag, do_smem);
      }

      // dS^T = P^T (dP^T - delta)
      float ds_frag[1][NT][4];
      wide_product<C>(smem, ds_frag, {head().v, j0, seq.sk}, {head().dout, i0, seq.sq});
#pragma unroll
      for (int nt = 0; nt < NT; ++nt) {
        const ptx::Vec2 delta = statistics(p.delta, nt);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float probability[2];
          M::load_pair(probability, p_smem, warp_row + lane.g + half * 8, nt * 8 + 2 * lane.q);
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const int r = half * 2 + e;
            float& ds = ds_frag[0][nt][r];
            if constexpr (C.dropout) ds = keep.get(0, nt, r) ? ds * p.inv_keep : 0.0f;
            ds = probability[e] * (ds - ptx::float_of(delta.w[e]));
          }
        }
      }
      if (!complete) scores.template hide<NT>(ds_frag, 0, seen);
      if constexpr (C.dbias)
        if (work.column == 0) {
          const i32 query = i32(ptx::opaque(u32(i))), key = i32(ptx::opaque(u32(j)));
          tile::for_elements<1, NT>([&](int, int nt, int r) {
            scores.add_dbias(query + nt * 8 + (r & 1), key + (r >> 1) * 8, ds_frag[0][nt][r]);
          });
        }
      if constexpr (C.softcap)
        tile::for_elements<1, NT>([&](int, int nt, int r) {
          float& ds = ds_frag[0][nt][r];
          ds = ds != 0.0f ? ds * derivative[nt][r] : 0.0f;  // hidden ones stay 0
        });
      wide_add<C>(smem, dk_acc, ds_frag, q_smem);
      ptx::sync_threads();  // the columns of Q_i and dO_i may be overwritten
    }
  }

  const int thread = int(ptx::thread_index()), warp_row = thread / 32 * 16;
  const tile::Lane lane = tile::lane_of(thread);
  tile::for_blocks<1, C.dv / 8>([&](int, int nt) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row + lane.g + half * 8, col = nt * 8 + 2 * lane.q;
      M::store_pair(q_smem, row, col, dk_acc[0][nt][half * 2] * p.scale,
                    dk_acc[0][nt][half * 2 + 1] * p.scale);
      M::store_pair(do_smem, row, col, dv_acc[0][nt][half * 2], dv_acc[0][nt][half * 2 + 1]);
    }
  });
  ptx::sync_threads();
  const tile::Rows dk = tile::rows(p.dk, kElement, p.dk_stride, b, seq.k_row, hk, p.D);
  const tile::Rows dv = tile::rows(p.dv, kElement, p.dv_stride, b, seq.k_row, hk, p.Dv);
  bool spoiled = tile::store_rows<kWideThreads>(from_column(dk, work.column), q_smem, j0, seq.sk, thread);
  spoiled |= tile::store_rows<kWideThreads>(from_column(dv, work.column), do_smem, j0, seq.sk, thread);
  if constexpr (C.masked || C.boolean_mask) note_spoiled(p, spoiled);
}

// dS, before the softcap's derivative if kOfBias, of 64 queries and 64 keys, 16 queries a warp; 0 where an
// element takes no part.
template <Config C, bool kOfBias>
TILEWISE_INLINE void wide_ds(WideSmem<C>& smem, float (&ds)[1][kWideRows / 8][4], const Scores<C>& scores,
                             const WideHead& head, const SequenceView& seq, i32 i0, i32 j0) {
  constexpr int NT = kWideRows / 8;
  const AttentionParams& p = scores.p;
  const tile::Lane lane = tile::lane_of(int(ptx::thread_index()));
  const i32 i = i0 + i32(lane.warp) * 16 + lane.g, j = j0 + 2 * lane.q;
  float p_frag[1][NT][4], derivative[C.softcap ? NT : 1][4], lse[2], delta[2];  // of rows g and g + 8
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const bool exists = i + half * 8 < seq.sq;
    lse[half] = exists ? ptx::load_global(p.lse_log2 + head.statistics + i + half * 8) : 0.0f;
    delta[half] = exists ? ptx::load_global(p.delta + head.statistics + i + half * 8) : 0.0f;
  }
  wide_product<C>(smem, p_frag, {head.q, i0, seq.sq}, {head.k, j0, seq.sk});
  tile::for_elements<1, NT>([&](int, int nt, int r) {
    float slope;
    p_frag[0][nt][r] =
        scores.probability(p_frag[0][nt][r], i + (r >> 1) * 8, j + nt * 8 + (r & 1), lse[r >> 1], slope);
    if constexpr (C.softcap) derivative[nt][r] = slope;
  });
  wide_product<C>(smem, ds, {head.dout, i0, seq.sq}, {head.v, j0, seq.sk});
#pragma unroll
  for (int nt = 0; nt < NT; ++nt) {
    PhiloxWords bits;
    if constexpr (C.dropout)
      bits = dropout_words(scores.key, u32(seq.b), u32(scores.h), u32(i), u32(j + nt * 8));
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      float& x = ds[0][nt][r];
      if constexpr (C.dropout) x = bits.w[r] >= p.dropout_threshold ? x * p.inv_keep : 0.0f;
      x = p_frag[0][nt][r] * (x - delta[r >> 1]);
      if constexpr (C.softcap && !kOfBias) x *= derivative[nt][r];
    }
  }
  if (!scores.complete(i0, kWideRows, j0, kWideRows)) scores.hide_row(ds[0], i, j);
}

template <Config C>
TILEWISE_KERNEL(kWideThreads, C.min_blocks)
wide_dq(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  using M = tile::Mma<C.element>;
  constexpr int kElement = tile::element_bytes(C.element);
  auto& smem = *reinterpret_cast<WideSmem<C>*>(ptx::dynamic_shared());
  static_assert(sizeof(smem) <= wide_smem_bytes(C));
  const typename WideSmem<C>::Columns k_smem{ptx::shared_address(smem.columns[0])};
  const int thread = int(ptx::thread_index());
  const tile::Lane lane = tile::lane_of(thread);

  const WideWork work = wide_work(C, ptx::block_number(), p.B, p.H, p.Sq, p.D);
  if (work.none) return;
  const i32 i0 = (p.Sq - 1) / kWideRows * kWideRows - work.first;  // the longest rows first
  const SequenceView seq = find_sequence<C.varlen>(p, work.b);
  if (i0 >= seq.sq) return;
  const Band<i32> band = band_of(p, seq);
  Scores<C> scores(p, band, seq);
  scores.select_head(work.h);
  const WideHead head = WideHead::of<C.element>(p, seq, work.h);
  const i32 i1 = i0 + kWideRows < seq.sq ? i0 + kWideRows : seq.sq;
  const Range<i32> keys = C.masked ? band.any(i0, i1) : Range<i32>{0, seq.sk};

  float dq_acc[1][C.dv / 8][4];
  tile::clear(dq_acc);
#pragma unroll 1
  for (i32 j0 = keys.begin / kWideRows * kWideRows; j0 < keys.end; j0 += kWideRows) {
    if constexpr (backward_crowded(C)) scores.forget();
    tile::load_rows<kWideThreads, C.strided>(k_smem, from_column(head.k, work.column), j0, seq.sk, thread);
    ptx::cp_async_commit();
    float ds_frag[1][kWideRows / 8][4];
    wide_ds<C, false>(smem, ds_frag, scores, head, seq, i0, j0);
    wide_add<C>(smem, dq_acc, ds_frag, k_smem);
    ptx::sync_threads();  // the columns of K_j may be overwritten
  }
  tile::for_blocks<1, C.dv / 8>([&](int, int nt) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      M::store_pair(k_smem, int(lane.warp) * 16 + lane.g + half * 8, nt * 8 + 2 * lane.q,
                    dq_acc[0][nt][half * 2] * p.scale, dq_acc[0][nt][half * 2 + 1] * p.scale);
  });
  ptx::sync_threads();
  const tile::Rows dq = tile::rows(p.dq, kElement, p.dq_stride, work.b, seq.q_row, work.h, p.D);
  const bool spoiled =
      tile::store_rows<kWideThreads>(from_column(dq, work.column), k_smem, i0, seq.sq, thread);
  if constexpr (C.masked || C.boolean_mask) note_spoiled(p, spoiled);
}

template <Config C>
TILEWISE_KERNEL(kWideThreads, C.min_blocks)
wide_dbias(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  constexpr int NT = kWideRows / 8;
  auto& smem = *reinterpret_cast<WideSmem<C>*>(ptx::dynamic_shared());
  static_assert(sizeof(smem) <= wide_smem_bytes(C));
  const tile::Lane lane = tile::lane_of(int(ptx::thread_index()));
  const DbiasWork work = dbias_work(p);
  const i64 block = i64(ptx::block_number()), part = block / work.tiles(), tile = block % work.tiles();
  if (part >= work.parts) return;
  const i64 tile_j = tile % work.j, tile_i = tile / work.j % work.i, tile_h = tile / work.j / work.i % work.h,
            tile_b = tile / work.j / work.i / work.h;

  float sum[1][NT][4];
  tile::clear(sum);
#pragma unroll 1
  for (i64 term = part * work.terms() / work.parts; term < (part + 1) * work.terms() / work.parts; ++term) {
    // One of the two is 0 in every dimension.
    const i32 j0 = i32(tile_j + term % work.sum_j) * kWideRows;
    const i32 i0 = i32(tile_i + term / work.sum_j % work.sum_i) * kWideRows;
    const i32 h = i32(tile_h + term / work.sum_j / work.sum_i % work.sum_h);
    const i32 b = i32(tile_b + term / work.sum_j / work.sum_i / work.sum_h);
    const SequenceView seq = find_sequence<C.varlen>(p, b);
    if (i0 >= seq.sq || j0 >= seq.sk) continue;
    const Band<i32> band = band_of(p, seq);
    const Range<i32> keys = band.any(i0, i0 + kWideRows < seq.sq ? i0 + kWideRows : seq.sq);
    if (C.masked && (j0 >= keys.end || j0 + kWideRows <= keys.begin)) continue;
    Scores<C> scores(p, band, seq);
    scores.select_head(h);
    float ds_frag[1][NT][4];
    wide_ds<C, true>(smem, ds_frag, scores, WideHead::of<C.element>(p, seq, h), seq, i0, j0);
    tile::for_elements<1, NT>([&](int, int nt, int r) { sum[0][nt][r] += ds_frag[0][nt][r]; });
  }

  // The sums over the tile's own rows and columns, where those broadcast: then element 0 stands for all.
  const ScoreStrides& s = p.dbias_stride;
  if (!s.j)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& row = sum[0][0][half * 2];
#pragma unroll
      for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (nt + e > 0) row += sum[0][nt][half * 2 + e];
      row += ptx::shfl_xor(row, 1);
      row += ptx::shfl_xor(row, 2);
    }
  if (!s.i) {
    const u32 of_warps = ptx::shared_address(smem.columns[0]);
    tile::for_blocks<1, NT>([&](int, int nt) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float column = sum[0][nt][e] + sum[0][nt][2 + e];
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) column += ptx::shfl_xor(column, mask);
        if (lane.g == 0)
          ptx::st_shared(of_warps + (lane.warp * kWideRows + nt * 8 + 2 * lane.q + e) * 4,
                         ptx::bits_of(column));
      }
    });
    ptx::sync_threads();
    tile::for_blocks<1, NT>([&](int, int nt) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float column = 0.0f;
#pragma unroll
        for (int warp = 0; warp < kWideThreads / 32; ++warp)
          column +=
              ptx::float_of(ptx::ld_shared(of_warps + (warp * kWideRows + nt * 8 + 2 * lane.q + e) * 4));
        sum[0][nt][e] = column;
      }
    });
  }
  float* to = p.dbias_accum + part * work.elements + tile_b * s.b + tile_h * s.h;
  tile::for_elements<1, NT>([&](int, int nt, int r) {
    const i64 i = tile_i * kWideRows + i32(lane.warp) * 16 + lane.g + (r >> 1) * 8;
    const i64 j = tile_j * kWideRows + nt * 8 + 2 * lane.q + (r & 1);
    if (i < p.dbias_rows && j < p.dbias_columns) ptx::store_global(to + i * s.i + j * s.j, sum[0][nt][r]);
  });
}

}  // namespace tilewise::mma
