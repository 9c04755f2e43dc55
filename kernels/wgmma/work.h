// What the warps of the wgmma forward work on: tiles, found by their index in the launch's order.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/warp.h"
#include "../tile/sequence.h"
#include "launch.h"

namespace tilewise::wgmma {

struct WorkTile {
  i32 b;                     // -1: no more tiles
  i32 head, row0;            // packed head; first packed row, counted in the sequence
  i32 sq, sk, q_row, k_row;  // the sequence (tile/sequence.h)
  i32 key_begin, key_end;    // keys that some row of the tile sees

  TILEWISE_INLINE SequenceView sequence() const { return {b, q_row, k_row, sq, sk}; }
  // A tile that sees nothing walks over one block of zeros, all masked.
  TILEWISE_INLINE i32 blocks(i32 Bc) const {
    return key_end > key_begin ? ceil_div(key_end - key_begin, Bc) : 1;
  }
};

struct WorkTileWords {
  u32 w[sizeof(WorkTile) / 4];
};

TILEWISE_INLINE void write_tile(u32 shared, const WorkTile& t) {
  const WorkTileWords words = __builtin_bit_cast(WorkTileWords, t);
#pragma unroll
  for (u32 n = 0; n < sizeof(words) / 4; ++n) ptx::st_shared(shared + 4 * n, words.w[n]);
}

TILEWISE_INLINE WorkTile read_tile(u32 shared) {
  WorkTileWords words;
#pragma unroll
  for (u32 n = 0; n < sizeof(words) / 4; ++n) words.w[n] = ptx::ld_shared(shared + 4 * n);
  return __builtin_bit_cast(WorkTile, words);
}

// Finds tile `index` among sequences of different lengths, 32 at a time, a lane each. Indices only grow, so
// it goes on from the 32 sequences where it found the last one.
struct SequenceWalk {
  i32 first = 0;         // of the 32 sequences
  u32 tiles_before = 0;  // of all sequences before them

  TILEWISE_INLINE WorkItem find(u32 index, const AttentionParams& p, const ForwardLaunch& launch, i32 Br) {
    const i32 lane = i32(ptx::thread_index() % 32);
    for (; first < p.B; first += 32) {
      i32 tiles = 0;  // of a head of this lane's sequence
      if (first + lane < p.B) {
        const Slot q = find_slot(first + lane, p.cu_seqlens_q, p.cu_q_is_64, p.cu_q_stride, p.total_q, p.Sq,
                                 p.seqused_q, p.used_q_is_64, p.used_q_stride);
        tiles = ceil_div(q.rows << launch.pack_log2, Br);
      }
      u32 end = u32(tiles * launch.order.heads);  // of this and all lanes before it
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const u32 below = ptx::shfl_up(end, delta);
        if (lane >= delta) end += below;
      }
      const u32 beyond = ptx::vote_ballot(index < tiles_before + end);
      if (beyond != 0) {
        const int owner = ptx::lowest_bit(beyond);
        tiles = i32(ptx::shfl_idx(u32(tiles), owner));
        const u32 begin = ptx::shfl_idx(end, owner) - u32(tiles * launch.order.heads);
        WorkItem item =
            TileOrder{tiles, launch.order.heads, 1, launch.order.heads}.place(index - tiles_before - begin);
        item.b = first + owner;
        return item;
      }
      tiles_before += ptx::shfl_idx(end, 31);
    }
    return {0, -1, 0};
  }
};

// Tile `index` of the launch; indices must grow from call to call.
template <Config C>
TILEWISE_INLINE WorkTile find_tile(u32 index, SequenceWalk& walk, const AttentionParams& p,
                                   const ForwardLaunch& launch) {
  WorkItem item{0, -1, 0};
  if constexpr (C.varlen)
    item = walk.find(index, p, launch, C.Br);
  else if (index < u32(launch.order.count()))
    item = launch.order.template place<u32>(index);
  WorkTile t{item.b, item.h, item.tile * C.Br, 0, 0, 0, 0, 0, 0};
  if (item.b < 0) return t;
  const SequenceView s = find_sequence<C.varlen>(p, item.b);
  t.sq = s.sq, t.sk = s.sk, t.q_row = i32(s.q_row), t.k_row = i32(s.k_row);
  const i32 i0 = t.row0 >> launch.pack_log2, i1 = ((t.row0 + C.Br - 1) >> launch.pack_log2) + 1;
  const Range<i32> keys = C.masked ? band_of(p, s).any(i0, i1 < s.sq ? i1 : s.sq) : Range<i32>{0, s.sk};
  t.key_begin = keys.begin, t.key_end = keys.end;
  return t;
}

}  // namespace tilewise::wgmma
