// The CPU planner on imagined machines, and the table of environment variables.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/env.h"
#include "core/error.h"
#include "plan/cuda.h"
#include "plan/decision.h"

namespace tilewise {
namespace {

plan::CpuMachine machine() {
  plan::CpuMachine m;
  m.isas = {{"scalar", true, true},
            {"avx2", true, true},
            {"avx512", true, true},
            {"avx512_bf16", true, false},
            {"neon", false, false}};
  m.threads = 6;
  return m;
}

Problem problem(const char* algorithm = nullptr) {
  Problem p;
  p.B = 1, p.Sq = p.Sk = 512, p.H = p.Hk = 2, p.D = p.Dv = 64;
  p.algorithm = algorithm;
  return p;
}

std::string failure(const Problem& p, const plan::CpuMachine& m, tw_status want) {
  try {
    plan::decide_cpu(p, m);
  } catch (const Error& e) {
    EXPECT_EQ(e.status(), want);
    return e.what();
  }
  ADD_FAILURE() << "no refusal";
  return "";
}

TEST(PlanCpu, TakesTheBestUsableInstructionSet) {
  const plan::Decision d = plan::decide_cpu(problem(), machine());
  EXPECT_EQ(d.algorithm, "avx512");
  EXPECT_EQ(std::get<plan::CpuChoice>(d.choice).isa, "avx512");
  EXPECT_FALSE(d.reasons.empty());
}

TEST(PlanCpu, EveryOtherCandidateHasAReason) {
  const plan::Decision d = plan::decide_cpu(problem(), machine());
  std::set<std::string> named;
  for (const plan::Rejected& r : d.rejected) {
    named.insert(r.candidate);
    EXPECT_FALSE(r.reason.empty()) << r.candidate;
  }
  EXPECT_EQ(named, (std::set<std::string>{"scalar", "avx2", "avx512_bf16", "neon", "decode"}));
}

TEST(PlanCpu, DecodeIsForFewQueriesWhateverTheThreads) {
  Problem p = problem();
  p.pass = TW_FORWARD;
  p.Sq = 1, p.Sk = 4096, p.H = 8, p.Hk = 2;
  auto strategy = [&] { return std::get<plan::CpuChoice>(plan::decide_cpu(p, machine()).choice).strategy; };
  EXPECT_EQ(strategy(), plan::CpuStrategy::decode);
  p.threads = 1;
  EXPECT_EQ(strategy(), plan::CpuStrategy::decode);
  p.Sq = plan::kDecodeQueries + 1;
  EXPECT_EQ(strategy(), plan::CpuStrategy::tiles);
  p.Sq = 1, p.dropout_p = 0.5;
  EXPECT_EQ(strategy(), plan::CpuStrategy::tiles);
}

TEST(PlanCpu, AlgorithmForces) {
  EXPECT_EQ(plan::decide_cpu(problem("scalar"), machine()).algorithm, "scalar");
  plan::CpuMachine m = machine();
  m.forced_isa = "avx2";
  EXPECT_EQ(plan::decide_cpu(problem(), m).algorithm, "avx2");
  EXPECT_EQ(plan::decide_cpu(problem("avx512"), m).algorithm, "avx512");  // the call wins
}

TEST(PlanCpu, RefusalsNameTheValueAndWhatWorks) {
  const std::string unknown = failure(problem("sse9"), machine(), TW_INVALID_ARGUMENT);
  EXPECT_NE(unknown.find("sse9"), unknown.npos);
  EXPECT_NE(unknown.find("avx512"), unknown.npos);
  const std::string unusable = failure(problem("avx512_bf16"), machine(), TW_UNSUPPORTED);
  EXPECT_NE(unusable.find("avx512_bf16"), unusable.npos);
  EXPECT_NE(unusable.find("processor"), unusable.npos);
  const std::string unbuilt = failure(problem("neon"), machine(), TW_UNSUPPORTED);
  EXPECT_NE(unbuilt.find("build"), unbuilt.npos);
}

TEST(PlanCpu, ExplainShowsDecisionWorkspaceAndReasons) {
  const Problem p = problem();
  const std::string text = plan::explain(p, plan::decide_cpu(p, machine()), 4096);
  for (const char* word : {"avx512", "4096", "avx512_bf16", "scalar", "because"})
    EXPECT_NE(text.find(word), text.npos) << word << " in\n" << text;
}

Problem cuda_problem(tw_pass pass, tw_dtype dtype, i64 D, i64 Dv) {
  Problem p;
  p.pass = pass, p.device = TW_CUDA, p.dtype = dtype;
  p.B = 2, p.Sq = p.Sk = 512, p.H = p.Hk = 2, p.D = D, p.Dv = Dv;
  p.q.dtype = p.k.dtype = p.v.dtype = dtype;
  return p;
}

bool launches(const plan::Decision& d, Kernel kernel) {
  const std::vector<Config>& list = std::get<plan::CudaChoice>(d.choice).kernels;
  return std::any_of(list.begin(), list.end(), [&](const Config& c) { return c.kernel == kernel; });
}

TEST(PlanCuda, HeadDimsThatNoTileHoldsStream) {
  for (int arch : {80, 86, 89, 90, 100, 120}) {
    const plan::CudaMachine m = plan::machine_of_arch(arch);
    for (tw_pass pass : {TW_FORWARD, TW_BACKWARD})
      for (tw_dtype dtype : {TW_FP32, TW_FP16, TW_BF16}) {
        EXPECT_EQ(plan::decide_cuda(cuda_problem(pass, dtype, 257, 64), m).algorithm, "wide") << arch;
        EXPECT_EQ(plan::decide_cuda(cuda_problem(pass, dtype, 64, 5000), m).algorithm, "wide") << arch;
        EXPECT_NE(plan::decide_cuda(cuda_problem(pass, dtype, 128, 128), m).algorithm, "wide") << arch;
      }
    const plan::Decision fp32 = plan::decide_cuda(cuda_problem(TW_BACKWARD, TW_FP32, 256, 256), m);
    EXPECT_EQ(fp32.algorithm, m.shared_memory < 128 << 10 ? "wide" : "fa2") << arch;
  }
  const plan::Decision d =
      plan::decide_cuda(cuda_problem(TW_FORWARD, TW_BF16, 512, 512), plan::machine_of_arch(90));
  const std::string text = plan::explain(cuda_problem(TW_FORWARD, TW_BF16, 512, 512), d, 0);
  EXPECT_NE(text.find("slower"), text.npos) << text;
  EXPECT_NE(text.find("no tile holds D 512"), text.npos) << text;
}

// Packed heads have many rows, but a loop over keys no longer than others.
TEST(PlanCuda, GroupedHeadsTakeTheTileOfOthersAsLong) {
  const auto tile = [](i64 S, i64 H, i64 Hk, bool causal) {
    Problem p = cuda_problem(TW_FORWARD, TW_BF16, 64, 64);
    p.Sq = p.Sk = S, p.H = H, p.Hk = Hk, p.causal = causal, p.scale = 0.125;
    p.q.stride = p.out.stride = {S * H * 64, H * 64, 64, 1};
    p.k.stride = p.v.stride = {S * Hk * 64, Hk * 64, 64, 1};
    const plan::Decision d = plan::decide_cuda(p, plan::machine_of_arch(90));
    EXPECT_EQ(d.algorithm, "wgmma");
    return std::get<plan::CudaChoice>(d.choice).kernels.front();
  };
  for (i64 S : {512, 1024, 2048, 4096, 8192, 16384})
    for (bool causal : {false, true}) {
      const Config alone = tile(S, 32, 32, causal);
      EXPECT_EQ(alone.Br, S >= (causal ? 4096 : 2048) ? 192 : 128) << S;
      for (i64 Hk : {1, 4, 16}) EXPECT_EQ(tile(S, 32, Hk, causal), alone) << S << " " << Hk;
    }
}

TEST(PlanCuda, ADeterministicDbiasOfABroadcastBiasHasItsOwnKernel) {
  for (i64 D : {64, 320}) {
    Problem p = cuda_problem(TW_BACKWARD, TW_BF16, D, D);
    std::byte data;
    p.bias.data = p.dbias.data = &data;
    p.bias.dtype = p.dbias.dtype = TW_FP32;
    p.bias.size[1] = p.H, p.bias.size[2] = p.bias.size[3] = 512;
    const auto decide = [&] { return plan::decide_cuda(p, plan::machine_of_arch(90)); };
    EXPECT_FALSE(launches(decide(), Kernel::wide_dbias));
    p.deterministic = true;
    EXPECT_TRUE(launches(decide(), Kernel::wide_dbias));
    EXPECT_NE(plan::explain(p, decide(), 0).find("dbias"), std::string::npos);
    p.bias.size[0] = p.B;  // each of its elements belongs to one score
    EXPECT_FALSE(launches(decide(), Kernel::wide_dbias));
  }
}

TEST(Env, NamesAreOursAndUnique) {
  std::set<std::string> names;
  for (const EnvVariable& v : kEnvironment) {
    EXPECT_EQ(std::string(v.name).rfind("TILEWISE_", 0), 0u) << v.name;
    EXPECT_TRUE(names.insert(v.name).second) << v.name;
    EXPECT_GT(std::string(v.meaning).size(), 10u) << v.name;
  }
}

TEST(Env, ReadsAndRefusesUnlistedNames) {
  setenv("TILEWISE_PACK", "/some/pack", 1);
  EXPECT_EQ(env("TILEWISE_PACK"), "/some/pack");
  unsetenv("TILEWISE_PACK");
  EXPECT_EQ(env("TILEWISE_PACK"), "");
  EXPECT_THROW(env("TILEWISE_NO_SUCH_THING"), Error);
}

}  // namespace
}  // namespace tilewise
