// The wgmma forward's walk over sequences of different lengths, by one emulated warp: every tile once,
// sections in order, the longest tiles of a section first.
#define TILEWISE_EMULATE
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <tuple>
#include <vector>

#include "emulator.h"
#include "kernels/wgmma/work.h"

namespace tilewise::test {
namespace {

constexpr Config kFull{.Br = 128, .Bc = 128, .varlen = true};
constexpr Config kMasked{.Br = 128, .Bc = 128, .masked = true, .varlen = true};

template <Config C>
std::vector<WorkItem> walk(const std::vector<i32>& lengths, i32 heads, u32 section_keys, u32 stride) {
  std::vector<i32> cu{0};
  AttentionParams p{};
  for (i32 n : lengths) cu.push_back(cu.back() + n), p.Sq = p.Sk = std::max(p.Sk, n);
  p.B = i32(lengths.size()), p.H = p.Hk = heads, p.group = 1;
  p.cu_seqlens_q = p.cu_seqlens_k = cu.data(), p.cu_q_stride = p.cu_k_stride = 1;
  p.total_q = p.total_k = cu.back();
  wgmma::ForwardLaunch launch{};
  launch.order.heads = heads, launch.section_keys = section_keys;
  std::vector<WorkItem> items;
  const emulator::Registered registered(cu.data(), cu.size() * 4, "cu_seqlens", false);
  for (u32 start = 0; start < stride; ++start)  // as blocks do, each its share of the indices
    emulator::launch({.threads = 32}, [&] {
      wgmma::SequenceWalk walk;
      for (u32 index = start;; index += stride) {
        const WorkItem item = walk.find<C>(index, p, launch);
        if (item.b < 0) break;
        if (ptx::thread_index() > 0) continue;
        if (items.size() <= index) items.resize(index + 1, {-1, -1, -1});
        items[index] = item;
      }
    });
  return items;
}

template <Config C>
void expect_cover(const std::vector<i32>& lengths, i32 heads, u32 section_keys, u32 stride) {
  const std::vector<WorkItem> items = walk<C>(lengths, heads, section_keys, stride);
  std::set<std::tuple<i32, i32, i32>> seen;
  size_t tiles = 0;
  for (i32 n : lengths) tiles += size_t(ceil_div(n, C.Br) * heads);
  ASSERT_EQ(items.size(), tiles);
  // Which section each sequence belongs to, by the definition.
  std::vector<i32> section;
  i32 now = -1;
  u32 keys = ~0u;  // of that section
  for (size_t b = 0; b < lengths.size(); ++b) {
    if (b % 32 == 0) keys = ~0u;
    if (const u32 own = u32(lengths[b]); own > 0) {
      const bool fits = C.masked && keys != ~0u && keys + own <= section_keys;
      now += !fits;
      keys = fits ? keys + own : own;
    }
    section.push_back(now);
  }
  for (size_t n = 0; n < items.size(); ++n) {
    const WorkItem& w = items[n];
    ASSERT_TRUE(w.b >= 0 && w.b < i32(lengths.size()) && w.h >= 0 && w.h < heads) << n;
    ASSERT_TRUE(w.tile >= 0 && w.tile * C.Br < lengths[size_t(w.b)]) << n;
    EXPECT_TRUE(seen.insert({w.b, w.h, w.tile}).second) << n;
    if (n == 0) continue;
    const WorkItem& last = items[n - 1];
    const bool same = section[size_t(last.b)] == section[size_t(w.b)];
    EXPECT_LE(section[size_t(last.b)], section[size_t(w.b)]) << n;
    if (!same) continue;
    if (C.masked) {
      EXPECT_GE(last.tile, w.tile) << n;
      if (last.tile == w.tile && last.b == w.b) {
        EXPECT_EQ(last.h + 1, w.h) << n;
      }
    } else {  // a head of one sequence after the other
      EXPECT_EQ(last.b, w.b) << n;
      EXPECT_EQ(w.tile == last.tile - 1 ? last.h : last.h + 1, w.h) << n;
    }
  }
}

TEST(SequenceWalk, EveryTileOnceLongestFirst) {
  std::mt19937 random(3);
  for (const i32 sequences : {1, 2, 31, 32, 33, 70})
    for (const i32 heads : {1, 3, 16}) {
      std::vector<i32> lengths;
      for (i32 b = 0; b < sequences; ++b) lengths.push_back(random() % 4 == 0 ? 0 : i32(random() % 700));
      for (const u32 section_keys : {0u, 900u, 1u << 30})
        for (const u32 stride : {1u, 5u}) {
          expect_cover<kMasked>(lengths, heads, section_keys, stride);
          expect_cover<kFull>(lengths, heads, section_keys, stride);
        }
    }
  expect_cover<kMasked>({128 * 40}, 1, 0, 7);
  EXPECT_TRUE(walk<kMasked>({0, 0, 0}, 2, 0, 1).empty());
}

}  // namespace
}  // namespace tilewise::test
