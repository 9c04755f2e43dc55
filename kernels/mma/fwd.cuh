// FlashAttention-2 forward (Dao 2023, Algorithm 1) with mma.sync, ldmatrix and cp.async.
//
//   Q_i [Br, d]  K_j [Bc, d]  V_j [Bc, dv]  S, P [Br, Bc] in registers  O_i [Br, dv] in registers
//
// A thread block owns one tile of Br queries of one head and walks the key blocks that its rows can see, from
// the last to the first. Its warps split the queries (split-Q): no row is shared between warps. All threads
// load: with one stage V_j arrives under S = Q K_j^T and K_(j-1) under the softmax and P V_j; with two, block
// j - 1 arrives under the whole of block j.
#pragma once

#include "../tile/repair.h"
#include "../tile/softmax.h"
#include "../tile/store.h"
#include "products.h"
#include "tiles.h"

namespace tilewise::mma {

template <Config c>
using ForwardProducts = Products<c.element, c.d, c.dv, c.Br, c.Bc, c.Br / c.warps / 16,
                                 forward_tiles::query_in_registers(c), (c.dropout && c.dv > 192)>;

template <Config c>
struct ForwardSmem {
  unsigned char q[ForwardProducts<c>::Q::kBytes];
  unsigned char k[c.stages][ForwardProducts<c>::K::kBytes];
  unsigned char v[c.stages][ForwardProducts<c>::V::kBytes];
};

template <Config c>
TILEWISE_INLINE WorkItem forward_work(const AttentionParams& p) {
  const i32 tiles = query_tiles(p, c.Br), section = section_heads(p, bytes_of(c.element));
  if (ptx::grid_size_y() == 1) return work_item<u32>(p, tiles, section, ptx::block_index_x());
  return work_item<u64>(p, tiles, section,
                        u64{ptx::block_index_y()} * ptx::grid_size_x() + ptx::block_index_x());
}

// Q := sign Q, where the scale is not positive (score.h); cold.
template <Element e, class Tile, int kThreads>
TILEWISE_INLINE void multiply_tile(u32 tile, float sign) {
#pragma unroll 1
  for (int x = int(ptx::thread_index()) * 4; x < Tile::kBytes; x += kThreads * 4) {
    const u32 bits = ptx::ld_shared(tile + u32(x));
    if constexpr (e == Element::fp32)
      ptx::st_shared(tile + u32(x), ptx::bits_of(sign * ptx::float_of(bits)));
    else
      ptx::st_shared(tile + u32(x),
                     Number<e>::pack(sign * Number<e>::low(bits), sign * Number<e>::high(bits)));
  }
}

// What was made before the loop, or, where features leave no registers to keep it in, the same made anew.
template <bool kAnew, class T, class Make>
TILEWISE_INLINE decltype(auto) kept_or_anew(const T& kept, Make&& make) {
  if constexpr (kAnew)
    return make();
  else
    return (kept);
}

template <Config c>
TILEWISE_KERNEL(threads(c), c.min_blocks)
forward(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  using Product = ForwardProducts<c>;
  constexpr int kThreads = threads(c), kTiles = Product::kTiles;
  constexpr bool kPerElement = c.bias || c.boolean_mask;  // every element is looked at anyway: one code path
  constexpr bool kCanHide = c.masked || c.boolean_mask;   // keys of a loaded block from rows of the tile
  constexpr bool kAnew = c.varlen || c.softcap || c.alibi || (c.element == Element::fp32 && kPerElement);
  constexpr bool kDropoutAnew = kAnew || c.element == Element::fp32;
  constexpr bool kAddressesAnew = c.stages == 1 || c.masked || kAnew;
  static_assert(sizeof(ForwardSmem<c>) <= forward_smem_bytes(c) && c.Br % (16 * c.warps) == 0 &&
                c.Bc % 16 == 0);
  auto& smem = *reinterpret_cast<ForwardSmem<c>*>(ptx::dynamic_shared());
  const u32 q_smem = ptx::shared_address(smem.q);
  const u32 k_smem = ptx::shared_address(smem.k), v_smem = ptx::shared_address(smem.v);

  const WorkItem work = forward_work<c>(p);
  if (work.b >= p.B) return;  // the folded grid's excess
  const SequenceView seq = find_sequence_of_warp<c.varlen>(p, work.b);
  const i32 i0 = work.tile * c.Br, i_end = i0 + c.Br < seq.sq ? i0 + c.Br : seq.sq;
  if (i0 >= seq.sq) return;

  constexpr int kBytes = bytes_of(c.element);
  const i32 kv_head = work.h / p.group;
  const GlobalRows q{head_base(p.q, p.q_stride, work.b, seq.q_row, work.h, kBytes), p.q_stride.s * kBytes,
                     p.q_stride.d * kBytes, p.D};
  const GlobalRows k{head_base(p.k, p.k_stride, work.b, seq.k_row, kv_head, kBytes), p.k_stride.s * kBytes,
                     p.k_stride.d * kBytes, p.D};
  const GlobalRows v{head_base(p.v, p.v_stride, work.b, seq.k_row, kv_head, kBytes), p.v_stride.s * kBytes,
                     p.v_stride.d * kBytes, p.Dv};

  // Key blocks [first, last] hold every key that a row of the tile sees; rows of K and V outside `keys` are
  // zeros in shared memory, never read. Blocks inside `open` need no mask.
  const Scores<c> score_at_start(p, seq, work.h);
  const Range<i32> keys = score_at_start.band.any(i0, i_end), open = score_at_start.band.all(i0, i_end);
  const i32 first = keys.begin / c.Bc, last = keys.empty() ? first - 1 : (keys.end - 1) / c.Bc;
  const auto load_k = [&](i32 j) {
    load_tile<typename Product::K, kThreads, c.strided, kAddressesAnew>(
        k_smem + u32(j % c.stages) * Product::K::kBytes, k, j * c.Bc, keys.begin, keys.end);
    ptx::cp_async_commit();
  };
  const auto load_v = [&](i32 j) {
    load_tile<typename Product::V, kThreads, c.strided, kAddressesAnew>(
        v_smem + u32(j % c.stages) * Product::V::kBytes, v, j * c.Bc, keys.begin, keys.end);
    ptx::cp_async_commit();
  };

  // (1) Load Q_i and the last block.
  load_tile<typename Product::Q, kThreads, c.strided>(q_smem, q, i0, 0, seq.sq);
  if (last >= first) {
    load_k(last);
    if constexpr (c.stages > 1) load_v(last);
  } else {
    ptx::cp_async_commit();
  }
  if (const float sign = query_sign<c>(p); sign != 1.f) {
    ptx::cp_async_wait<0>();
    ptx::sync_threads();
    multiply_tile<c.element, typename Product::Q, kThreads>(q_smem, sign);
  }

  int warp_row = int(ptx::thread_index()) / 32 * forward_tiles::rows_per_warp(c);
  u32 lane = ptx::thread_index() % 32;
  i32 i = i0 + warp_row + i32(lane / 4);  // this lane's rows: i + 16 m and i + 16 m + 8
  Product product;
  product.begin(q_smem, warp_row);
  const auto make_score = [&] { return Scores<c>(p, seq, i32(ptx::opaque(u32(work.h)))); };

  // (2) O_i = 0, l_i = 0, m_i = -inf
  float o_acc[kTiles][c.dv / 8][4] = {};
  OnlineSoftmax<kTiles, Scores<c>::kExact> softmax;
  const Dropout dropout(p, work.b, work.h);

  if constexpr (forward_tiles::query_in_registers(c)) {
    ptx::cp_async_wait<0>();
    ptx::sync_threads();
    product.read_query();
  }

#pragma unroll 1
  for (i32 j = last; j >= first; --j) {
    // (3) K_j has arrived for every warp, and every warp is done with what the next load overwrites.
    ptx::cp_async_wait<0>();
    ptx::sync_threads();
    if constexpr (c.stages > 1) {
      if (j > first) load_k(j - 1), load_v(j - 1);
    } else {
      load_v(j);
    }

    if constexpr (kAnew) {  // this lane's places
      const u32 thread = ptx::opaque(ptx::thread_index());
      warp_row = int(thread) / 32 * forward_tiles::rows_per_warp(c);
      lane = thread % 32, i = i0 + warp_row + i32(lane / 4);
      if constexpr (c.masked) product.begin(q_smem, warp_row);
    }

    // (4) S_ij = Q_i K_j^T   [Br, Bc] fp32
    float s_frag[kTiles][c.Bc / 8][4];
    product.scores(s_frag, k_smem + u32(j % c.stages) * Product::K::kBytes);
    if constexpr (c.stages == 1) {
      ptx::cp_async_wait<0>();
      ptx::sync_threads();
      if (j > first) load_k(j - 1);
    }

    // (5) Scores to log2 units, masked ones to -inf; only blocks that the band's edge crosses look at it.
    const i32 column = j * c.Bc + i32(lane % 4) * 2;
    const auto& score = kept_or_anew<kAnew>(score_at_start, make_score);
    if (!kPerElement && j * c.Bc >= open.begin && (j + 1) * c.Bc <= open.end) {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) score.template apply<false>(s_frag[m], i + 16 * m, column);
    } else {
#pragma unroll
      for (int m = 0; m < kTiles; ++m) score.template apply<true>(s_frag[m], i + 16 * m, column);
    }

    // (6) m_i = max(m_i, rowmax S_ij), O_i and l_i rescaled;  P_ij = exp2(S_ij - m_i);  l_i += rowsum P_ij
    softmax.raise(s_frag, o_acc, score.multiplier);
    softmax.exponentiate(s_frag, score.multiplier);
    if constexpr (c.dropout) {
      const auto& now = kept_or_anew<kDropoutAnew>(dropout, [&] { return dropout.anew(); });
#pragma unroll
      for (int m = 0; m < kTiles; ++m) now.apply(s_frag[m], i + 16 * m, column);
    }

    // (7) O_i += P_ij V_j   [Br, dv] fp32
    product.accumulate(o_acc, s_frag, v_smem + u32(j % c.stages) * Product::V::kBytes);
  }

  // (8) O_i = O_i / l_i,  L_i = m_i + log l_i
  const auto& at_end = kept_or_anew<kAnew>(
      seq, [&] { return find_sequence_of_warp<c.varlen>(p, i32(ptx::opaque(u32(work.b)))); });
  const auto& score = kept_or_anew<kAnew>(
      score_at_start, [&] { return Scores<c>(p, at_end, i32(ptx::opaque(u32(work.h)))); });
  const float sink = p.sink ? ptx::load_global(p.sink + i64{work.h} * p.sink_h) : -infinity();
  float* lse =
      p.lse ? p.lse + (i64{work.b} * p.lse_b * (p.cu_seqlens_q == nullptr) + i64{work.h} * p.lse_h) : nullptr;
  u32 suspects = 0;  // rows whose output is not finite though their LSE is
#pragma unroll
  for (int m = 0; m < kTiles; ++m)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const auto row = softmax.finish(m, r, score, sink);
      const float factor = c.dropout ? row.factor * p.inv_keep : row.factor;
#pragma unroll
      for (int n = 0; n < c.dv / 8; ++n)
#pragma unroll
        for (int x = 2 * r; x < 2 * r + 2; ++x) {
          o_acc[m][n][x] = row.empty ? 0.f : o_acc[m][n][x] * factor;
          if (kCanHide && !is_finite(o_acc[m][n][x]) && is_finite(row.lse)) suspects |= 1u << (2 * m + r);
        }
      const i32 at = i + 16 * m + 8 * r;
      if (lse && lane % 4 == 0 && at < at_end.sq)
        ptx::store_global(lse + (at_end.q_row + at) * p.lse_s, row.lse);
    }

  // (9) O_i through shared memory to global memory.
  ptx::cp_async_wait<0>();
  ptx::sync_threads();
  const GlobalOut out{
      const_cast<unsigned char*>(head_base(p.out, p.out_stride, work.b, at_end.q_row, work.h, kBytes)),
      p.out_stride.s * kBytes, p.out_stride.d * kBytes, p.Dv, at_end.sq};
  store_fragment<c.element, SmemTile<c.element, c.Br, c.dv, Access::matrix>>(q_smem, o_acc, warp_row, out,
                                                                             i0);

  // (10) What NaNs in V of hidden keys spoiled.
  if constexpr (kCanHide) {
    if (!ptx::vote_any(suspects != 0)) return;
    const RowRepair<c> repair{score, dropout, q, k, v, out, p.scale, sink, p.inv_keep};
#pragma unroll 1
    for (int row = 0; row < 16 * kTiles; ++row) {
      const i32 at = i0 + warp_row + row;
      const bool suspect = i32(lane / 4) == row % 8 && (suspects >> (row / 8) & 1);
      if (ptx::vote_any(suspect) && at < at_end.sq) repair(at);
    }
  }
}

}  // namespace tilewise::mma
