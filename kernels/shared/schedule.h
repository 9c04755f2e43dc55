// Which tile a thread block takes: longest first, and so that neighbours share keys and values in the L2
// cache.
//
// Heads (of all batch entries) form sections whose keys and values fit the cache together. Inside a section
// the query tiles run from the last to the first, the head index fastest: with a causal mask the last tile
// has the most keys, so the short ones fill the end of the launch.
#pragma once

#include "params.h"

namespace tilewise {

struct WorkItem {
  i32 tile;  // of queries (forward) or keys (backward)
  i32 b, h;
};

constexpr i32 ceil_div(i32 a, i32 b) { return (a + b - 1) / b; }

// At least one tile a sequence, so that somebody clears the uncovered rows.
constexpr i32 query_tiles(const AttentionParams& p, int Br) { return p.Sq > 0 ? ceil_div(p.Sq, Br) : 1; }

inline constexpr i64 kSectionBytes = i64{32} << 20;

constexpr i32 section_heads(const AttentionParams& p, int element_bytes) {
  const i64 head = i64{p.Sk} * (p.D + p.Dv) * element_bytes;
  const i64 kv_heads = head > 0 ? kSectionBytes / head : kSectionBytes;
  const i64 heads = (kv_heads < 1 ? 1 : kv_heads) * p.group;
  const i64 all = i64{p.B} * p.H;
  return i32(heads < all ? heads : all);
}

// The order of all tiles of a launch, for any number of heads and sections.
struct TileOrder {
  i32 tiles;           // of a head
  i32 heads, batches;  // heads of one batch entry
  i32 section;         // heads (of all batch entries) that form a section

  constexpr i64 count() const { return i64{tiles} * heads * batches; }

  // Int: u32 while the launch has fewer than 2^32 tiles, u64 beyond.
  template <class Int>
  constexpr WorkItem place(Int index) const {
    const Int per_section = Int(section) * Int(tiles);
    const Int s = index / per_section;
    const Int inside = index - s * per_section;
    const Int left = Int(batches) * Int(heads) - s * Int(section);
    const Int here = left < Int(section) ? left : Int(section);
    const Int turn = inside / here;
    const Int head = s * Int(section) + (inside - turn * here);
    const Int b = head / Int(heads);
    return {tiles - 1 - i32(turn), i32(b), i32(head - b * Int(heads))};
  }
};

template <class Int>
constexpr WorkItem work_item(const AttentionParams& p, i32 tiles, i32 section, Int index) {
  return TileOrder{tiles, p.H, p.B, section}.place(index);
}

// A one-dimensional launch, folded into y where x (below 2^31) does not reach.
struct Grid {
  u32 x, y, z;
};

constexpr Grid fold_grid(u64 blocks) {
  constexpr u64 kMaxX = 0x7FFFFFFF;
  if (blocks <= kMaxX) return {u32(blocks), 1, 1};
  const u64 y = (blocks + kMaxX - 1) / kMaxX;
  return {u32((blocks + y - 1) / y), u32(y), 1};
}

}  // namespace tilewise
