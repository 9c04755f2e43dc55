// Overlap tests against brute force on small random views of one buffer, and on the layouts that people use.
#include "core/overlap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "core/dtype.h"

namespace tilewise {
namespace {

std::byte buffer[1 << 16];

struct View4 {
  tw_tensor t{};
  std::multiset<uintptr_t> bytes() const {
    std::multiset<uintptr_t> all;
    const int64_t *n = t.size, *s = t.stride;
    for (int64_t a = 0; a < n[0]; ++a)
      for (int64_t b = 0; b < n[1]; ++b)
        for (int64_t c = 0; c < n[2]; ++c)
          for (size_t e = 0; e < size_of(tw_dtype(t.dtype)); ++e)
            all.insert(reinterpret_cast<uintptr_t>(t.data) +
                       uintptr_t(a * s[0] + b * s[1] + c * s[2]) * size_of(tw_dtype(t.dtype)) + e);
    return all;
  }
};

View4 view(tw_dtype dtype, int64_t first, std::initializer_list<int64_t> size,
           std::initializer_list<int64_t> stride) {
  View4 v;
  v.t.dtype = dtype;
  v.t.ndim = int32_t(size.size());
  std::copy(size.begin(), size.end(), v.t.size);
  std::copy(stride.begin(), stride.end(), v.t.stride);
  v.t.data = buffer + (1 << 15) + first * int64_t(size_of(dtype));
  return v;
}

bool share(const View4& a, const View4& b) {
  const auto x = a.bytes(), y = b.bytes();
  return std::any_of(x.begin(), x.end(), [&](uintptr_t byte) { return y.count(byte) > 0; });
}

View4 random_view(std::mt19937& random) {
  auto pick = [&](int64_t low, int64_t high) { return low + int64_t(random() % uint64_t(high - low + 1)); };
  return view(random() % 2 ? TW_FP32 : TW_FP16, pick(-20, 20), {pick(1, 3), pick(1, 4), pick(1, 4)},
              {pick(-24, 24), pick(-12, 12), pick(-3, 3)});
}

TEST(Overlap, NeverMissesSharedMemory) {
  std::mt19937 random(1);
  int apart = 0, told_apart = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const View4 a = random_view(random), b = random_view(random);
    const bool truth = share(a, b);
    ASSERT_TRUE(may_overlap(a.t, b.t) || !truth);
    ASSERT_EQ(may_overlap(a.t, b.t), may_overlap(b.t, a.t));
    apart += !truth;
    told_apart += !may_overlap(a.t, b.t);
  }
  EXPECT_GT(told_apart, apart / 2);  // conservative, not useless
}

TEST(Overlap, NeverMissesSelfCollision) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 20000; ++trial) {
    const View4 a = random_view(random);
    const auto bytes = a.bytes();
    const bool collides = std::set<uintptr_t>(bytes.begin(), bytes.end()).size() != bytes.size();
    ASSERT_TRUE(self_overlap(a.t) >= 0 || !collides);
  }
}

TEST(Overlap, ExtentsAreTheOutermostBytes) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const View4 a = random_view(random);
    const auto bytes = a.bytes();
    const Extent e = extent_of(a.t);
    ASSERT_EQ(e.first, *bytes.begin());
    ASSERT_EQ(e.end, *bytes.rbegin() + 1);
  }
  View4 empty = view(TW_FP32, 0, {2, 0, 4}, {0, INT64_MIN, 1});
  EXPECT_FALSE(extent_of(empty.t).touches(extent_of(view(TW_FP32, 0, {8}, {1}).t)));
  empty.t.size[1] = 1;
  EXPECT_TRUE(extent_of(empty.t).touches(extent_of(view(TW_FP32, 3, {8}, {1}).t)));
  EXPECT_FALSE(extent_of(empty.t).touches(extent_of(view(TW_FP32, 4, {8}, {1}).t)));
}

TEST(Overlap, SlicesOfAPackedProjectionAreApart) {
  // qkv (B 2, S 5, 3, H 4, D 8), seen as (B, S, H * D)
  const View4 q = view(TW_BF16, 0, {2, 5, 32}, {480, 96, 1}), k = view(TW_BF16, 32, {2, 5, 32}, {480, 96, 1}),
              v = view(TW_BF16, 64, {2, 5, 32}, {480, 96, 1});
  EXPECT_FALSE(may_overlap(q.t, k.t));
  EXPECT_FALSE(may_overlap(k.t, v.t));
  EXPECT_FALSE(may_overlap(v.t, q.t));
  EXPECT_TRUE(may_overlap(q.t, q.t));
  EXPECT_LT(self_overlap(q.t), 0);
}

TEST(Overlap, InterleavedHeadsAndRowsAreApart) {
  const View4 even = view(TW_FP32, 0, {4, 3, 8}, {48, 16, 1}), odd = view(TW_FP32, 8, {4, 3, 8}, {48, 16, 1});
  EXPECT_FALSE(may_overlap(even.t, odd.t));
  const View4 step2 = view(TW_FP32, 0, {4, 3, 8}, {48, 16, 2}),
              other = view(TW_FP32, 1, {4, 3, 8}, {48, 16, 2});
  EXPECT_FALSE(share(step2, other));
  EXPECT_FALSE(may_overlap(step2.t, other.t));
}

TEST(Overlap, ExpandedOutputsCollide) {
  EXPECT_GE(self_overlap(view(TW_FP32, 0, {2, 3, 4}, {12, 0, 1}).t), 0);
  EXPECT_LT(self_overlap(view(TW_FP32, 0, {2, 1, 4}, {4, 0, 1}).t), 0);
  EXPECT_LT(self_overlap(view(TW_FP32, 0, {2, 3, 4}, {-12, -4, -1}).t), 0);
}

}  // namespace
}  // namespace tilewise
