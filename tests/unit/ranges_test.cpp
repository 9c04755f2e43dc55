// ranges.h against brute force: every small shape, every kind of window, both alignments, every block.
#include "kernels/shared/ranges.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstdint>

namespace tilewise {
namespace {

constexpr i64 kWindows[] = {-1,        0,        1, 2, 5, 7, kUnbounded - 1, kUnbounded, kUnbounded + 1,
                            INT32_MAX, INT64_MAX};

// The contract's sentence, in 128 bits.
bool sees(i64 sq, i64 sk, bool top_left, i64 left, i64 right, bool causal, i64 i, i64 j) {
  const __int128 diagonal = top_left ? i : i + sk - sq;
  if (left >= 0 && j < diagonal - left) return false;
  if (right >= 0 && j > diagonal + right) return false;
  return !causal || j <= diagonal;
}

// Calls f(band, sees(i, j)) for every mask over every shape up to n.
template <class Int, class F>
void each_band(i64 n, F&& f) {
  for (i64 sq = 0; sq <= n; ++sq)
    for (i64 sk = 0; sk <= n; ++sk)
      for (i64 left : kWindows)
        for (i64 right : kWindows)
          for (int flags = 0; flags < 4; ++flags) {
            const bool top_left = flags & 1, causal = flags & 2;
            f(make_band<Int>(Int(sq), Int(sk), top_left, left, right, causal),
              [=](i64 i, i64 j) { return sees(sq, sk, top_left, left, right, causal, i, j); });
          }
}

template <class Int>
void check_rows() {
  each_band<Int>(7, [](const Band<Int>& band, auto&& truth) {
    for (Int i = 0; i < band.sq; ++i)
      for (Int j = 0; j < band.sk; ++j) ASSERT_EQ(band.sees(i, j), truth(i, j)) << band.sq << " " << band.sk;
  });
}

TEST(Ranges, RowsAreTheContractsMask) {
  check_rows<i32>();
  check_rows<i64>();
}

// `any` holds every key that some query of the block sees and begins and ends with such a key; `all` holds
// exactly those that every query sees.
TEST(Ranges, BlocksOfQueries) {
  each_band<i32>(6, [](const Band<i32>& band, auto&& truth) {
    for (i32 i0 = 0; i0 < band.sq; ++i0)
      for (i32 i1 = i0 + 1; i1 <= band.sq; ++i1) {
        const Range<i32> any = band.any(i0, i1), all = band.all(i0, i1);
        i32 first = -1, last = -1;
        for (i32 j = 0; j < band.sk; ++j) {
          int n = 0;
          for (i32 i = i0; i < i1; ++i) n += truth(i, j);
          ASSERT_EQ(all.contains(j), n == i1 - i0);
          if (n && first < 0) first = j;
          if (n) last = j;
        }
        ASSERT_EQ(any.empty(), first < 0);
        if (first >= 0) {
          ASSERT_EQ(any.begin, first);
          ASSERT_EQ(any.end, last + 1);
        }
      }
  });
}

TEST(Ranges, BlocksOfKeys) {
  each_band<i32>(6, [](const Band<i32>& band, auto&& truth) {
    for (i32 j0 = 0; j0 < band.sk; ++j0)
      for (i32 j1 = j0 + 1; j1 <= band.sk; ++j1) {
        const Range<i32> any = band.queries_any(j0, j1);
        i32 first = -1, last = -1;
        for (i32 i = 0; i < band.sq; ++i)
          for (i32 j = j0; j < j1; ++j)
            if (truth(i, j)) {
              if (first < 0) first = i;
              last = i;
            }
        ASSERT_EQ(any.empty(), first < 0);
        if (first >= 0) {
          ASSERT_EQ(any.begin, first);
          ASSERT_EQ(any.end, last + 1);
        }
      }
  });
}

TEST(Ranges, LongestSequencesStayIn32Bits) {
  const i32 n = i32(kMaxLength - 1);
  const Band<i32> full = make_band<i32>(n, n, false, -1, -1, false);
  EXPECT_TRUE(full.unmasked());
  EXPECT_EQ(full.row(n - 1).size(), n);
  const Band<i32> window = make_band<i32>(n, n, false, INT64_MAX, INT64_MAX, true);
  EXPECT_FALSE(window.unmasked());
  EXPECT_EQ(window.row(n - 1).end, n);
  EXPECT_EQ(window.row(0).size(), 1);
  const Band<i32> uneven = make_band<i32>(1, n, false, n, 0, false);
  EXPECT_EQ(uneven.row(0).size(), n);
}

}  // namespace
}  // namespace tilewise
