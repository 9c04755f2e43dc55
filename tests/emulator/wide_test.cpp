// The kernels for wide heads in the emulator against the oracle, as the planner orders them: conformance
// cases (support/case.h) with NaN and infinities wherever nothing may be read, whatever the head dim.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <list>
#include <memory>

#include "core/error.h"
#include "cuda/jit/config_text.h"
#include "cuda/launch/mma.h"
#include "emulator.h"
#include "far_offsets.h"
#include "oracle/accuracy.h"
#include "plan/cuda.h"
#include "plan/decision.h"
#include "support/case.h"
#include "wide_kernels.h"

namespace tilewise::test {
namespace {

// Rows that no sequence covers are another kernel's (common/uncovered.cuh).
void clear_uncovered(Attention& x, bool backward) {
  const auto clear = [&](Tensor& t, bool queries, i64 heads, i64 columns, double value) {
    const i64 rows = x.c.varlen ? (queries ? x.q : x.k).view.size[0] : queries ? x.c.Sq : x.c.Sk;
    const i64 batches = x.c.varlen ? 1 : x.c.B;
    std::vector<bool> covered(size_t(batches * rows), false);
    for (i64 b = 0; b < x.c.B; ++b)
      for (i64 i = 0; i < (queries ? x.length[size_t(b)].sq : x.length[size_t(b)].sk); ++i)
        covered[size_t(x.batch_index(b) * rows + (queries ? x.q_row(b, i) : x.k_row(b, i)))] = true;
    for (i64 b = 0; b < batches; ++b)
      for (i64 s = 0; s < rows; ++s)
        for (i64 h = 0; h < heads && !covered[size_t(b * rows + s)]; ++h) {
          if (!columns) x.c.varlen ? t.set(value, h, s) : t.set(value, b, h, s);
          for (i64 d = 0; d < columns; ++d) x.set(t, value, b, s, h, d);
        }
  };
  if (!backward) {
    clear(x.out, true, x.c.H, x.c.Dv, 0), clear(x.lse, true, x.c.H, 0, -INFINITY);
    return;
  }
  clear(x.dq, true, x.c.H, x.c.D, 0), clear(x.dk, false, x.c.Hk, x.c.D, 0);
  clear(x.dv, false, x.c.Hk, x.c.Dv, 0);
}

std::string run_pass(Attention& x, tw_pass pass, emulator::Order order) {
  const bool backward = pass == TW_BACKWARD;
  Problem p = make_problem(x.a, pass);
  p.algorithm = "wide";
  const plan::Decision decision = plan::decide_cuda(p, plan::machine_of_arch(86));
  const auto written = [&](const Attention::Named& t) {
    return pass == TW_FORWARD ? t.forward_output : t.backward_output;
  };
  std::list<emulator::Registered> registered;
  for (auto& t : x.tensors()) {
    if (!*t.tensor) continue;
    if (written(t)) t.tensor->fill_elements(std::nan(""));
    t.tensor->remember();
    registered.emplace_back(t.tensor->storage().data(), t.tensor->storage().size(), t.name, written(t));
  }
  try {
    const std::vector<Config>& kernels = std::get<plan::CudaChoice>(decision.choice).kernels;
    const cuda::MmaWorkspace w = backward ? cuda::mma_workspace(p, kernels) : cuda::MmaWorkspace{};
    std::vector<float> memory(w.bytes / 4 + 64, __builtin_nanf(""));
    void* start = memory.data();
    size_t space = memory.size() * 4;
    std::align(256, w.bytes, start, space);
    registered.emplace_back(start, w.bytes, "workspace", true);
    AttentionParams a = cuda::attention_params(p);
    common::DbiasParams dbias{};
    if (backward) {
      a = cuda::mma_backward_params(p, w, static_cast<std::byte*>(start));
      if (p.dbias) {
        std::memset(a.dbias_accum, 0, cuda::dbias_zeros(p, kernels));
        dbias = cuda::dbias_params(p, kernels, a.dbias_accum);
      }
    }
    for (const cuda::KernelUse& use :
         backward ? cuda::mma_backward_uses(p, kernels) : cuda::mma_forward_uses(p, kernels.at(0)))
      emulate_wide(a, dbias, use.config,
                   {.grid = {use.shape.grid[0], use.shape.grid[1], use.shape.grid[2]},
                    .threads = use.shape.threads,
                    .shared_bytes = use.shape.shared_bytes,
                    .order = order,
                    .seed = x.c.seed});
  } catch (const emulator::Error& e) {
    return e.what();
  }
  for (auto& t : x.tensors())
    if (*t.tensor)
      if (std::string damage = t.tensor->damage(t.name, written(t)); !damage.empty()) return damage;
  clear_uncovered(x, backward);
  return oracle::messages(
      pass == TW_FORWARD ? oracle::judge_forward(p, oracle::all_rows(p)) : oracle::judge_backward(p), true);
}

void expect_right(
    const std::string& line, const std::function<void(Attention&)>& change = [](Attention&) {}) {
  for (const emulator::Order order : {emulator::Order::forward, emulator::Order::reverse}) {
    Attention x(parse_case(line));
    change(x);
    std::string said = run_pass(x, TW_FORWARD, order);
    if (said.empty() && x.c.backward) said = run_pass(x, TW_BACKWARD, order);
    EXPECT_EQ(said, "") << line;
  }
}

TEST(EmulatedWide, OffsetsBeyond32Bits) {
  const FarMemory far_memory;
  for (const char* kind : {"bf16", "fp16 causal bias=bhij:fp32 dropout=0.25"})
    for (int far : {0, 1, 2}) {
      SCOPED_TRACE(cat(kind, ", far along dimension ", far));
      const std::string dtype(kind, 4);
      Attention x(parse_case(cat(dtype, " bwd B=3 Sq=5 Sk=5 H=4 Hk=2 D=8 Dv=8 dlse", kind + 4)));
      FarMemory::Spread spread(x, far_memory.memory, far);
      EXPECT_EQ(run_pass(x, TW_FORWARD, emulator::Order::forward), "");
      EXPECT_EQ(run_pass(x, TW_BACKWARD, emulator::Order::forward), "");
      EXPECT_EQ(spread.collect(true), "");
    }
}

TEST(EmulatedWide, HeadDims) {
  expect_right("bf16 bwd B=1 Sq=70 Sk=100 H=2 Hk=1 D=320 Dv=320 seed=1");
  expect_right("bf16 bwd B=2 Sq=33 Sk=65 H=2 Hk=2 D=272 Dv=40 dlse seed=2");
  expect_right("bf16 bwd B=1 Sq=20 Sk=70 H=4 Hk=2 D=8 Dv=136 sink seed=3");
  expect_right("bf16 bwd B=1 Sq=20 Sk=70 H=1 Hk=1 D=64 Dv=64 scale=-0.3 seed=4");
  expect_right("bf16 bwd B=1 Sq=10 Sk=20 H=1 Hk=1 D=16 Dv=1040 seed=7");
  expect_right("bf16 bwd B=1 Sq=0 Sk=20 H=1 Hk=1 D=320 Dv=320 seed=5");
  expect_right("bf16 bwd B=1 Sq=20 Sk=0 H=1 Hk=1 D=320 Dv=320 seed=6");
}

TEST(EmulatedWide, Bands) {
  expect_right("bf16 bwd B=1 Sq=150 Sk=200 H=2 Hk=1 D=264 Dv=264 causal seed=1");
  expect_right("bf16 bwd B=1 Sq=150 Sk=70 H=1 Hk=1 D=136 Dv=72 causal seed=2");
  expect_right("bf16 bwd B=1 Sq=70 Sk=150 H=1 Hk=1 D=64 Dv=64 causal topleft dlse sink seed=3");
  expect_right("bf16 bwd B=1 Sq=150 Sk=200 H=1 Hk=1 D=64 Dv=64 window=40,10 seed=4");
  // A NaN shows exactly where exact arithmetic puts it.
  expect_right("bf16 bwd B=1 Sq=100 Sk=100 H=1 Hk=1 D=72 Dv=136 causal seed=5", [](Attention& x) {
    x.set(x.q, NAN, 0, 20, 0, 3), x.set(x.k, NAN, 0, 60, 0, 5), x.set(x.v, NAN, 0, 70, 0, 130);
    x.set(x.dout, NAN, 0, 50, 0, 9), x.set(x.v, INFINITY, 0, 90, 0, 0);
  });
}

TEST(EmulatedWide, Features) {
  expect_right("bf16 bwd B=3 Sq=70 Sk=100 H=4 Hk=2 D=33 Dv=140 mask=bhij varlen layout=2 seed=1");
  expect_right("bf16 bwd B=2 Sq=70 Sk=100 H=2 Hk=1 D=33 Dv=40 mask=b11j sink used=qk seed=2");
  expect_right(
      "fp16 bwd B=2 Sq=70 Sk=100 H=2 Hk=1 D=264 Dv=64 causal bias=b1ij:fp32 dropout=0.25 sink seed=3");
  expect_right(
      "fp16 bwd B=3 Sq=70 Sk=130 H=4 Hk=2 D=133 Dv=49 causal window=90,-1 softcap=30 alibi=bh bias=bhij:fp32 "
      "mask=bhij sink dropout=0.25 varlen used=qk layout=2 dlse seed=10");
}

TEST(EmulatedWide, Fp32) {
  expect_right("fp32 bwd B=1 Sq=70 Sk=90 H=2 Hk=1 D=196 Dv=68 causal seed=1");
  expect_right("fp32 bwd B=2 Sq=40 Sk=70 H=2 Hk=2 D=30 Dv=70 softcap=1.5 bias=h1j:fp32 varlen dlse seed=2");
}

// Scores far from 0, rows of one key, a softcap long reached: the roundings of forward and backward must
// agree.
TEST(EmulatedWide, Fp32Rounding) {
  expect_right(
      "fp32 bwd B=2 Sq=7 Sk=300 H=1 Hk=1 D=64 Dv=64 causal topleft alibi=bh bias=h11:fp32 dropout=0.25 "
      "varlen "
      "used=qk layout=p dlse seed=172");
  expect_right(
      "fp32 bwd B=2 Sq=33 Sk=33 H=4 Hk=4 D=192 Dv=128 window=0,0 softcap=30 sink dropout=0.25 used=qk "
      "layout=m "
      "seed=271");
}

TEST(EmulatedWide, BiasesFarBelowZero) {
  for (const double low : {-1e30, double(std::numeric_limits<float>::lowest())}) {
    const auto change = [&](Attention& x) {
      for (i64 i = 0; i < 70; ++i)
        for (i64 j = 0; j < 100; ++j)
          if (i % 2 || j < 40) x.bias.set(low, 0, 0, i, j);
    };
    expect_right("fp32 bwd B=1 Sq=70 Sk=100 H=2 Hk=2 D=30 Dv=70 softcap=1.5 bias=11ij:fp32 varlen seed=2",
                 change);
    expect_right(
        "fp16 bwd B=1 Sq=70 Sk=100 H=2 Hk=1 D=264 Dv=64 causal bias=11ij:fp32 dropout=0.25 sink seed=3",
        change);
  }
}

// Without atomic additions, over whatever dimensions the bias broadcasts.
TEST(EmulatedWide, DeterministicDbias) {
  const auto deterministic = [](Attention& x) { x.a.options.deterministic = true; };
  for (const char* bias : {"1111", "11ij", "b11j", "h1j"})
    expect_right(
        cat("fp32 bwd B=2 Sq=70 Sk=130 H=2 Hk=1 D=30 Dv=70 softcap=1.5 varlen seed=1 bias=", bias, ":fp32"),
        deterministic);
  for (const char* bias : {"bh11", "1hi1", "i1"})
    expect_right(
        cat("fp16 bwd B=2 Sq=70 Sk=130 H=2 Hk=2 D=64 Dv=64 causal dropout=0.25 seed=2 bias=", bias, ":fp32"),
        deterministic);
}

}  // namespace
}  // namespace tilewise::test
