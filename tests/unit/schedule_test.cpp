// schedule.h and the mma forward's tile table: every tile of every head is somebody's, exactly once; every
// table entry is one that the kernel can hold.
#include "kernels/shared/schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "kernels/mma/backward_tiles.h"
#include "kernels/mma/tiles.h"
#include "kernels/mma/wide.h"

namespace tilewise {
namespace {

AttentionParams shape(i32 B, i32 H, i32 Hk, i32 Sq, i32 Sk) {
  AttentionParams p{};
  p.B = B, p.H = H, p.Hk = Hk, p.group = H / Hk, p.Sq = Sq, p.Sk = Sk, p.D = p.Dv = 64;
  return p;
}

TEST(Schedule, CoversEveryTileOnce) {
  for (i32 B : {1, 2, 5})
    for (i32 H : {1, 2, 6})
      for (i32 tiles : {1, 3, 8})
        for (i32 section = 1; section <= B * H; ++section) {
          const AttentionParams p = shape(B, H, 1, tiles * 16, 100);
          std::set<std::tuple<i32, i32, i32>> seen;
          for (u32 x = 0; x < u32(B * H * tiles); ++x) {
            const WorkItem w = work_item<u32>(p, tiles, section, x),
                           same = work_item<u64>(p, tiles, section, x);
            ASSERT_EQ(std::tie(w.tile, w.b, w.h), std::tie(same.tile, same.b, same.h));
            ASSERT_TRUE(w.tile >= 0 && w.tile < tiles && w.b >= 0 && w.b < B && w.h >= 0 && w.h < H);
            seen.insert({w.tile, w.b, w.h});
          }
          ASSERT_EQ(seen.size(), size_t(B * H * tiles));
        }
}

TEST(Schedule, LongestFirstInsideASection) {
  const AttentionParams p = shape(1, 4, 4, 1600, 1600);
  for (u32 x = 1; x < 400; ++x)
    EXPECT_LE(work_item<u32>(p, 100, 4, x).tile, work_item<u32>(p, 100, 4, x - 1).tile);
}

TEST(Schedule, SectionsHoldWholeGroupsAndFitTheCache) {
  EXPECT_EQ(section_heads(shape(8, 16, 16, 64, 0), 2), 128);  // no keys: one section
  for (i32 Sk : {1, 1000, 16384, 1 << 20, 1 << 28}) {
    const AttentionParams p = shape(2, 16, 4, 64, Sk);
    const i32 heads = section_heads(p, 2);
    EXPECT_EQ(heads % p.group, 0);
    EXPECT_GE(heads, p.group);
    if (heads > p.group) EXPECT_LE(i64{heads} / p.group * Sk * 128 * 2, kSectionBytes);
  }
}

TEST(Schedule, GridFoldsBeyondTheDevicesLimit) {
  EXPECT_EQ(fold_grid(0x7FFFFFFF).y, 1u);
  for (u64 blocks : {u64{0x80000000}, u64{1} << 33, (u64{1} << 40) + 7}) {
    const Grid g = fold_grid(blocks);
    EXPECT_GE(u64{g.x} * g.y, blocks);
    EXPECT_LT(u64{g.x} * g.y, blocks + g.y);
    EXPECT_LE(g.x, 0x7FFFFFFFu);
    EXPECT_LE(g.y, 65535u);
  }
}

// What fits the registers to the last one is left out where the compiler takes more of them.
TEST(MmaTiles, FewerRegisters) {
  for (int arch : {90, 100, 120}) {
    Config narrow, usual, backward;
    narrow.masked = usual.masked = backward.masked = true;
    EXPECT_TRUE(mma::choose_forward_tiles(narrow, 64, 64, {227 << 10, arch}));
    EXPECT_EQ(narrow.min_blocks, arch < 100 ? 3 : 2);
    EXPECT_TRUE(mma::choose_forward_tiles(usual, 128, 128, {227 << 10, arch}));
    EXPECT_EQ(usual.Bc, arch < 100 ? 64 : 32);
    EXPECT_TRUE(mma::choose_backward_tiles(backward, 128, 128, {227 << 10, arch}));
    EXPECT_EQ(backward.Br, arch < 100 ? 128 : 64);
  }
}

// A block's place without NVRTC's function for 64-bit quotients.
TEST(MmaTiles, QuotientsOfBlockNumbers) {
  for (u64 n : {u64{0}, u64{1}, u64{6}, u64{7}, u64{0xFFFFFFFF}, u64{1} << 32, (u64{1} << 32) + 6,
                u64{0x123456789ABCDEF}, ~u64{0}})
    for (u32 d : {1u, 2u, 7u, 64u, 0x7FFFFFFFu, 0xFFFFFFFFu})
      EXPECT_EQ(mma::quotient(n, d), n / d) << n << " / " << d;
}

TEST(MmaTiles, EveryHeadDimOnEveryDevice) {
  for (int limit : {99 << 10, 163 << 10, 227 << 10})
    for (Element e : {Element::fp32, Element::fp16, Element::bf16})
      for (int D = 1; D <= 256; ++D)
        for (int Dv : {1, 33, 64, 100, 128, 192, 256})
          for (int features = 0; features < 16; ++features) {
            Config c;
            c.element = e, c.masked = features & 1, c.bias = features & 2, c.softcap = features & 4;
            ASSERT_TRUE(mma::choose_forward_tiles(c, D, Dv, {limit, features & 8 ? 100 : 80}))
                << D << " " << Dv;
            ASSERT_TRUE(c.d >= D && c.dv >= Dv && c.d % 32 == 0 && c.dv % 32 == 0);
            ASSERT_LE(mma::forward_smem_bytes(c), limit);
            ASSERT_LE(c.min_blocks * (mma::forward_smem_bytes(c) + 1024), limit + 1024);
            ASSERT_EQ(c.Br % (16 * c.warps), 0);
            ASSERT_EQ(c.Bc % 16, 0);
          }
  Config c;
  EXPECT_FALSE(mma::choose_forward_tiles(c, 257, 64, 227 << 10));
  EXPECT_FALSE(mma::choose_forward_tiles(c, 64, 512, 227 << 10));
}

}  // namespace
}  // namespace tilewise
