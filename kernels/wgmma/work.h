// What the warps of the wgmma forward work on: tiles, found by their index in the launch's order.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/memory.h"
#include "../ptx/special.h"
#include "../ptx/warp.h"
#include "../tile/score.h"
#include "../tile/sequence.h"
#include "launch.h"

namespace tilewise::wgmma {

struct WorkTile {
  i32 b;                     // first, so that it is found; -1: no more tiles
  i32 head, row0;            // packed head; first packed row, counted in the sequence
  i32 sq, sk, q_row, k_row;  // the sequence (tile/sequence.h)
  i32 key_begin, key_end;    // keys that some row of the tile sees

  TILEWISE_INLINE SequenceView sequence() const { return {b, q_row, k_row, sq, sk}; }
  // A tile that sees nothing walks over one block of zeros, all masked.
  TILEWISE_INLINE i32 blocks(i32 Bc) const {
    return key_end > key_begin ? ceil_div(key_end - key_begin, Bc) : 1;
  }
};

// As it lies in shared memory: written and read 16 bytes at a time.
struct WorkTileWords {
  ptx::Vec4 q[(sizeof(WorkTile) + 15) / 16];
};
struct PaddedTile {
  alignas(16) WorkTile tile;
};

TILEWISE_INLINE void write_tile(u32 shared, const WorkTile& t) {
  const auto words = __builtin_bit_cast(WorkTileWords, PaddedTile{t});
#pragma unroll
  for (u32 n = 0; n < sizeof(words) / 16; ++n) ptx::st_shared_v4(shared + 16 * n, words.q[n]);
}

TILEWISE_INLINE WorkTile read_tile(u32 shared) {
  WorkTileWords words;
#pragma unroll
  for (u32 n = 0; n < sizeof(words) / 16; ++n) words.q[n] = ptx::ld_shared_v4(shared + 16 * n);
  return __builtin_bit_cast(PaddedTile, words).tile;
}

// Finds tiles of sequences of different lengths by their index. The warp holds 32 sequences, a lane each;
// those whose keys and values fit the L2 cache together form a section, whose tiles go as in TileOrder: from
// the last to the first, the head fastest. Where nothing is masked the tiles of a sequence are equal: it is a
// section of its own, and goes head by head. Indices only grow, so the walk goes on from where it found the
// last one.
struct SequenceWalk {
  i32 next = 0;     // first of the 32 sequences to come
  i32 tiles = 0;    // of a head of this lane's sequence
  i32 sk = 0;       // its keys
  u32 waiting = 0;  // lanes whose sequences belong to later sections
  bool at_hand = false;
  i32 level = -1;  // tiles [0, level] of each head of the section that has them are to come
  u32 before = 0;  // tiles of the launch that came before those

  template <Config C>
  TILEWISE_INLINE WorkItem find(u32 index, const AttentionParams& p, const ForwardLaunch& launch) {
    const u32 heads = u32(launch.order.heads);
    do {
      while (level >= 0) {
        // Until `floor` the same sequences have such a tile: `width` tiles a level.
        const bool mine = at_hand && tiles > level;
        const u32 lanes = ptx::vote_ballot(mine), width = u32(ptx::set_bits(lanes)) * heads;
        const i32 floor = i32(ptx::reduce_max(at_hand && !mine ? u32(tiles) : 0u));
        const u32 inside = index - before, turns = inside / width;
        if (turns <= u32(level - floor)) {
          if constexpr (!C.masked) {
            const u32 head = inside / u32(level + 1);
            return {level - i32(inside - head * u32(level + 1)), next - 32 + ptx::lowest_bit(lanes),
                    i32(head)};
          }
          const u32 nth = inside / heads - turns * u32(ptx::set_bits(lanes));
          const u32 lower = lanes & ((1u << ptx::thread_index() % 32) - 1);
          const int owner = ptx::lowest_bit(ptx::vote_ballot(mine && u32(ptx::set_bits(lower)) == nth));
          return {level - i32(turns), next - 32 + owner, i32(inside % heads)};
        }
        before += u32(level - floor + 1) * width;
        level = floor - 1;
      }
    } while (next_section<C>(p, launch));
    return {0, -1, 0};
  }

 private:
  template <Config C>
  TILEWISE_INLINE bool next_section(const AttentionParams& p, const ForwardLaunch& launch) {
    const i32 lane = i32(ptx::thread_index() % 32);
    while (waiting == 0) {
      if (next >= p.B) return false;
      const SequenceView own = next + lane < p.B ? find_sequence<true>(p, next + lane) : SequenceView{};
      tiles = ceil_div(own.sq << launch.pack_log2, C.Br), sk = own.sk;
      waiting = ptx::vote_ballot(tiles > 0);
      next += 32;
    }
    const i32 first = ptx::lowest_bit(waiting);
    at_hand = lane == first;
    if constexpr (C.masked) {
      u32 keys = lane < first ? 0 : u32(sk);  // from the first to this lane's
#pragma unroll
      for (int delta = 1; delta < 32; delta *= 2) {
        const u32 below = ptx::shfl_up(keys, delta);
        if (lane >= delta) keys += below;
      }
      at_hand |= lane > first && tiles > 0 && keys <= launch.section_keys;
    }
    waiting &= ~ptx::vote_ballot(at_hand);
    level = i32(ptx::reduce_max(at_hand ? u32(tiles) : 0u)) - 1;
    return true;
  }
};

// Tile `index` of the launch; indices must grow from call to call.
template <Config C>
TILEWISE_INLINE WorkTile find_tile(u32 index, SequenceWalk& walk, const AttentionParams& p,
                                   const ForwardLaunch& launch) {
  WorkItem item{0, -1, 0};
  if constexpr (C.varlen)
    item = walk.find<C>(index, p, launch);
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

// Is row s of batch entry b part of a sequence? Packed: s counts in the whole tensor.
TILEWISE_INLINE bool covered(const AttentionParams& p, i32 b, i32 s) {
  if (p.B == 0) return false;
  if (p.cu_seqlens_q != nullptr) b = sequence_at(s, p.B, p.cu_seqlens_q, p.cu_q_is_64, p.cu_q_stride);
  const Slot slot = find_slot(b, p.cu_seqlens_q, p.cu_q_is_64, p.cu_q_stride, p.total_q, p.Sq, p.seqused_q,
                              p.used_q_is_64, p.used_q_stride);
  return s >= slot.row && s - slot.row < slot.rows;
}

// Rows that no sequence covers: out becomes 0, LSE -inf. One warp of each block, 32 rows at a time.
TILEWISE_INLINE void clear_uncovered(const AttentionParams& p) {
  const bool packed = p.cu_seqlens_q != nullptr;
  const i32 lane = i32(ptx::thread_index() % 32), rows = packed ? i32(p.total_q) : p.B * p.Sq;
  const i32 step = 32 * i32(ptx::grid_size_x());
#pragma unroll 1
  for (i32 first = 32 * i32(ptx::block_index_x()); first < rows; first += step) {
    const i32 row = first + lane, own = packed ? 0 : row / p.Sq;
#pragma unroll 1
    for (u32 bare = ptx::vote_ballot(row < rows && !covered(p, own, row - own * p.Sq)); bare != 0;
         bare &= bare - 1) {
      const i32 r = first + ptx::lowest_bit(bare), b = packed ? 0 : r / p.Sq, s = r - b * p.Sq;
#pragma unroll 1
      for (i32 h = 0; h < p.H; ++h) {
        unsigned short* out = static_cast<unsigned short*>(p.out) + b * p.out_stride.b +
                              i64{s} * p.out_stride.s + h * p.out_stride.h;
#pragma unroll 1
        for (i32 d = 4 * lane; d < p.Dv; d += 128) ptx::store_global(reinterpret_cast<u64*>(out + d), u64{0});
        if (p.lse != nullptr && lane == 0)
          ptx::store_global(p.lse + b * p.lse_b + h * p.lse_h + i64{s} * p.lse_s, -infinity());
      }
    }
  }
}

}  // namespace tilewise::wgmma
