// Exact attention forward for sm_90a: TMA, wgmma, warp specialisation. docs/schedules.md draws the schedule;
// its step numbers are the ones below.
//
//   O_i = softmax(scale Q_i K^T) V        Q_i [Br, d] stays, K_j [Bc, d] and V_j [Bc, dv] stream, the last
//                                         block that the rows see first
//
// One persistent thread block a multiprocessor. Warp 0 chooses tiles (waits for tile_empty, arrives at
// tile_full) and loads their Q, warp 1 loads K, warp 2 loads V (wait for *_empty, TMA completes *_full). Each
// warpgroup from the second on owns 64 rows of the tile: it waits for *_full and arrives at *_empty.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/ldmatrix.h"
#include "../ptx/mbarrier.h"
#include "../ptx/tma.h"
#include "../ptx/warpgroup.h"
#include "../ptx/wgmma.h"
#include "../tile/repair.h"
#include "softmax.h"
#include "store.h"
#include "work.h"

namespace tilewise::wgmma {

template <Config C>
struct SmemPlan {
  alignas(1024) unsigned short q[groups(C)][column_boxes(C.d)][kGroupRows][kSwizzleCols];
  alignas(1024) unsigned short k[C.stages][column_boxes(C.d)][C.Bc][kSwizzleCols];
  alignas(1024) unsigned short v[C.stages][column_boxes(C.dv)][C.Bc][kSwizzleCols];
  alignas(1024) StageBox out[C.warps][stage_boxes(C)];
  u64 q_full[groups(C)], q_empty[groups(C)];
  u64 k_full[C.stages], k_empty[C.stages];
  u64 v_full[C.stages], v_empty[C.stages];
  u64 tile_full, tile_empty;
  WorkTileWords tile[kTileSlots];  // number n in n % kTileSlots: that a warp is at, the one before, the next
  u32 done[kMaxTiles];             // indices of the tiles that the block has worked on
  u32 suspect[C.warps];            // a warp has stored rows that are not finite though their LSE is
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

// Where the block's n-th tile is: known after await_tile(), there until the warp has begun two more.
template <Config C>
TILEWISE_INLINE u32 tile_slot(SmemPlan<C>& smem, i32 n) {
  return ptx::shared_address(&smem.tile[u32(n) % kTileSlots]);
}

// For a warp that works on the block's n-th tile. False: there is none.
template <Config C>
TILEWISE_INLINE bool await_tile(SmemPlan<C>& smem, i32 n) {
  ptx::mbarrier_wait(smem.tile_full, n & 1);
  const bool there = i32(ptx::ld_shared(tile_slot(smem, n))) >= 0;  // WorkTile::b
  ptx::sync_warp();
  if (ptx::thread_index() % 32 == 0) ptx::mbarrier_arrive(smem.tile_empty);
  return there;
}

// ---- Warp 0: which tile comes next, and its Q ----

template <Config C>
TILEWISE_INLINE void choose_tiles(SmemPlan<C>& smem, const AttentionParams& p, const ForwardLaunch& launch) {
  const bool leader = ptx::thread_index() % 32 == 0;
  u32 index = ptx::block_index_x();
  SequenceWalk walk;
  WorkTile tile = find_tile<C>(index, walk, p, launch);
  auto take_next = [&](i32 n) {
    if (n == kMaxTiles) return void(tile.b = -1);  // others have room for the rest
    index += ptx::grid_size_x();
    if (launch.tile_counter != nullptr) {
      if (leader) index = ptx::grid_size_x() + ptx::atom_add(launch.tile_counter, 1);
      index = ptx::shfl_idx(index, 0);
    }
    tile = find_tile<C>(index, walk, p, launch);
  };
  // Each warpgroup's rows of Q, as soon as it has done with those of its last tile.
  auto load_q = [&](const WorkTile& t, i32 n) {
#pragma unroll(C.varlen ? 1 : groups(C))  // where registers are few
    for (int w = 0; w < groups(C) && leader; ++w) {
      ptx::mbarrier_wait(smem.q_empty[w], ~n & 1);
      ptx::mbarrier_arrive_expect(smem.q_full[w], sizeof(smem.q[w]));
#pragma unroll
      for (int c = 0; c < column_boxes(C.d); ++c)
        ptx::tma_load_5d(smem.q[w][c], launch.q, smem.q_full[w], c * kSwizzleCols, 0,
                         t.q_row + ((t.row0 + w * kGroupRows) >> launch.pack_log2), t.head,
                         p.cu_seqlens_q ? 0 : t.b, ptx::kEvictFirst);
    }
    ptx::sync_warp();
  };
  for (i32 n = 0;; ++n) {
    if (leader) {
      if (tile.b >= 0) ptx::st_shared(ptx::shared_address(&smem.done[n]), index);
      write_tile(tile_slot(smem, n), tile);
      ptx::mbarrier_arrive(smem.tile_full);
    }
    if (tile.b < 0) return;
    load_q(tile, n);
    // The next one is taken when everybody has begun this one, so that no block hoards work.
    ptx::mbarrier_wait(smem.tile_empty, n & 1);
    take_next(n + 1);
  }
}

// ---- Warp 1: K. Warp 2: V ----

// buffers: smem.k or smem.v, with their barriers and tensor map.
template <Config C, class Buffers>
TILEWISE_INLINE void load_blocks(SmemPlan<C>& smem, Buffers& buffers, u64* full, u64* empty,
                                 const TensorMap& map, const AttentionParams& p,
                                 const ForwardLaunch& launch) {
  const bool leader = ptx::elect_one();
  Ring<C.stages> ring;
  for (i32 n = 0;; ++n) {
    if (!await_tile(smem, n)) break;
    if (!leader) continue;
    const WorkTile t = read_tile(tile_slot(smem, n));
    const i32 kv_head = (t.head << launch.pack_log2) / p.group, batch = p.cu_seqlens_k ? 0 : t.b;
    for (i32 j = t.blocks(C.Bc) - 1; j >= 0; --j) {
      auto& buffer = buffers[ring.stage];
      ptx::mbarrier_wait(empty[ring.stage], ring.phase ^ 1);
      ptx::mbarrier_arrive_expect(full[ring.stage], sizeof(buffer));
#pragma unroll
      for (int c = 0; c < int(sizeof(buffer) / sizeof(buffer[0])); ++c)
        ptx::tma_load_4d(buffer[c], map, full[ring.stage], c * kSwizzleCols, t.k_row + t.key_begin + j * C.Bc,
                         kv_head, batch, ptx::kEvictLast);
      ring.advance();
    }
  }
}

// ---- The other warpgroups: S = Q K^T, online softmax, O += P V ----

// S = -inf outside each row's range of keys: rows h = 0, 1 are the lane's two, `key` is the key of s[0][0].
// Of 8 keys in a row the lane has two: bit 2 t + e of `visible` is s[t][2 h + e].
template <int n>
TILEWISE_INLINE void mask_rows(float (&s)[n][4], const Range<i32> (&row)[2], i32 key) {
  constexpr int kWord = n < 16 ? n : 16;  // tiles whose bits fit a word
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    // The lane's keys below key + x, of one word.
    auto below = [](i32 x) {
      x = x < 0 ? 0 : x > 8 * kWord ? 8 * kWord : x;
      return ptx::low_bits(2 * (x / 8) + (x % 8 < 2 ? x % 8 : 2));
    };
#pragma unroll
    for (int first = 0; first < n; first += kWord) {
      const i32 origin = key + 8 * first;
      const u32 visible = below(row[h].end - origin) & ~below(row[h].begin - origin);
#pragma unroll
      for (int t = 0; t < kWord && first + t < n; ++t)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (!(visible >> (2 * t + e) & 1)) s[first + t][2 * h + e] = -infinity();
    }
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
  constexpr bool kCanHide = C.masked || C.boolean_mask;   // keys of a loaded block from rows of the tile
  constexpr bool kTurns = groups(C) == 2 && C.dv >= 128;  // the warpgroups issue their products in turn
  constexpr bool kPasses = C.masked && groups(C) > 2;     // a warpgroup may end before its tile: last_block()
  constexpr bool kRowRanges =
      Scores<C>::kRaw && !C.boolean_mask;  // masks are ranges of keys: packed heads, too
  const int warp = int(ptx::thread_index() % 128) / 32, lane = int(ptx::thread_index() % 32), quad = lane % 4;
  const int warp_row = group * kGroupRows + 16 * warp;  // of the tile
  const int pack = launch.pack_log2;

  float s_frag[kKeyTiles][4];  // S, then P in fp32          [64, Bc] of a warpgroup
  u32 p_frag[kKeySteps][4];    // P as the A operand of P V
  float o_acc[kOutTiles][4];   // O, not yet divided by l    [64, dv]
  u32 q_frag[C.q_registers ? kDSteps : 1][4];
  RowStats<Scores<C>::kExact> stats;
  Ring<C.stages> ring_k, ring_v;
  u32 q_phase = 0;
  i32 n = 0;  // tiles done

  auto arrive = [&](u64& bar) {  // once per warp
    if (lane == 0) ptx::mbarrier_arrive(bar);
  };
  // A tile lies in shared memory, where whatever needs it reads it again.
  auto slot = [&](i32 which) { return tile_slot(smem, which); };
  auto take_tile = [&](i32 which) { return ptx::uniform(await_tile(smem, which)) != 0; };
  if (!take_tile(0)) return;
  i32 j, open_end, open_begin;  // this block; blocks [open_begin, open_end) need no mask
  i32 beyond;                   // rows of V in the tile's last block that no row sees, until they are cleared
  bool first_block;             // O starts with this P V
  // Made where they are used: what they hold would cost registers throughout.
  auto scores_of = [&](const WorkTile& tile) { return Scores<C>(p, tile.sequence(), tile.head << pack); };
  const float multiplier = scores_of(read_tile(slot(0))).multiplier;

  // The warpgroup's own rows may see none of the keys in the tile's last blocks.
  auto last_block = [&](const WorkTile& tile) {
    const i32 last = tile.blocks(C.Bc) - 1;
    if constexpr (!kPasses) return ptx::uniform(last);
    const i32 row0 = tile.row0 + group * kGroupRows, i0 = row0 >> pack,
              i1 = ((row0 + kGroupRows - 1) >> pack) + 1;
    const Range<i32> keys = band_of(p, tile.sequence()).any(i0, i1 < tile.sq ? i1 : tile.sq);
    const i32 own = ceil_div(keys.end - tile.key_begin, C.Bc) - 1;
    return ptx::uniform(keys.end <= tile.key_begin || own > last ? last : own);
  };
  auto begin_tile = [&] {
    const WorkTile tile = read_tile(slot(n));
    j = last_block(tile);
    first_block = true;
    const i32 keys = tile.key_end - tile.key_begin;
    beyond = ptx::uniform(tile.blocks(C.Bc) * C.Bc - (keys < 0 ? 0 : keys));
    const i32 row0 = tile.row0 + group * kGroupRows, last = tile.sq - 1;
    Range<i32> open{0, tile.sk};
    if constexpr (C.masked) {
      const Band<i32> band = band_of(p, tile.sequence());
      const i32 i0 = row0 >> pack, i1 = (row0 + kGroupRows - 1) >> pack;
      open = band.all(i0 < last ? i0 : last, (i1 < last ? i1 : last) + 1);
    }
    open_end = ptx::uniform((open.end - tile.key_begin) / C.Bc);
    open_begin = ptx::uniform(open.begin > tile.key_begin ? ceil_div(open.begin - tile.key_begin, C.Bc) : 0);
  };
  auto own_tile = [&] { return read_tile(slot(n)); };
  auto own_row = [&](const WorkTile& tile) { return tile.row0 + warp_row + lane / 4; };   // the first, packed
  auto key = [&](const WorkTile& tile) { return tile.key_begin + j * C.Bc + 2 * quad; };  // of s_frag[0][0]
  auto open_scores = [&] {
    if constexpr (!Scores<C>::kRaw || C.boolean_mask) {
      const WorkTile tile = own_tile();
      scores_of(tile).template apply<false>(s_frag, own_row(tile), key(tile));
    }
  };
  auto masked_scores = [&](auto& s, const WorkTile& tile, i32 first_key) {
    if constexpr (kRowRanges) {
      Range<i32> visible[2] = {{0, tile.sk}, {0, tile.sk}};
      if constexpr (C.masked) {
        const Band<i32> band = band_of(p, tile.sequence());
        const i32 row = own_row(tile);
        visible[0] = band.row(row >> pack), visible[1] = band.row((row + 8) >> pack);
      }
      mask_rows(s, visible, first_key);
    } else {
      scores_of(tile).template apply<true>(s, own_row(tile), first_key);
    }
  };

  // (0) Q_i, for all blocks
  auto q_address = [&] {
    const int q_row = 16 * warp + lane % 16;
    return ptx::opaque(ptx::shared_address(&smem.q[group][0][q_row][(lane / 16 ^ q_row % 8) * 8]));
  };
  auto read_q = [&](u32(&a)[4], u32 address, int kk) {
    ptx::ldmatrix_x4(a, (address ^ (kk % 4 * 32)) + kk / 4 * kQBox);
  };
  auto take_q = [&] {
    ptx::mbarrier_wait(smem.q_full[group], q_phase);
    q_phase ^= 1;
    if constexpr (C.q_registers) {
      const u32 address = q_address();
#pragma unroll
      for (int kk = 0; kk < kDSteps; ++kk) read_q(q_frag[kk], address, kk);
      ptx::sync_warp();
      arrive(smem.q_empty[group]);
    }
  };

  // (1) S_ij = Q_i K_j^T   [64, Bc]
  auto issue_scores = [&] {
    ptx::mbarrier_wait(smem.k_full[ring_k.stage], ring_k.phase);
    const u64 k_desc = ptx::descriptor_128b(ptx::shared_address(smem.k[ring_k.stage]), kKBox);
    const u32 q = ptx::shared_address(smem.q[group]);  // descriptors of wide heads cannot all be kept
    const u64 q_desc = ptx::descriptor_128b(C.d > 128 || C.dv > 128 ? ptx::opaque(q) : q, kQBox);
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
  };
  auto release_q = [&] {
    if constexpr (!C.q_registers) arrive(smem.q_empty[group]);
  };
  // With two warpgroups, one's products run beside the other's softmax.
  auto turn_begin = [&] {
    if constexpr (kTurns) ptx::bar_sync(2 + group, 256);
  };
  auto turn_end = [&] {
    if constexpr (kTurns) ptx::bar_arrive(3 - group, 256);
  };
  // The same by one warp alone, with mma.sync and keys from global memory (their buffer is no longer held):
  // when the softmax needs S again.
  auto scores_again = [&] {
    const WorkTile tile = own_tile();
    const unsigned char* k =
        head_base(p.k, p.k_stride, p.cu_seqlens_k ? 0 : tile.b, tile.k_row, (tile.head << pack) / p.group, 2);
    auto k_pair = [&](i32 key_row, i32 column) {
      u32 pair = 0;
#pragma unroll
      for (int x = 0; x < 2; ++x)
        if (key_row < tile.sk && column + x < p.D)
          pair |= u32(ptx::load_global(reinterpret_cast<const unsigned short*>(
                      k + (i64{key_row} * p.k_stride.s + column + x) * 2)))
                  << (16 * x);
      return pair;
    };
    float again[kKeyTiles][4];
#pragma unroll 1
    for (int t = 0; t < kKeyTiles; ++t) {
      float s[1][4] = {};
      const i32 key_row = tile.key_begin + j * C.Bc + 8 * t + lane / 4;
#pragma unroll
      for (int kk = 0; kk < kDSteps; ++kk) {
        const u32 low = k_pair(key_row, 16 * kk + 2 * quad), high = k_pair(key_row, 16 * kk + 8 + 2 * quad);
        if constexpr (C.q_registers) {
          N::mma(s[0], q_frag[kk], low, high);
        } else {
          u32 q_again[4];
          read_q(q_again, q_address(), kk);
          N::mma(s[0], q_again, low, high);
        }
      }
      masked_scores(s, tile, key(tile) + 8 * t);
#pragma unroll
      for (int x = 0; x < 4; ++x) again[t][x] = s[0][x];
    }
#pragma unroll
    for (int t = 0; t < kKeyTiles; ++t)
#pragma unroll
      for (int x = 0; x < 4; ++x) s_frag[t][x] = again[t][x];
  };

  // The tile's last block has come: whatever lies in its rows beyond, their P is 0, and 0 x NaN is NaN.
  auto clear_tail = [&] {
    constexpr int kThreads = 128 * groups(C), kChunks = kSwizzleCols / 8;
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
    beyond = 0;
  };
  // (2) O_i += P_ij V_j   [64, dv]
  auto issue_output = [&] {
    ptx::mbarrier_wait(smem.v_full[ring_v.stage], ring_v.phase);
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
    ptx::wgmma_wait_all();
    ptx::pin(o_acc);
  };
  auto release_output = [&] {
    arrive(smem.v_empty[ring_v.stage]);
    ring_v.advance();
  };

  // (3) m_i, l_i, P_ij = exp2(S_ij - m_i): softmax.h
  // (5) P_ij as an operand: only now, as P V of the last block reads those registers until it is done
  auto pack_p = [&] {
    if constexpr (C.dropout) {
      const WorkTile tile = own_tile();
      Dropout(p, tile.b, tile.head << pack).apply(s_frag, own_row(tile), key(tile));
    }
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
    if (C.bias || C.boolean_mask || j >= open_end || j < open_begin) {
      const WorkTile tile = own_tile();
      masked_scores(s_frag, tile, key(tile));
    } else {
      open_scores();
    }
  };
  // Blocks behind the warpgroup's own last one: their buffers go back unused.
  auto pass_keys = [&](i32 which) {
    if constexpr (!kPasses) return;
    const WorkTile tile = read_tile(slot(which));
    for (i32 x = ptx::uniform(tile.blocks(C.Bc) - 1), own = last_block(tile); x > own; --x) {
      ptx::mbarrier_wait(smem.k_full[ring_k.stage], ring_k.phase);
      release_scores();
    }
    ptx::sync_warp();
  };
  auto pass_values = [&] {
    if constexpr (!kPasses) return;
    for (i32 x = ptx::uniform(own_tile().blocks(C.Bc) - 1); x > j; --x) {
      ptx::mbarrier_wait(smem.v_full[ring_v.stage], ring_v.phase);
      clear_tail();
      release_output();
    }
    ptx::sync_warp();
  };
  auto first_step = [&] {
    ptx::wgmma_wait_all();
    ptx::pin(s_frag);
    release_scores();
    scores_of_block();
    stats.begin(s_frag, multiplier);
    pack_p();
    ptx::mbarrier_wait(smem.v_full[ring_v.stage], ring_v.phase);
    clear_tail();
  };
  auto step = [&] {
    turn_begin();
    issue_scores();
    issue_output();
    turn_end();
    ptx::wgmma_wait_all_but_one();
    ptx::pin(s_frag);
    release_scores();
    scores_of_block();
    bool exact = !stats.placed();
    const bool moved = exact || stats.guess(s_frag, multiplier);  // (3)
    if (moved) [[unlikely]] {
      if (!exact && !stats.settle(s_frag)) {
        scores_again();
        exact = true;
      }
      if (exact) stats.update(s_frag, multiplier);
    }
    output_done();         // below a branch, or ptxas puts it above the exponentials; the same for all warps
    if (moved) rescale();  // (4)
    release_output();
    pack_p();
  };

  // (6) O_i / l_i and L_i = m_i + log l_i to global memory
  const u32 suspect = ptx::shared_address(&smem.suspect[4 * group + warp]);
  auto store = [&] {
    if (store_output<C>(o_acc, stats, own_tile(), warp_row, smem.out[4 * group + warp], p, launch))
        [[unlikely]]
      ptx::st_shared(suspect, 1);
  };

  if (kTurns && group == 1) ptx::bar_arrive(2, 256);
  take_q();
  pass_keys(0);
  turn_begin();
  issue_scores();
  turn_end();
  for (;;) {
    begin_tile();
    pass_values();
    first_step();
    for (--j; j >= 0; --j) step();
    release_q();
    // The last P V runs beside the next tile's first Q K^T, and that beside the store.
    if (!take_tile(n + 1)) break;
    take_q();
    turn_begin();
    issue_output();
    pass_keys(n + 1);
    issue_scores();
    turn_end();
    ptx::wgmma_wait_all_but_one();
    ptx::pin(o_acc);
    release_output();
    store();
    ++n;
  }
  turn_begin();
  issue_output();
  turn_end();
  output_done();
  store();
  if (ptx::elect_one()) ptx::tma_store_wait();
  ptx::sync_warp();
  if (kCanHide && ptx::ld_shared(suspect) != 0) repair_tiles(smem, p, launch, n + 1, warp_row);
}

template <Config C>
TILEWISE_KERNEL(threads(C), 1)
forward(TILEWISE_GRID_CONSTANT const AttentionParams p, TILEWISE_GRID_CONSTANT const ForwardLaunch launch) {
  static_assert(sizeof(SmemPlan<C>) <= forward_smem_bytes(C) && C.Br == groups(C) * kGroupRows);
  SmemPlan<C>& smem = *reinterpret_cast<SmemPlan<C>*>(ptx::dynamic_shared());
  const int warp = int(ptx::shfl_idx(ptx::thread_index() / 32, 0));
  if (ptx::thread_index() == 0) {
    for (const TensorMap* map : {&launch.q, &launch.k, &launch.v, &launch.out}) ptx::prefetch_map(*map);
    for (int w = 0; w < groups(C); ++w)
      ptx::mbarrier_init(smem.q_full[w], 1), ptx::mbarrier_init(smem.q_empty[w], 4);
    for (int s = 0; s < C.stages; ++s) {
      ptx::mbarrier_init(smem.k_full[s], 1), ptx::mbarrier_init(smem.k_empty[s], C.warps);
      ptx::mbarrier_init(smem.v_full[s], 1), ptx::mbarrier_init(smem.v_empty[s], C.warps);
    }
    for (u32& none : smem.suspect) ptx::st_shared(ptx::shared_address(&none), 0);
    ptx::mbarrier_init(smem.tile_full, 1);
    ptx::mbarrier_init(smem.tile_empty, 2 + C.warps);
    ptx::mbarrier_init_fence();
  }
  ptx::sync_threads();

  // The launch gives every thread as many registers; the producer's are worth more to the others, most where
  // O is wide. A walk over sequences takes some.
  constexpr bool kWide = C.dv > 128 && !C.varlen;
  constexpr int kProducerRegisters = groups(C) > 2 ? 32
                                     : kWide       ? 24
                                                   : 40,
                kConsumerRegisters = groups(C) > 2 ? 160
                                     : kWide       ? 240
                                                   : 232;
  if (warp < 4) {
    ptx::registers_decrease<kProducerRegisters>();
    if (warp == 0) choose_tiles(smem, p, launch);
    if (warp == 1) load_blocks(smem, smem.k, smem.k_full, smem.k_empty, launch.k, p, launch);
    if (warp == 2) load_blocks(smem, smem.v, smem.v_full, smem.v_empty, launch.v, p, launch);
    if (C.varlen && warp == 3) clear_uncovered(p);
  } else {
    ptx::registers_increase<kConsumerRegisters>();
    attend(smem, p, launch, warp / 4 - 1);
  }
}

}  // namespace tilewise::wgmma
