// The dropout generator: published vectors, the mask's statistics, and the independence of its coordinates.
#include "kernels/shared/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace tilewise {
namespace {

struct KnownAnswer {
  u32 counter[4], key[2], words[4];
};

// Random123's kat_vectors, philox4x32 with 10 rounds.
constexpr KnownAnswer kKnown[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, PublishedVectors) {
  for (const KnownAnswer& x : kKnown) {
    const PhiloxWords words =
        philox4x32_10(x.counter[0], x.counter[1], x.counter[2], x.counter[3], x.key[0], x.key[1]);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.w[i], x.words[i]);
  }
}

TEST(Philox, KeptFractionIsOneMinusP) {
  for (double p : {0.1, 0.25, 0.5, 0.9, 0.999}) {
    const DropoutKey key = dropout_key(u64(p * 1000), 7);
    constexpr i64 kN = 1 << 20;
    i64 kept = 0;
    for (i64 x = 0; x < kN; ++x)
      kept += dropout_bits(key, u32(x >> 19), u32(x >> 16 & 7), u32(x >> 8 & 255), u32(x & 255)) >=
              dropout_threshold(p);
    const double sigma = std::sqrt(p * (1 - p) * kN);
    EXPECT_NEAR(double(kept), (1 - p) * kN, 5 * sigma) << p;
  }
}

TEST(Philox, ZeroKeepsEverythingAndTheEdgesAreExact) {
  EXPECT_EQ(dropout_threshold(0), 0u);
  EXPECT_EQ(dropout_threshold(0.5), 0x80000000u);
  EXPECT_EQ(dropout_threshold(std::nextafter(1.0, 0.0)), 0xFFFFFFFFu);
}

// Every element has bits of its own: no two elements of a block share a (call, word).
TEST(Philox, ElementsDoNotShareBits) {
  const DropoutKey key = dropout_key(1, 2);
  std::set<u32> seen;
  for (u32 i = 0; i < 64; ++i)
    for (u32 j = 0; j < 64; ++j) seen.insert(dropout_bits(key, 0, 0, i, j));
  EXPECT_GE(seen.size(), 64 * 64 - 8);  // a birthday collision or two of 32-bit words is chance
}

TEST(Philox, BatchHeadSeedAndOffsetGiveOtherMasks) {
  auto agreement = [](DropoutKey x, u32 bx, u32 hx, DropoutKey y, u32 by, u32 hy) {
    int same = 0;
    for (u32 i = 0; i < 64; ++i)
      for (u32 j = 0; j < 64; ++j)
        same += (dropout_bits(x, bx, hx, i, j) >> 31) == (dropout_bits(y, by, hy, i, j) >> 31);
    return same;
  };
  const DropoutKey key = dropout_key(5, 0);
  for (int same :
       {agreement(key, 0, 0, key, 1, 0), agreement(key, 0, 0, key, 0, 1),
        agreement(key, 0, 0, dropout_key(6, 0), 0, 0), agreement(key, 0, 0, dropout_key(5, 1), 0, 0)})
    EXPECT_NEAR(same, 2048, 5 * 32);
}

// What one thread of an MMA accumulator owns comes from one call.
TEST(Philox, OneCallServesFourNeighbours) {
  const DropoutKey key = dropout_key(9, 9);
  for (u32 i : {0u, 3u, 16u, 37u})
    for (u32 j : {0u, 2u, 10u}) {
      const u32 base = (i / 16) * 16 + i % 8;
      const PhiloxWords words = dropout_words(key, 1, 2, base, j);
      for (u32 di : {0u, 8u})
        for (u32 dj : {0u, 1u})
          EXPECT_EQ(dropout_bits(key, 1, 2, base + di, j + dj), words.w[dropout_word(base + di, j + dj)]);
    }
}

}  // namespace
}  // namespace tilewise
