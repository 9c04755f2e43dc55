// The baselines in the emulator against the oracle: every line of the conformance list that they carry, with
// NaN and infinities wherever nothing may be read, launched as the launcher does.
#define TILEWISE_EMULATE
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <list>

#include "core/error.h"
#include "cuda/jit/config_text.h"
#include "cuda/launch/baselines.h"
#include "cuda/launch/params.h"
#include "emulator.h"
#include "far_offsets.h"
#include "kernels/baseline/fa1_bwd.cuh"
#include "kernels/baseline/fa1_fwd.cuh"
#include "kernels/baseline/unfused.cuh"
#include "kernels/common/bwd_prepare.cuh"
#include "kernels/shared/schedule.h"
#include "oracle/accuracy.h"
#include "plan/cuda.h"
#include "plan/decision.h"
#include "support/case.h"

namespace tilewise::test {
namespace {

emulator::Launch shape(u64 blocks, int threads, int smem, emulator::Order order) {
  const Grid g = fold_grid(blocks);
  return {.grid = {g.x, g.y, g.z}, .threads = u32(threads), .shared_bytes = u32(smem), .order = order};
}

template <Config C>
void launch_unfused(const cuda::UnfusedLaunch& l, emulator::Order order) {
  using namespace baseline;
  const auto multiply = [&](void (*kernel)(const ProductParams)) {
    emulator::launch(shape(l.blocks(), kProductThreads, product_smem_bytes(C), order),
                     [&] { kernel(l.product); });
  };
  const auto rows = [&](void (*kernel)(const SoftmaxParams)) {
    emulator::launch(shape(l.blocks(), kSoftmaxThreads, kSoftmaxSmemBytes, order), [&] { kernel(l.rows); });
  };
  switch (l.kernel) {
    case Kernel::product_nt: return multiply(product_nt<C>);
    case Kernel::product_nn: return multiply(product_nn<C>);
    case Kernel::product_tn: return multiply(product_tn<C>);
    case Kernel::softmax: return rows(softmax<C>);
    case Kernel::softmax_backward: return rows(softmax_backward<C>);
    default: throw emulator::Error("not a kernel of the unfused baseline");
  }
}

// Memory of the test's own that kernels may write; starts as NaN.
struct Scratch {
  explicit Scratch(size_t bytes)
      : data(bytes / 16 + 1), registered(data.data(), data.size() * 16, "workspace", true) {
    std::memset(static_cast<void*>(data.data()), 0xFF, data.size() * 16);
  }
  std::byte* begin() { return reinterpret_cast<std::byte*>(data.data()); }
  std::vector<ptx::Vec4> data;
  emulator::Registered registered;
};

void run_unfused(const Problem& p, const Config& c, emulator::Order order) {
  Scratch workspace(2 * cuda::score_bytes(p));
  for (const cuda::UnfusedLaunch& l :
       cuda::unfused_launches(cuda::attention_params(p), p.pass == TW_BACKWARD, workspace.begin(),
                              workspace.begin() + cuda::score_bytes(p))) {
    if (c.element == Element::fp32)
      launch_unfused<Config{.family = Family::unfused, .element = Element::fp32}>(l, order);
    else if (c.element == Element::fp16)
      launch_unfused<Config{.family = Family::unfused, .element = Element::fp16}>(l, order);
    else
      launch_unfused<Config{.family = Family::unfused, .element = Element::bf16}>(l, order);
  }
}

// The planner's configuration of FlashAttention 1.
template <Element E, int d, int dv, Kernel kernel>
constexpr Config fa1_config() {
  Config c{.kernel = kernel, .element = E, .d = d, .dv = dv, .deterministic = true};
  baseline::choose_fa1_tiles(c);
  return c;
}

template <Config kForward, Config kBackward>
bool launch_fa1(const AttentionParams& a, const Config& c, emulator::Order order) {
  using namespace baseline;
  Config prepare = kBackward;
  prepare.kernel = Kernel::backward_prepare;
  if (c == kForward)
    emulator::launch(shape(fa1_forward_blocks(a.B, a.H), fa1_threads(c), fa1_forward_smem_bytes(c), order),
                     [&] { fa1_forward<kForward>(a); });
  else if (c == kBackward)
    emulator::launch(shape(fa1_backward_blocks(a.B, a.Hk), fa1_threads(c), fa1_backward_smem_bytes(c), order),
                     [&] { fa1_backward<kBackward>(a); });
  else if (c == prepare)
    emulator::launch(
        shape(common::bwd_prepare_blocks(prepare, a.B, a.H, a.Sq), common::kPrepareThreads, 0, order),
        [&] { common::bwd_prepare<kBackward>(a); });
  else
    return false;
  return true;
}

// The dims of the list's cases.
template <Element E>
bool launch_fa1_of(const AttentionParams& a, const Config& c, emulator::Order order) {
  const auto with = [&]<int d, int dv>() {
    return launch_fa1<fa1_config<E, d, dv, Kernel::forward>(), fa1_config<E, d, dv, Kernel::backward>()>(
        a, c, order);
  };
  return with.template operator()<32, 32>() || with.template operator()<64, 64>() ||
         with.template operator()<96, 96>() || with.template operator()<128, 128>();
}

void run_fa1(const Problem& p, const std::vector<Config>& kernels, emulator::Order order) {
  const cuda::Fa1Workspace w = cuda::fa1_workspace(p, kernels.back());
  Scratch workspace(w.bytes);
  AttentionParams a = cuda::attention_params(p);
  a.delta = reinterpret_cast<float*>(workspace.begin() + w.delta);
  a.lse_log2 = reinterpret_cast<float*>(workspace.begin() + w.lse_log2);
  a.dq_accum = reinterpret_cast<float*>(workspace.begin() + w.accum);
  for (const Config& c : kernels) {
    const bool listed = c.element == Element::fp16 ? launch_fa1_of<Element::fp16>(a, c, order)
                                                   : launch_fa1_of<Element::bf16>(a, c, order);
    if (!listed) throw emulator::Error(cat("not instantiated here: ", cuda::config_summary(c)));
  }
}

// One pass of a case; "" when it is right, "not here: ..." when the planner refuses.
std::string run_pass(Attention& x, tw_pass pass, const std::string& algorithm, emulator::Order order) {
  Problem p = make_problem(x.a, pass);
  p.algorithm = algorithm.c_str();
  plan::CudaChoice choice;
  try {
    choice = std::get<plan::CudaChoice>(plan::decide_cuda(p, plan::machine_of_arch(90)).choice);
  } catch (const Error& e) {
    return cat("not here: ", e.what());
  }
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
    if (algorithm == "fa1")
      run_fa1(p, choice.kernels, order);
    else
      run_unfused(p, choice.kernels.at(0), order);
  } catch (const emulator::Error& e) {
    return e.what();
  }
  for (auto& t : x.tensors())
    if (*t.tensor)
      if (std::string damage = t.tensor->damage(t.name, written(t)); !damage.empty()) return damage;
  return oracle::messages(
      pass == TW_FORWARD ? oracle::judge_forward(p, oracle::all_rows(p)) : oracle::judge_backward(p), true);
}

std::string run_case(Attention& x, const std::string& algorithm, emulator::Order order) {
  std::string said = run_pass(x, TW_FORWARD, algorithm, order);
  if (said.empty() && x.c.backward) said = run_pass(x, TW_BACKWARD, algorithm, order);
  return said;
}

class Baselines : public testing::TestWithParam<const char*> {
 protected:
  void expect_right(const std::string& line, const std::function<void(Attention&)>& change) {
    for (const emulator::Order order : {emulator::Order::forward, emulator::Order::reverse}) {
      Attention x(parse_case(line));
      change(x);
      EXPECT_EQ(run_case(x, GetParam(), order), "") << line;
    }
  }
};

TEST_P(Baselines, ConformanceList) {
  std::ifstream file(TILEWISE_CASES);
  std::string line;
  int right = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    Attention x(parse_case(line));
    const emulator::Order order = right % 2 ? emulator::Order::reverse : emulator::Order::forward;
    const std::string said = run_case(x, GetParam(), order);
    if (said.rfind("not here: ", 0) == 0) continue;
    EXPECT_EQ(said, "") << line;
    right += said.empty();
  }
  EXPECT_GT(right, 60);
}

// NaN and infinity in what some queries see and others do not: only the former show it.
TEST_P(Baselines, PartlyVisibleValues) {
  for (const char* band : {"causal", "causal topleft", "window=10,3"})
    for (double bad : {double(NAN), double(INFINITY)}) {
      const std::string line = cat("bf16 fwd B=1 Sq=90 Sk=150 H=2 Hk=1 D=32 Dv=32 ", band);
      expect_right(line, [&](Attention& x) { x.set(x.v, bad, 0, 40, 0, 5); });
      expect_right(line, [&](Attention& x) { x.set(x.k, NAN, 0, 60, 0, 3); });
      expect_right(line, [&](Attention& x) { x.set(x.q, NAN, 0, 33, 1, 3); });
    }
}

// A row of dout that is not finite spoils dq of its own row, and dk and dv of the keys that it sees: no
// others.
TEST_P(Baselines, NotFiniteDoutIsTheRowsKeys) {
  for (const char* band : {"", "causal", "causal topleft", "window=10,3"})
    for (double bad : {double(NAN), double(INFINITY)}) {
      const std::string line = cat("bf16 bwd B=1 Sq=40 Sk=90 H=2 Hk=1 D=32 Dv=32 ", band);
      expect_right(line, [&](Attention& x) { x.set(x.dout, bad, 0, 30, 1, 5); });
    }
}

// The same for a row of q and one of k, which also spoil dk and dq through the scores.
TEST_P(Baselines, PartlyVisibleNansInTheBackward) {
  for (const char* band : {"causal", "window=10,3"}) {
    const std::string line = cat("fp16 bwd B=1 Sq=90 Sk=150 H=2 Hk=1 D=32 Dv=32 ", band);
    expect_right(line, [&](Attention& x) { x.set(x.q, NAN, 0, 33, 1, 3); });
    expect_right(line, [&](Attention& x) { x.set(x.k, NAN, 0, 60, 0, 3); });
    expect_right(line, [&](Attention& x) { x.set(x.v, NAN, 0, 40, 0, 5); });
  }
}

// Where all keys of a row have about the same large score, dq shows by how much its P does not sum up to 1.
TEST_P(Baselines, ScoresFarFromZero) {
  for (const char* shift : {"-2.45e5", "-1e5", "1e4"})
    for (int seed : {1, 10})
      expect_right(cat("bf16 bwd B=1 Sq=9 Sk=200 H=4 Hk=1 D=128 Dv=128 shift=", shift, " seed=", seed),
                   [](Attention&) {});
}

TEST_P(Baselines, OffsetsBeyond32Bits) {
  const FarMemory far_memory;
  for (int far = 0; far < 4; ++far) {
    Attention x(parse_case("bf16 bwd B=3 Sq=5 Sk=5 H=4 Hk=2 D=8 Dv=8 dlse"));
    FarMemory::Spread spread(x, far_memory.memory, far);
    EXPECT_EQ(run_case(x, GetParam(), emulator::Order::forward), "") << far;
    EXPECT_EQ(spread.collect(true), "") << far;
  }
}

INSTANTIATE_TEST_SUITE_P(Emulated, Baselines, testing::Values("fa1", "unfused"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace tilewise::test
