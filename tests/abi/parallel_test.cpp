// tw_options.run_parallel: the CPU's tasks on the caller's threads, however many of them come.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "support/case.h"

namespace tilewise::test {
namespace {

struct Threads {
  int calls;  // of work(): the first on the calling thread
  int sections = 0;
  int32_t asked = 0;
};

void run_parallel(void* context, int32_t threads, void (*work)(void*), void* job) {
  auto& t = *static_cast<Threads*>(context);
  ++t.sections;
  t.asked = threads;
  std::vector<std::thread> others;
  for (int n = 1; n < t.calls; ++n) others.emplace_back(work, job);
  if (t.calls) work(job);
  for (std::thread& other : others) other.join();
}

void use(Attention& x, Threads& t) {
  x.a.options.run_parallel = run_parallel;
  x.a.options.parallel_context = &t;
}

// The outputs of forward, or of forward and backward, are those that the library's own threads make.
void expect_same_bits(const std::string& line) {
  Case c = parse_case(line);
  c.threads = 1;
  Attention want(c);
  ASSERT_EQ(want.run(TW_FORWARD, ""), TW_OK) << tw_last_error();
  if (c.backward) ASSERT_EQ(want.run(TW_BACKWARD, ""), TW_OK) << tw_last_error();
  c.threads = 3;
  for (int calls : {0, 1, 2, 3, 6}) {
    SCOPED_TRACE(line + ", calls of work: " + std::to_string(calls));
    Attention x(c);
    Threads threads{calls};
    use(x, threads);
    ASSERT_EQ(x.run(TW_FORWARD, ""), TW_OK) << tw_last_error();
    const int forward_sections = threads.sections;
    EXPECT_GT(forward_sections, 0);
    EXPECT_EQ(threads.asked, 3);
    if (c.backward) {
      ASSERT_EQ(x.run(TW_BACKWARD, ""), TW_OK) << tw_last_error();
      EXPECT_GT(threads.sections, forward_sections);
    }
    EXPECT_EQ(x.damage, "");
    const auto all = x.tensors();
    for (size_t n = 0; const Attention::Named& t : want.tensors()) {
      const Attention::Named& mine = all[n++];
      if (c.backward ? t.backward_output : t.forward_output)
        EXPECT_EQ(mine.tensor->bytes(), t.tensor->bytes()) << t.name;
    }
  }
}

TEST(CallersThreads, Forward) {
  expect_same_bits("fp32 fwd B=2 Sq=70 Sk=90 H=4 Hk=2 D=40 Dv=24 causal seed=3");
}
TEST(CallersThreads, Decode) { expect_same_bits("bf16 fwd B=2 Sq=1 Sk=700 H=4 Hk=2 D=64 Dv=64 seed=4"); }
TEST(CallersThreads, Backward) {
  expect_same_bits("fp32 bwd B=1 Sq=600 Sk=150 H=4 Hk=2 D=16 Dv=16 causal bias=11ij:fp32 sink seed=5");
}

TEST(CallersThreads, MayChangeBetweenRunsOfAPlan) {
  Attention x(parse_case("fp32 fwd B=1 Sq=70 Sk=90 H=4 Hk=4 D=16 Dv=16 threads=2 seed=6"));
  tw_plan* plan = nullptr;
  ASSERT_EQ(tw_plan_create(&x.a, TW_FORWARD, &plan), TW_OK) << tw_last_error();
  std::vector<unsigned char> memory(tw_plan_workspace(plan) + 256);
  void* workspace = memory.data() + (256 - reinterpret_cast<uintptr_t>(memory.data()) % 256) % 256;
  const size_t bytes = memory.size() - 256;
  Threads first{2}, second{2};
  for (Threads* t : {&first, &second}) {
    use(x, *t);
    EXPECT_EQ(tw_plan_execute(plan, &x.a, workspace, bytes, nullptr), TW_OK) << tw_last_error();
  }
  x.a.options.run_parallel = nullptr;
  EXPECT_EQ(tw_plan_execute(plan, &x.a, workspace, bytes, nullptr), TW_OK) << tw_last_error();
  EXPECT_EQ(first.sections, 1);
  EXPECT_EQ(second.sections, 1);
  tw_plan_destroy(plan);
}

TEST(CallersThreads, AreLeftAloneWhereOneIsEnough) {
  Attention x(parse_case("fp32 fwd B=1 Sq=70 Sk=90 H=4 Hk=4 D=16 Dv=16 threads=1 seed=6"));
  Threads threads{4};
  use(x, threads);
  ASSERT_EQ(x.run(TW_FORWARD, ""), TW_OK) << tw_last_error();
  EXPECT_EQ(threads.sections, 0);
}

}  // namespace
}  // namespace tilewise::test
