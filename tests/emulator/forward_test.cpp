// The mma forward kernels in the emulator against the oracle: conformance cases (support/case.h) with NaN and
// infinities wherever nothing may be read, every access checked, warps in friendly and hostile order.
#define TILEWISE_EMULATE
#include <gtest/gtest.h>

#include <cmath>
#include <list>

#include "core/error.h"
#include "cuda/launch/params.h"
#include "emulator.h"
#include "kernels/mma/fwd.cuh"
#include "oracle/accuracy.h"
#include "support/case.h"

namespace tilewise::test {
namespace {

// What the planner would switch on for a problem.
Config features_of(const Problem& p) {
  Config c;
  c.element = cuda::element_of(p.dtype);
  c.masked = p.band_masked();
  c.softcap = p.softcap > 0;
  c.alibi = p.has_alibi;
  c.bias = bool(p.bias);
  c.boolean_mask = bool(p.mask);
  c.dropout = p.dropout_p > 0;
  c.varlen = p.varlen();
  for (const View& t : {p.q, p.k, p.v}) {
    const i64 size = i64(size_of(t.dtype));
    c.strided |= t.stride.d != 1 || t.stride.s * size % 16 || t.stride.h * size % 16 ||
                 t.stride.b * size % 16 || reinterpret_cast<uintptr_t>(t.data) % 16;
  }
  return c;
}

void zero_uncovered_rows(Attention& x) {  // another kernel's work
  const i64 rows = x.c.varlen ? x.out.view.size[0] : x.c.Sq, batches = x.c.varlen ? 1 : x.c.B;
  std::vector<bool> covered(size_t(batches * rows), false);
  for (i64 b = 0; b < x.c.B; ++b)
    for (i64 i = 0; i < x.length[size_t(b)].sq; ++i)
      covered[size_t(x.batch_index(b) * rows + x.q_row(b, i))] = true;
  for (i64 b = 0; b < batches; ++b)
    for (i64 s = 0; s < rows; ++s) {
      if (covered[size_t(b * rows + s)]) continue;
      for (i64 h = 0; h < x.c.H; ++h) {
        for (i64 d = 0; d < x.c.Dv; ++d) x.set(x.out, 0, b, s, h, d);
        x.c.varlen ? x.lse.set(-INFINITY, h, s) : x.lse.set(-INFINITY, b, h, s);
      }
    }
}

template <Config c>
std::string emulate(Attention& x, const Problem& p, emulator::Order order) {
  for (auto& t : x.tensors()) {
    if (!*t.tensor) continue;
    if (t.forward_output) t.tensor->fill_elements(std::nan(""));
    t.tensor->remember();
  }
  std::list<emulator::Registered> registered;
  for (auto& t : x.tensors())
    if (*t.tensor)
      registered.emplace_back(t.tensor->storage().data(), t.tensor->storage().size(), t.name,
                              t.forward_output);
  const AttentionParams params = cuda::attention_params(p);
  const Grid grid = mma::forward_grid(c, params);
  try {
    emulator::launch({.grid = {grid.x, grid.y, grid.z},
                      .threads = u32(mma::threads(c)),
                      .shared_bytes = u32(mma::forward_smem_bytes(c)),
                      .order = order,
                      .seed = x.c.seed},
                     [&] { mma::forward<c>(params); });
  } catch (const emulator::Error& e) {
    return e.what();
  }
  for (auto& t : x.tensors())
    if (*t.tensor)
      if (std::string damage = t.tensor->damage(t.name, t.forward_output); !damage.empty()) return damage;
  zero_uncovered_rows(x);
  return oracle::messages(oracle::judge_forward(p, oracle::all_rows(p)), true);
}

// `features`: element and features as the case needs them; tiles from the table or, with Br set to 0, as
// given.
template <Config features, int D, int Dv, int smem = 99 << 10>
constexpr Config planned() {
  Config c = features;
  if (!mma::choose_forward_tiles(c, D, Dv, smem)) throw "no tile";
  return c;
}

template <Config c>
void expect_right(const std::string& line) {
  const Case parsed = parse_case(line);
  for (const emulator::Order order : {emulator::Order::forward, emulator::Order::reverse}) {
    Attention x(parsed);
    const Problem p = make_problem(x.a, TW_FORWARD);
    Config needed = features_of(p);
    needed.d = c.d, needed.dv = c.dv, needed.Br = c.Br, needed.Bc = c.Bc, needed.warps = c.warps,
    needed.stages = c.stages, needed.min_blocks = c.min_blocks;
    ASSERT_TRUE(needed == c) << "the case needs other features: " << line;
    EXPECT_EQ(emulate<c>(x, p, order), "") << line;
  }
}

constexpr Config kBf16{.element = Element::bf16};
constexpr Config kFp16{.element = Element::fp16};
constexpr Config kFp32{.element = Element::fp32};

TEST(EmulatedForward, Plain) {
  expect_right<planned<kBf16, 64, 64>()>("bf16 fwd B=2 Sq=130 Sk=150 H=4 Hk=2 D=64 Dv=64 seed=1");
  expect_right<planned<kBf16, 128, 128>()>("bf16 fwd B=1 Sq=70 Sk=200 H=2 Hk=1 D=128 Dv=128 seed=2");
  expect_right<planned<kBf16, 128, 128, 227 << 10>()>(
      "bf16 fwd B=1 Sq=70 Sk=200 H=2 Hk=1 D=128 Dv=128 amplitude=3 seed=2");
}

}  // namespace
}  // namespace tilewise::test
