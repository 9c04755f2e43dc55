// Exact attention forward for sm_90a: TMA, wgmma, warp specialisation. docs/schedules.md draws the schedule;
// its step numbers are the ones below.
//
//   O_i = softmax(scale Q_i K^T) V        Q_i [Br, d] stays, K_j [Bc, d] and V_j [Bc, dv] stream from the
//   last
//                                         block that the rows see to the first
//
// One persistent thread block a multiprocessor. Warp 0 loads Q, K, V (waits for *_empty, TMA completes
// *_full), warp 1 chooses tiles (waits for tile_empty, arrives at tile_full). Each warpgroup from the second
// on owns 64 rows of the tile: it waits for *_full and arrives at *_empty.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/ldmatrix.h"
#include "../ptx/mbarrier.h"
#include "../ptx/tma.h"
#include "../ptx/warpgroup.h"
#include "../ptx/wgmma.h"
#include "../tile/repair.h"
#include "softmax.h"
#include "work.h"

namespace tilewise::wgmma {

template <Config C>
struct SmemPlan {
  alignas(1024) unsigned short q[groups(C)][column_boxes(C.d)][kGroupRows][kSwizzleCols];
  alignas(1024) unsigned short k[C.stages][column_boxes(C.d)][C.Bc][kSwizzleCols];
  alignas(1024) unsigned short v[C.stages][column_boxes(C.dv)][C.Bc][kSwizzleCols];
  u64 q_full[groups(C)], q_empty[groups(C)];
  u64 k_full[C.stages], k_empty[C.stages];
  u64 v_full[C.stages], v_empty[C.stages];
  u64 tile_full, tile_empty;
  WorkTileWords tile;          // that is begun next
  WorkTileWords own[C.warps];  // that each warp is at
  u32 done[kMaxTiles];         // indices of the tiles that the block has worked on
};

// The next buffer of a ring and the parity of its next phase.
template <int Stages>
struct Ring {
  int stage = 0;
  u32 phase = 0;
  TILEWISE_INLINE void advance() {
    if (++stage == Stages) stage = 0, phase ^= 1;
  }
};

// ---- Warp 1: which tile comes next ----

template <Config C>
TILEWISE_INLINE void choose_tiles(SmemPlan<C>& smem, const AttentionParams& p, const ForwardLaunch& launch) {
  const bool leader = ptx::thread_index() % 32 == 0;
  u32 index = ptx::block_index_x();
  SequenceWalk walk;
  for (i32 n = 0;; ++n) {
    WorkTile t = find_tile<C>(index, walk, p, launch);
    if (n == kMaxTiles) t.b = -1;
    if (leader) {
      if (t.b >= 0) ptx::st_shared(ptx::shared_address(&smem.done[n]), index);
      write_tile(ptx::shared_address(&smem.tile), t);
      ptx::mbarrier_arrive(smem.tile_full);
    }
    if (t.b < 0) return;
    // The next one is taken when everybody has begun this one, so that no block hoards work.
    ptx::mbarrier_wait(smem.tile_empty, n & 1);
    index += ptx::grid_size_x();
    if (launch.tile_counter != nullptr) {
      if (leader) index = ptx::grid_size_x() + ptx::atom_add(launch.tile_counter, 1);
      index = ptx::shfl_idx(index, 0);
    }
  }
}

// The block's n-th tile: each warp that works on tiles takes its copy.
template <Config C>
TILEWISE_INLINE WorkTile begun_tile(SmemPlan<C>& smem, i32 n) {
  ptx::mbarrier_wait(smem.tile_full, n & 1);
  const WorkTile t = read_tile(ptx::shared_address(&smem.tile));
  ptx::sync_warp();
  if (ptx::thread_index() % 32 == 0) ptx::mbarrier_arrive(smem.tile_empty);
  return t;
}

// ---- Warp 0: loads ----

template <Config C>
TILEWISE_INLINE void load_tiles(SmemPlan<C>& smem, const AttentionParams& p, const ForwardLaunch& launch) {
  const bool leader = ptx::elect_one();
  Ring<C.stages> ring_k, ring_v;
  u32 q_phase = 1;
  for (i32 n = 0;; ++n) {
    const WorkTile t = begun_tile(smem, n);
    if (t.b < 0) break;
    if (!leader) continue;
    const i32 kv_head = (t.head << launch.pack_log2) / p.group;
    const i32 k_batch = p.cu_seqlens_k ? 0 : t.b;
    auto load_block = [&](auto& buffers, u64* full, u64* empty, Ring<C.stages>& ring, const TensorMap& map,
                          i32 j) {
      auto& buffer = buffers[ring.stage];
      ptx::mbarrier_wait(empty[ring.stage], ring.phase ^ 1);
      ptx::mbarrier_arrive_expect(full[ring.stage], sizeof(buffer));
#pragma unroll
      for (int c = 0; c < int(sizeof(buffer) / sizeof(buffer[0])); ++c)
        ptx::tma_load_4d(buffer[c], map, full[ring.stage], c * kSwizzleCols, t.k_row + t.key_begin + j * C.Bc,
                         kv_head, k_batch, ptx::kEvictLast);
      ring.advance();
    };

    // Each warpgroup's rows of Q, as soon as it has done with those of its last tile.
#pragma unroll
    for (int w = 0; w < groups(C); ++w) {
      ptx::mbarrier_wait(smem.q_empty[w], q_phase);
      ptx::mbarrier_arrive_expect(smem.q_full[w], sizeof(smem.q[w]));
#pragma unroll
      for (int c = 0; c < column_boxes(C.d); ++c)
        ptx::tma_load_5d(smem.q[w][c], launch.q, smem.q_full[w], c * kSwizzleCols, 0,
                         t.q_row + ((t.row0 + w * kGroupRows) >> launch.pack_log2), t.head,
                         p.cu_seqlens_q ? 0 : t.b, ptx::kEvictFirst);
    }
    q_phase ^= 1;
    // V follows one block behind K, as the consumers use them.
    const i32 last = t.blocks(C.Bc) - 1;
    for (i32 j = last; j >= -1; --j) {
      if (j >= 0) load_block(smem.k, smem.k_full, smem.k_empty, ring_k, launch.k, j);
      if (j < last) load_block(smem.v, smem.v_full, smem.v_empty, ring_v, launch.v, j + 1);
    }
  }
}

// ---- The other warpgroups: S = Q K^T, online softmax, O += P V ----

// S = -inf outside each row's range of keys: rows h = 0, 1 are the lane's two, `key` is the key of s[0][0].
template <int n>
TILEWISE_INLINE void mask_rows(float (&s)[n][4], const Range<i32> (&row)[2], i32 key) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const i32 begin = row[h].begin - key, end = row[h].end - key;
#pragma unroll
    for (int t = 0; t < n; ++t)
#pragma unroll
      for (int e = 0; e < 2; ++e)
        if (8 * t + e < begin || 8 * t + e >= end) s[t][2 * h + e] = -infinity();
  }
}

// Lanes 0 .. 3 of a quad hold four registers each; lane q ends up with register q of all four.
TILEWISE_INLINE void transpose_quad(u32 (&a)[4]) {
  const u32 lane = ptx::thread_index() % 32;
#pragma unroll
  for (u32 bit = 1; bit <= 2; bit *= 2)
#pragma unroll
    for (u32 n = 0; n < 2; ++n) {
      const u32 low = bit == 1 ? 2 * n : n, high = low + bit;
      const u32 got = ptx::shfl_xor(lane & bit ? a[low] : a[high], int(bit));
      (lane & bit ? a[low] : a[high]) = got;
    }
}

// After all tiles: the rows of a warp that a NaN or infinity in V of a hidden key has spoiled
// (tile/repair.h).
template <Config C>
TILEWISE_INLINE void repair_tiles(SmemPlan<C>& smem, const AttentionParams& p, const ForwardLaunch& launch,
                                  i32 tiles, i32 warp_row) {
  const i32 pack = launch.pack_log2;
  SequenceWalk walk;
#pragma unroll 1
  for (i32 n = 0; n < 16 * tiles; ++n) {
    const WorkTile t = find_tile<C>(ptx::ld_shared(ptx::shared_address(&smem.done[n / 16])), walk, p, launch);
    const SequenceView s = t.sequence();
    const i32 row = t.row0 + warp_row + n % 16, i = row >> pack;
    const i32 head = (t.head << pack) | (row & ((1 << pack) - 1));
    if (i >= t.sq) continue;
    const i32 q_batch = p.cu_seqlens_q ? 0 : t.b, k_batch = p.cu_seqlens_k ? 0 : t.b;
    const auto rows = [](const void* x, const Strides& stride, i32 b, i64 first, i32 h, i32 columns) {
      return GlobalRows{head_base(x, stride, b, first, h, 2), stride.s * 2, stride.d * 2, columns};
    };
    const Scores<C> score(p, s, head);
    const Dropout dropout(p, t.b, head);
    RowRepair<C>{score,
                 dropout,
                 rows(p.q, p.q_stride, q_batch, s.q_row, head, p.D),
                 rows(p.k, p.k_stride, k_batch, s.k_row, head / p.group, p.D),
                 rows(p.v, p.v_stride, k_batch, s.k_row, head / p.group, p.Dv),
                 {const_cast<unsigned char*>(head_base(p.out, p.out_stride, q_batch, s.q_row, head, 2)),
                  p.out_stride.s * 2, p.out_stride.d * 2, p.Dv, t.sq},
                 p.scale,
                 p.sink ? ptx::load_global(p.sink + i64{head} * p.sink_h) : -infinity(),
                 p.inv_keep}(i);
  }
}

template <Config C>
TILEWISE_INLINE void attend(SmemPlan<C>& smem, const AttentionParams& p, const ForwardLaunch& launch,
                            int group) {
  using N = Number<C.element>;
  constexpr int kKeyTiles = C.Bc / 8, kKeySteps = C.Bc / 16, kDSteps = C.d / 16, kOutTiles = C.dv / 8;
  constexpr u32 kKBox = C.Bc * kSwizzleCols * 2, kQBox = kGroupRows * kSwizzleCols * 2;
  // Guessing keeps a way to S, should the guess be far off; wide outputs leave no registers for it.
  constexpr bool kGuess = C.dv <= 128;
  constexpr bool kCanHide = C.masked || C.boolean_mask;  // keys of a loaded block from rows of the tile
  constexpr bool kRowRanges =
      Scores<C>::kRaw && !C.boolean_mask;  // masks are ranges of keys: packed heads, too
  const int warp = int(ptx::thread_index() % 128) / 32, lane = int(ptx::thread_index() % 32), quad = lane % 4;
  const int warp_row = group * kGroupRows + 16 * warp;  // of the tile
  const int pack = launch.pack_log2;

  float s_frag[kKeyTiles][4];  // S, then P in fp32          [64, Bc] of a warpgroup
  u32 p_frag[kKeySteps][4];    // P as the A operand of P V
  float o_acc[kOutTiles][4];   // O, not yet divided by l    [64, dv]
  u32 q_frag[C.q_registers ? kDSteps : 1][4];
  RowStats stats;
  Ring<C.stages> ring_k, ring_v;
  u32 q_phase = 0;
  i32 n = 0;  // tiles done

  const WorkTile first = begun_tile(smem, 0);
  if (first.b < 0) return;
  i32 j, open_end, open_begin;  // this block; blocks [open_begin, open_end) need no mask
  bool first_block;             // O starts with this P V
  Range<i32> visible[2];        // keys of the lane's two rows
  i32 row;                      // the lane's first (packed) row
  Scores<C> score(p, first.sequence(), first.head << pack);
  Dropout dropout(p, first.b, first.head << pack);
  i32 key_begin;  // of the tile: key 0 of block 0

  auto begin_tile = [&](const WorkTile& tile) {
    key_begin = tile.key_begin;
    ptx::sync_warp();
    if (lane == 0) write_tile(ptx::shared_address(&smem.own[4 * group + warp]), tile);
    ptx::sync_warp();
    j = tile.blocks(C.Bc) - 1;
    first_block = true;
    stats = RowStats{};
    const i32 row0 = tile.row0 + group * kGroupRows, last = tile.sq - 1;
    row = tile.row0 + warp_row + lane / 4;
    Range<i32> open{0, tile.sk};
    visible[0] = visible[1] = open;
    if constexpr (C.masked) {
      const Band<i32> band = band_of(p, tile.sequence());
      visible[0] = band.row(row >> pack), visible[1] = band.row((row + 8) >> pack);
      const i32 i0 = row0 >> pack, i1 = (row0 + kGroupRows - 1) >> pack;
      open = band.all(i0 < last ? i0 : last, (i1 < last ? i1 : last) + 1);
    }
    open_end = (open.end - tile.key_begin) / C.Bc;
    open_begin = open.begin > tile.key_begin ? ceil_div(open.begin - tile.key_begin, C.Bc) : 0;
    if constexpr (!kRowRanges || C.masked) score = Scores<C>(p, tile.sequence(), tile.head << pack);
    if constexpr (C.dropout) dropout = Dropout(p, tile.b, tile.head << pack);
  };
  auto key = [&] { return key_begin + j * C.Bc + 2 * quad; };  // of s_frag[0][0]
  auto open_scores = [&] { score.template apply<false>(s_frag, row, key()); };
  auto masked_scores = [&] {
    if constexpr (kRowRanges)
      mask_rows(s_frag, visible, key());
    else
      score.template apply<true>(s_frag, row, key());
  };
  auto arrive = [&](u64& bar) {  // once per warp
    if (lane == 0) ptx::mbarrier_arrive(bar);
  };

  // (0) Q_i, for all blocks
  auto read_q = [&](u32(&a)[4], int kk) {
    const int q_row = 16 * warp + lane % 16, chunk = (kk % 4 * 2 + lane / 16) ^ (q_row % 8);
    ptx::ldmatrix_x4(a, ptx::shared_address(&smem.q[group][kk / 4][q_row][chunk * 8]));
  };
  auto take_q = [&] {
    ptx::mbarrier_wait(smem.q_full[group], q_phase);
    q_phase ^= 1;
    if constexpr (C.q_registers) {
#pragma unroll
      for (int kk = 0; kk < kDSteps; ++kk) read_q(q_frag[kk], kk);
      ptx::sync_warp();
      arrive(smem.q_empty[group]);
    }
  };

  // (1) S_ij = Q_i K_j^T   [64, Bc]
  auto issue_scores = [&] {
    ptx::mbarrier_wait(smem.k_full[ring_k.stage], ring_k.phase);
    const u64 k_desc = ptx::descriptor_128b(ptx::shared_address(smem.k[ring_k.stage]), kKBox);
    const u64 q_desc = ptx::descriptor_128b(ptx::shared_address(smem.q[group]), kQBox);
    ptx::wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kDSteps; ++kk) {
      const u64 k_step = ptx::advance(k_desc, kk / 4 * kKBox + kk % 4 * 32);
      if constexpr (C.q_registers)
        ptx::Wgmma<C.Bc>::template rs<C.element, 0>(s_frag, q_frag[kk], k_step, kk > 0);
      else
        ptx::Wgmma<C.Bc>::template ss<C.element, 0>(
            s_frag, ptx::advance(q_desc, kk / 4 * kQBox + kk % 4 * 32), k_step, kk > 0);
    }
    ptx::wgmma_commit();
  };
  auto release_scores = [&] {
    arrive(smem.k_empty[ring_k.stage]);
    ring_k.advance();
    if constexpr (!C.q_registers)
      if (j == 0) arrive(smem.q_empty[group]);
  };
  // The same by one warp alone, with mma.sync: when the softmax needs S again.
  auto scores_again = [&] {
    float again[kKeyTiles][4];
    const u32 k_lane =
        ptx::shared_address(smem.k[ring_k.stage]) + lane % 8 * 128 + (lane / 8 ^ lane % 8) * 16;
#pragma unroll 1
    for (int t = 0; t < kKeyTiles; ++t) {
      float s[4] = {};
#pragma unroll
      for (int kk = 0; kk < kDSteps; kk += 2) {
        u32 k_frag[4];
        ptx::ldmatrix_x4(k_frag, (k_lane ^ (kk % 4 * 32)) + kk / 4 * kKBox + t * 1024);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          if constexpr (C.q_registers) {
            N::mma(s, q_frag[kk + half], k_frag[2 * half], k_frag[2 * half + 1]);
          } else {
            u32 q_again[4];
            read_q(q_again, kk + half);
            N::mma(s, q_again, k_frag[2 * half], k_frag[2 * half + 1]);
          }
        }
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) again[t][x] = s[x];
    }
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t)
#pragma unroll
      for (int x = 0; x < 4; ++x) s_frag[t][x] = again[t][x];
  };

  // The last block's rows of V that no row of the tile sees, in whatever they are: their P is 0, and 0 x NaN
  // is NaN.
  auto clear_tail = [&] {
    constexpr int kThreads = 128 * groups(C), kChunks = kSwizzleCols / 8;
    const WorkTile tile = read_tile(ptx::shared_address(&smem.own[4 * group + warp]));
    const i32 keys = tile.key_end - tile.key_begin, beyond = tile.blocks(C.Bc) * C.Bc - (keys < 0 ? 0 : keys);
    if (beyond == 0) return;
#pragma unroll 1
    for (int box = 0; box < column_boxes(C.dv); ++box)
#pragma unroll 1
      for (int x = int(ptx::thread_index()) - 128; x < beyond * kChunks; x += kThreads)
        ptx::st_shared_v4(
            ptx::shared_address(&smem.v[ring_v.stage][box][C.Bc - beyond + x / kChunks][x % kChunks * 8]),
            {});
    ptx::fence_proxy_async();
    ptx::bar_sync(1, kThreads);
  };
  // (2) O_i += P_ij V_j   [64, dv]
  auto issue_output = [&] {
    ptx::mbarrier_wait(smem.v_full[ring_v.stage], ring_v.phase);
    if (first_block) clear_tail();
    const u64 v_desc = ptx::descriptor_128b(ptx::shared_address(smem.v[ring_v.stage]), kKBox);
    ptx::wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < kKeySteps; ++kk)
      ptx::Wgmma<C.dv>::template rs<C.element, 1>(o_acc, p_frag[kk], ptx::advance(v_desc, kk * 2048),
                                                  kk > 0 || !first_block);
    ptx::wgmma_commit();
    first_block = false;
  };
  auto output_done = [&] {
    ptx::pin(o_acc);
    arrive(smem.v_empty[ring_v.stage]);
    ring_v.advance();
  };

  // (3) m_i, l_i, P_ij = exp2(S_ij - m_i): softmax.h
  // (5) P_ij as an operand: only now, as P V of the last block reads those registers until it is done
  auto pack_p = [&] {
    if constexpr (C.dropout) dropout.apply(s_frag, row, key());
#pragma unroll
    for (int kk = 0; kk < kKeySteps; ++kk)
#pragma unroll
      for (int r = 0; r < 4; ++r)
        p_frag[kk][r] = N::pack(s_frag[2 * kk + r / 2][r % 2 * 2], s_frag[2 * kk + r / 2][r % 2 * 2 + 1]);
  };

  // (4) O_i *= exp2(old m_i - m_i)
  auto rescale = [&] {
#pragma unroll
    for (int t = 0; t < kOutTiles; ++t)
#pragma unroll
      for (int x = 0; x < 4; ++x) o_acc[t][x] *= stats.alpha[x / 2];
  };
  // Block j: its Q K^T and the softmax on it, beside P V of block j + 1.
  auto scores_of_block = [&] {
    if (j >= open_end || j < open_begin)
      masked_scores();
    else
      open_scores();
  };
  auto step = [&] {
    issue_scores();
    issue_output();
    ptx::wgmma_wait_all_but_one();
    ptx::pin(s_frag);
    if constexpr (!kGuess) release_scores();
    scores_of_block();
    const bool moved =
        kGuess ? stats.guess(s_frag, score.multiplier) : stats.update(s_frag, score.multiplier);  // (3)
    ptx::wgmma_wait_all();
    output_done();
    if (moved) {
      if constexpr (kGuess) {
        if (!stats.settle(s_frag, score.multiplier)) {
          scores_again();
          scores_of_block();
          stats.update(s_frag, score.multiplier);
        }
      }
      rescale();
    }
    if constexpr (kGuess) release_scores();
    pack_p();
  };
  auto first_step = [&] {
    ptx::wgmma_wait_all();
    ptx::pin(s_frag);
    release_scores();
    scores_of_block();
    stats.update(s_frag, score.multiplier);
    pack_p();
  };

  // (6) O_i / l_i and L_i = m_i + log l_i to global memory
  const bool wide_rows =
      p.out_stride.d == 1 && p.Dv % 8 == 0 &&
      ((u64(p.out) | u64((p.out_stride.b | p.out_stride.s | p.out_stride.h) * 2)) & 15) == 0;
  bool suspect = false;  // some row is not finite though its LSE is
  auto store = [&] {
    const WorkTile tile = read_tile(ptx::shared_address(&smem.own[4 * group + warp]));
    const i32 stored = tile.row0 + warp_row + lane / 4;  // the lane's first row
    const i32 tensor_b = p.cu_seqlens_q ? 0 : tile.b;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const i32 packed_row = stored + 8 * h, i = packed_row >> pack;
      const i32 head = (tile.head << pack) | (packed_row & ((1 << pack) - 1));
      const bool exists = i < tile.sq;
      const float sink = p.sink ? ptx::load_global(p.sink + i64{head} * p.sink_h) : -infinity();
      const auto l = stats.finish(0, h, score.multiplier, sink);
      const float factor = C.dropout ? l.factor * p.inv_keep : l.factor;
      if (p.lse && exists && quad == 0)
        ptx::store_global(p.lse + tensor_b * p.lse_b + head * p.lse_h + i64{tile.q_row + i} * p.lse_s, l.lse);
      unsigned short* out = static_cast<unsigned short*>(p.out) + tensor_b * p.out_stride.b +
                            i64{tile.q_row + i} * p.out_stride.s + head * p.out_stride.h;
      float not_finite = 0;  // NaN if some element is not
#pragma unroll
      for (int c = 0; c < kOutTiles / 4; ++c) {
        u32 a[4];
#pragma unroll
        for (int t = 0; t < 4; ++t) {
          const float* o = o_acc[4 * c + t] + 2 * h;
          a[t] = l.empty ? 0 : N::pack(o[0] * factor, o[1] * factor);
          if constexpr (kCanHide) not_finite += o[0] * 0.f + o[1] * 0.f;
        }
        transpose_quad(a);
        const i32 column = 32 * c + 8 * quad;
        if (!exists || column >= p.Dv) continue;
        if (wide_rows) {
          ptx::store_global(reinterpret_cast<ptx::Vec4*>(out + column), ptx::Vec4{a[0], a[1], a[2], a[3]});
        } else {
#pragma unroll
          for (int x = 0; x < 8; ++x)
            if (column + x < p.Dv)
              ptx::store_global(out + (column + x) * p.out_stride.d,
                                (unsigned short)(a[x / 2] >> (x % 2 * 16)));
        }
      }
      if constexpr (kCanHide) suspect |= exists && !is_finite(not_finite) && is_finite(l.lse);
    }
  };

  begin_tile(first);
  take_q();
  issue_scores();
  first_step();
  for (;;) {
    for (--j; j >= 0; --j) step();
    // The last P V runs beside the next tile's first Q K^T, and that beside the store.
    const WorkTile next = begun_tile(smem, n + 1);
    if (next.b < 0) break;
    take_q();
    issue_output();
    issue_scores();
    ptx::wgmma_wait_all_but_one();
    output_done();
    store();
    ++n;
    begin_tile(next);
    first_step();
  }
  issue_output();
  ptx::wgmma_wait_all();
  output_done();
  store();
  if (kCanHide && ptx::vote_any(suspect)) repair_tiles(smem, p, launch, n + 1, warp_row);
}

template <Config C>
TILEWISE_KERNEL(threads(C), 1)
forward(TILEWISE_GRID_CONSTANT const AttentionParams p, TILEWISE_GRID_CONSTANT const ForwardLaunch launch) {
  static_assert(sizeof(SmemPlan<C>) <= forward_smem_bytes(C) && C.Br == groups(C) * kGroupRows);
  SmemPlan<C>& smem = *reinterpret_cast<SmemPlan<C>*>(ptx::dynamic_shared());
  const int warp = int(ptx::shfl_idx(ptx::thread_index() / 32, 0));
  if (ptx::thread_index() == 0) {
    for (int w = 0; w < groups(C); ++w)
      ptx::mbarrier_init(smem.q_full[w], 1), ptx::mbarrier_init(smem.q_empty[w], 4);
    for (int s = 0; s < C.stages; ++s) {
      ptx::mbarrier_init(smem.k_full[s], 1), ptx::mbarrier_init(smem.k_empty[s], C.warps);
      ptx::mbarrier_init(smem.v_full[s], 1), ptx::mbarrier_init(smem.v_empty[s], C.warps);
    }
    ptx::mbarrier_init(smem.tile_full, 1);
    ptx::mbarrier_init(smem.tile_empty, 1 + C.warps);
    ptx::mbarrier_init_fence();
  }
  ptx::sync_threads();

  // The launch gives every thread as many registers; the producer's are worth more to the others.
  constexpr int kProducerRegisters = groups(C) == 2 ? 40 : 32,
                kConsumerRegisters = groups(C) == 2 ? 232 : 160;
  if (warp < 4) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp == 0) load_tiles(smem, p, launch);
    if (warp == 1) choose_tiles(smem, p, launch);
  } else {
    ptx::registers_increase<kConsumerRegisters>();
    attend(smem, p, launch, warp / 4 - 1);
  }
}

}  // namespace tilewise::wgmma
