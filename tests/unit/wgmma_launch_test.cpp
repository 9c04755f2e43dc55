// Host arithmetic of the wgmma family: tile order, tile table, tensor maps, packing of heads.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "kernels/wgmma/launch.h"

namespace tilewise::test {
namespace {

TEST(TileOrder, EveryTileOnceLongestFirstSectionBySection) {
  for (i32 tiles : {1, 2, 5})
    for (i32 heads : {1, 3, 4})
      for (i32 batches : {1, 2, 3})
        for (i32 section = 1; section <= heads * batches; ++section) {
          const TileOrder order{tiles, heads, batches, section};
          std::set<std::tuple<i32, i32, i32>> seen;
          i32 last_section = 0, last_tile = tiles;
          for (u32 index = 0; index < u32(order.count()); ++index) {
            const WorkItem w = order.place<u32>(index);
            ASSERT_TRUE(0 <= w.tile && w.tile < tiles && 0 <= w.b && w.b < batches && 0 <= w.h &&
                        w.h < heads);
            EXPECT_TRUE(seen.emplace(w.b, w.h, w.tile).second);
            const i32 its_section = (w.b * heads + w.h) / section;
            if (its_section != last_section) {
              EXPECT_EQ(its_section, last_section + 1);
              last_section = its_section, last_tile = tiles;
            }
            EXPECT_LE(w.tile, last_tile);
            last_tile = w.tile;
          }
          EXPECT_EQ(i64(seen.size()), order.count());
        }
}

TEST(TileOrder, CountsBeyond32Bits) {
  const TileOrder order{1 << 20, 128, 1 << 10, 64};
  EXPECT_EQ(order.count(), i64{1} << 37);
  const WorkItem w = order.place<u64>((u64{1} << 37) - 1);
  EXPECT_EQ(w.tile, 0);
  EXPECT_EQ(w.b, (1 << 10) - 1);
  EXPECT_EQ(w.h, 127);
}

TEST(WgmmaTiles, EveryHeadDimFitsOneMultiprocessor) {
  for (int features = 0; features < 32; ++features)
    for (int D = 1; D <= 256; ++D)
      for (int Dv : {1, 64, 65, 96, 128, 129, 192, 256})
        for (i64 rows : {1, 512, 1 << 20}) {
          Config c;
          c.element = Element::bf16;
          c.softcap = features & 1, c.dropout = features & 2, c.alibi = features & 4;
          c.bias = features & 8, c.boolean_mask = features & 16;
          ASSERT_TRUE(wgmma::choose_forward_tiles(c, D, Dv, rows, rows));
          EXPECT_GE(c.d, D);
          EXPECT_GE(c.dv, Dv);
          EXPECT_LE(wgmma::forward_smem_bytes(c), wgmma::kSmemBytes) << D << " " << Dv;
          EXPECT_GE(wgmma::stage_boxes(c), 1) << D << " " << Dv;
          EXPECT_EQ(c.Br, wgmma::groups(c) * wgmma::kGroupRows);
          // Accumulators of S and O, P, and Q if it is there, beside 24 registers for the rest.
          const int cap = wgmma::groups(c) == 2 ? 232 : 160;  // the least of a kind
          EXPECT_LE(c.Bc / 2 + c.Bc / 4 + c.dv / 2 + (c.q_registers ? c.d / 4 : 0), cap - 24)
              << D << " " << Dv;
        }
  Config c;
  c.element = Element::fp32;
  EXPECT_FALSE(wgmma::choose_forward_tiles(c, 64, 64, 1, 1));
  c.element = Element::fp16;
  EXPECT_FALSE(wgmma::choose_forward_tiles(c, 257, 64, 1, 1));
}

TEST(WgmmaTiles, ThreeWarpgroupsNeedManyRowsAndALongLoopOverKeys) {
  for (bool masked : {false, true}) {
    const i64 least = masked ? 4096 : 2048;
    const auto warps = [&](i64 rows, i64 keys) {
      Config c;
      c.masked = masked;
      EXPECT_TRUE(wgmma::choose_forward_tiles(c, 64, 64, rows, keys));
      return c.warps;
    };
    EXPECT_EQ(warps(least, least), 12);
    EXPECT_EQ(warps(least - 1, 1 << 20), 8);
    EXPECT_EQ(warps(1 << 20, least - 1), 8);
  }
}

TEST(WgmmaMaps, PackedHeadsAreRows) {
  const Strides s{0, 8 * 64, 64, 1};
  const wgmma::MapShape m = wgmma::query_map(nullptr, s, 100, 1, 8, 64, 2, wgmma::kGroupRows);
  for (i64 head = 0; head < 8; ++head)
    for (i64 row = 0; row < 100; ++row)
      EXPECT_EQ((head & 3) * i64(m.stride[0]) + row * i64(m.stride[1]) + (head >> 2) * i64(m.stride[2]),
                (row * s.s + head * s.h) * 2);
  EXPECT_EQ(m.box[1] * m.box[2], u32(wgmma::kGroupRows));
  for (i32 pack = 0; pack <= 6; ++pack) {  // out: a warp's rows may be less than a pack
    const auto out = wgmma::query_map(nullptr, s, 100, 1, 64, 64, pack, wgmma::kWarpRows);
    EXPECT_EQ(out.box[1] * out.box[2], u32(wgmma::kWarpRows));
  }
}

TEST(WgmmaPacking, LargestPowerOfTwoOfTheGroupWhereItSavesTiles) {
  Config c;
  c.Br = 128;
  EXPECT_EQ(wgmma::pack_log2(c, 1, 4000), 0);
  EXPECT_EQ(wgmma::pack_log2(c, 6, 4000), 1);
  EXPECT_EQ(wgmma::pack_log2(c, 8, 4000), 3);
  EXPECT_EQ(wgmma::pack_log2(c, 256, 4000), 6);
  EXPECT_EQ(wgmma::pack_log2(c, 8, 4096), 0);  // every head fills its tiles
  EXPECT_EQ(wgmma::pack_log2(c, 8, 0), 0);
  c.Br = 192;
  EXPECT_EQ(wgmma::pack_log2(c, 8, 4096), 3);
  c.Br = 128, c.varlen = true;  // other sequences may not
  EXPECT_EQ(wgmma::pack_log2(c, 8, 4096), 3);
  c.masked = true;  // pays only where a head does not fill a tile
  EXPECT_EQ(wgmma::pack_log2(c, 8, 16), 3);
  EXPECT_EQ(wgmma::pack_log2(c, 8, 129), 0);
  c.masked = false, c.alibi = true;
  EXPECT_EQ(wgmma::pack_log2(c, 8, 16), 0);
}

}  // namespace
}  // namespace tilewise::test
