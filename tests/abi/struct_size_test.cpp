// The rules of struct_size: older callers are understood, newer ones as long as what is unknown here is zero.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "support/case.h"

namespace tilewise::test {
namespace {

// A caller whose header has more members than this library knows.
struct Newer {
  tw_attention a;
  unsigned char later[64];
};

tw_status workspace(const tw_attention* a) {
  size_t bytes = 0;
  return tw_attention_workspace(a, TW_FORWARD, &bytes);
}

// Past the checks: a stub's refusal is not one of struct_size.
bool understood(const tw_attention* a) { return workspace(a) != TW_INVALID_ARGUMENT; }

TEST(StructSize, InitSetsDefaults) {
  tw_attention a;
  std::memset(static_cast<void*>(&a), 0xAB, sizeof a);
  ASSERT_EQ(tw_attention_init(&a, sizeof a), TW_OK);
  EXPECT_EQ(a.struct_size, sizeof a);
  EXPECT_EQ(a.q.dtype, TW_DTYPE_NONE);
  EXPECT_TRUE(std::isnan(a.options.scale));
  EXPECT_EQ(a.options.window_left, -1);
  EXPECT_EQ(a.options.window_right, -1);
  EXPECT_EQ(a.options.dropout_p, 0);
  EXPECT_EQ(a.options.algorithm, nullptr);
}

TEST(StructSize, TooSmallIsRefused) {
  tw_attention a;
  EXPECT_EQ(tw_attention_init(&a, 8), TW_INVALID_ARGUMENT);
  EXPECT_EQ(tw_attention_init(nullptr, sizeof a), TW_INVALID_ARGUMENT);
  ASSERT_EQ(tw_attention_init(&a, sizeof a), TW_OK);
  a.struct_size = 0;
  EXPECT_EQ(workspace(&a), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("tw_attention_init"), std::string::npos);
}

TEST(StructSize, NewerCallerWithAZeroTailIsUnderstood) {
  Attention x(parse_case("fp32 fwd B=1 Sq=2 Sk=3 H=1 Hk=1 D=4 Dv=4"));
  Newer n;
  std::memset(static_cast<void*>(&n), 0xAB, sizeof n);
  ASSERT_EQ(tw_attention_init(&n.a, sizeof n), TW_OK);
  for (unsigned char b : n.later) EXPECT_EQ(b, 0);
  EXPECT_EQ(n.a.struct_size, sizeof n);
  const size_t size = n.a.struct_size;
  n.a = x.a;
  n.a.struct_size = size;
  EXPECT_TRUE(understood(&n.a)) << tw_last_error();
}

TEST(StructSize, NewerCallerWhoAsksForTheUnknownIsRefused) {
  Attention x(parse_case("fp32 fwd B=1 Sq=2 Sk=3 H=1 Hk=1 D=4 Dv=4"));
  Newer n;
  std::memset(static_cast<void*>(&n), 0, sizeof n);
  n.a = x.a;
  n.a.struct_size = sizeof n;
  n.later[63] = 1;
  EXPECT_EQ(workspace(&n.a), TW_INVALID_ARGUMENT);
  EXPECT_NE(std::string(tw_last_error()).find("struct_size"), std::string::npos);
}

TEST(Messages, BelongToTheThreadAndAreClearedBySuccess) {
  tw_attention a;
  EXPECT_EQ(tw_attention_init(&a, 1), TW_INVALID_ARGUMENT);
  EXPECT_STRNE(tw_last_error(), "");
  EXPECT_EQ(tw_attention_init(&a, sizeof a), TW_OK);
  EXPECT_STREQ(tw_last_error(), "");
}

TEST(Texts, AreCutAtTheCapacityAndTellTheirLength) {
  size_t length = 0;
  ASSERT_EQ(tw_info(nullptr, 0, &length), TW_OK);
  ASSERT_GT(length, 10u);
  std::vector<char> text(length + 1, 'x');
  ASSERT_EQ(tw_info(text.data(), text.size(), nullptr), TW_OK);
  EXPECT_EQ(std::strlen(text.data()), length);
  std::vector<char> little(5, 'x');
  ASSERT_EQ(tw_info(little.data(), 4, nullptr), TW_OK);
  EXPECT_EQ(std::strlen(little.data()), 3u);
  EXPECT_EQ(little[4], 'x');
}

TEST(Names, VersionAndStatus) {
  EXPECT_STREQ(tw_version(), "0.1.0");
  EXPECT_STREQ(tw_status_name(TW_OK), "TW_OK");
  EXPECT_STREQ(tw_status_name(TW_INTERNAL), "TW_INTERNAL");
  EXPECT_STRNE(tw_status_name(tw_status(99)), "");
}

}  // namespace
}  // namespace tilewise::test
