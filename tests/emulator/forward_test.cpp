// The mma forward kernels in the emulator against the oracle: conformance cases (support/case.h) with NaN and
// infinities wherever nothing may be read, every access checked, warps in friendly and hostile order.
#define TILEWISE_EMULATE
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <list>
#include <set>

#include "core/error.h"
#include "cuda/launch/params.h"
#include "emulator.h"
#include "far_offsets.h"
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
  const i64 size = i64(size_of(p.dtype));
  c.strided = p.D * size % 16 || p.Dv * size % 16;
  for (const View& t : {p.q, p.k, p.v}) {
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

// `change`: done to the finished inputs.
template <Config c>
void expect_right(
    const std::string& line, const std::function<void(Attention&)>& change = [](Attention&) {}) {
  const Case parsed = parse_case(line);
  for (const emulator::Order order : {emulator::Order::forward, emulator::Order::reverse}) {
    Attention x(parsed);
    change(x);
    const Problem p = make_problem(x.a, TW_FORWARD);
    Config needed = features_of(p);
    needed.d = c.d, needed.dv = c.dv, needed.Br = c.Br, needed.Bc = c.Bc, needed.warps = c.warps,
    needed.stages = c.stages, needed.min_blocks = c.min_blocks;
    ASSERT_TRUE(needed == c) << "the case needs other features: " << line;
    EXPECT_EQ(emulate<c>(x, p, order), "") << line;
  }
}

// The swizzles: every shared-memory access of the products touches each bank once.
template <int width>
void expect_no_bank_conflicts() {
  using Half = SmemTile<Element::bf16, 64, width, Access::matrix>;
  using Pairs = SmemTile<Element::fp32, 64, width, Access::k_pairs>;
  using Words = SmemTile<Element::fp32, 64, width, Access::n_rows>;
  for (u32 row = 0; row < 64; row += 8)
    for (u32 chunk = 0; chunk < u32(Half::kChunks); ++chunk) {  // ldmatrix: 8 rows of 16 bytes
      std::set<u32> banks;
      for (u32 r = 0; r < 8; ++r) banks.insert(Half::offset(row + r, chunk) / 16 % 8);
      ASSERT_EQ(banks.size(), 8u) << width;
    }
  for (u32 k = 0; k < u32(width / 8); ++k)
    for (u32 half = 0; half < 2; ++half) {  // 8-byte loads go out 16 lanes at a time
      std::set<u32> banks;
      for (u32 lane = 16 * half; lane < 16 * half + 16; ++lane)
        banks.insert((Pairs::offset(lane / 4, 2 * k + lane % 4 / 2) + lane % 2 * 8) / 8 % 16);
      ASSERT_EQ(banks.size(), 16u) << width;
    }
  for (u32 n = 0; n < u32(width / 8); ++n)
    for (u32 odd = 0; odd < 2; ++odd) {
      std::set<u32> banks;
      for (u32 lane = 0; lane < 32; ++lane) {
        const u32 column = 8 * n + lane / 4;
        banks.insert((Words::offset(2 * (lane % 4) + odd, column / 4) + column % 4 * 4) / 4 % 32);
      }
      ASSERT_EQ(banks.size(), 32u) << width;
    }
}

TEST(SmemTile, NoBankConflicts) {
  expect_no_bank_conflicts<32>();
  expect_no_bank_conflicts<64>();
  expect_no_bank_conflicts<96>();
  expect_no_bank_conflicts<128>();
  expect_no_bank_conflicts<192>();
  expect_no_bank_conflicts<256>();
}

constexpr Config kBf16{.element = Element::bf16};
constexpr Config kFp16{.element = Element::fp16};
constexpr Config kFp32{.element = Element::fp32};

TEST(EmulatedForward, Plain) {
  expect_right<planned<kBf16, 64, 64>()>("bf16 fwd B=2 Sq=130 Sk=150 H=4 Hk=2 D=64 Dv=64 seed=1");
  expect_right<planned<kBf16, 128, 128>()>("bf16 fwd B=1 Sq=70 Sk=200 H=2 Hk=1 D=128 Dv=128 seed=2");
  expect_right<planned<kBf16, 128, 128, 227 << 10>()>(
      "bf16 fwd B=1 Sq=70 Sk=200 H=2 Hk=1 D=128 Dv=128 amplitude=3 seed=2");
  expect_right<planned<kFp16, 32, 32>()>("fp16 fwd B=2 Sq=1 Sk=97 H=3 Hk=3 D=32 Dv=32 shift=90 seed=3");
  expect_right<planned<kFp16, 64, 64>()>("fp16 fwd B=0 Sq=1 Sk=97 H=3 Hk=3 D=64 Dv=64 seed=3");
  expect_right<planned<kFp16, 64, 64>()>("fp16 fwd B=1 Sq=20 Sk=0 H=1 Hk=1 D=64 Dv=64 seed=3");
  expect_right<planned<kFp16, 64, 64>()>("fp16 fwd B=1 Sq=0 Sk=20 H=1 Hk=1 D=64 Dv=64 seed=3");
  expect_right<planned<kFp16, 64, 64>()>("fp16 fwd B=1 Sq=40 Sk=80 H=1 Hk=1 D=64 Dv=64 scale=-0.3 seed=3");
}

TEST(EmulatedForward, OffsetsBeyond32Bits) {
  const FarMemory far_memory;
  for (int far : {0, 1, 2})
    expect_right<planned<kBf16, 64, 64>()>("bf16 fwd B=3 Sq=5 Sk=5 H=4 Hk=2 D=8 Dv=8", [&](Attention& x) {
      const FarMemory::Spread spread(x, far_memory.memory, far);
    });
}

TEST(EmulatedForward, HeadDims) {
  expect_right<planned<kBf16, 96, 96>()>("bf16 fwd B=1 Sq=33 Sk=140 H=1 Hk=1 D=96 Dv=96 seed=4");
  expect_right<planned<kBf16, 192, 128>()>("bf16 fwd B=1 Sq=70 Sk=70 H=1 Hk=1 D=192 Dv=128 seed=5");
  expect_right<planned<kBf16, 256, 256>()>("bf16 fwd B=1 Sq=65 Sk=97 H=1 Hk=1 D=256 Dv=256 seed=6");
  expect_right<planned<kBf16, 32, 256>()>("bf16 fwd B=1 Sq=65 Sk=97 H=1 Hk=1 D=24 Dv=200 seed=6");
  expect_right<planned<kFp16, 64, 32>()>("fp16 fwd B=1 Sq=65 Sk=97 H=2 Hk=2 D=40 Dv=8 seed=7");
}

TEST(EmulatedForward, Bands) {
  constexpr Config c = planned<Config{.element = Element::bf16, .masked = true}, 64, 64>();
  expect_right<c>("bf16 fwd B=1 Sq=200 Sk=200 H=2 Hk=2 D=64 Dv=64 causal seed=1");
  expect_right<c>("bf16 fwd B=1 Sq=150 Sk=70 H=1 Hk=1 D=64 Dv=64 causal seed=2");
  expect_right<c>("bf16 fwd B=1 Sq=70 Sk=300 H=1 Hk=1 D=64 Dv=64 causal seed=3");
  expect_right<c>("bf16 fwd B=1 Sq=70 Sk=300 H=1 Hk=1 D=64 Dv=64 causal topleft seed=4");
  expect_right<c>("bf16 fwd B=1 Sq=300 Sk=300 H=1 Hk=1 D=64 Dv=64 window=40,10 seed=5");
  expect_right<c>("bf16 fwd B=1 Sq=300 Sk=200 H=1 Hk=1 D=64 Dv=64 window=0,0 seed=6");
  expect_right<c>("bf16 fwd B=1 Sq=300 Sk=200 H=1 Hk=1 D=64 Dv=64 window=3,-1 topleft seed=7");
  expect_right<c>("bf16 fwd B=1 Sq=30 Sk=20 H=1 Hk=1 D=64 Dv=64 window=9223372036854775807,2 seed=8");
}

// A NaN or infinity shows exactly where exact arithmetic puts it, also inside a tile that the diagonal
// crosses.
TEST(EmulatedForward, VisibleNaNs) {
  constexpr Config c = planned<Config{.element = Element::bf16, .masked = true}, 64, 64>();
  const std::string line = "bf16 fwd B=1 Sq=140 Sk=140 H=1 Hk=1 D=64 Dv=64 causal seed=1";
  expect_right<c>(line, [](Attention& x) {
    x.set(x.v, NAN, 0, 50, 0, 7);
    x.set(x.v, INFINITY, 0, 90, 0, 8);
    x.set(x.v, -INFINITY, 0, 130, 0, 8);
  });
  expect_right<c>(line, [](Attention& x) { x.set(x.k, NAN, 0, 70, 0, 3); });
  const double all_ones = __builtin_bit_cast(float, 0x7FFFFFFFu);  // the NaN that the GPU's arithmetic gives
  expect_right<planned<kFp32, 64, 64>()>("fp32 fwd B=1 Sq=40 Sk=90 H=1 Hk=1 D=16 Dv=16 seed=4",
                                         [&](Attention& x) { x.set(x.q, all_ones, 0, 7, 0, 3); });
  expect_right<planned<kFp32, 64, 64>()>("fp32 fwd B=1 Sq=40 Sk=90 H=1 Hk=1 D=16 Dv=16 seed=4",
                                         [&](Attention& x) { x.set(x.v, all_ones, 0, 50, 0, 3); });
  expect_right<c>(line, [](Attention& x) { x.set(x.q, NAN, 0, 99, 0, 63); });
  expect_right<planned<kFp32, 64, 64>()>(
      "fp32 fwd B=1 Sq=40 Sk=90 H=1 Hk=1 D=16 Dv=16 seed=4", [](Attention& x) {
        x.set(x.v, INFINITY, 0, 50, 0, 5);
        x.set(x.v, -INFINITY, 0, 89, 0, 6);
        x.set(x.v, INFINITY, 0, 3, 0, 7), x.set(x.v, -INFINITY, 0, 80, 0, 7);
      });
  expect_right<planned<kFp16, 64, 64>()>("fp16 fwd B=1 Sq=40 Sk=80 H=1 Hk=1 D=64 Dv=64 seed=3",
                                         [](Attention& x) { x.set(x.v, NAN, 0, 79, 0, 0); });
}

TEST(EmulatedForward, EveryFeature) {
  expect_right<planned<Config{.element = Element::bf16, .softcap = true}, 64, 64>()>(
      "bf16 fwd B=1 Sq=70 Sk=100 H=1 Hk=1 D=64 Dv=64 softcap=1.5 amplitude=3 seed=1");
  expect_right<planned<Config{.element = Element::fp16, .masked = true, .alibi = true}, 64, 64>()>(
      "fp16 fwd B=2 Sq=70 Sk=100 H=2 Hk=1 D=64 Dv=64 causal alibi=bh seed=2");
  expect_right<planned<Config{.element = Element::fp16, .bias = true}, 64, 64>()>(
      "fp16 fwd B=2 Sq=70 Sk=100 H=2 Hk=1 D=64 Dv=64 bias=b1ij:bf16 sink seed=3");
  constexpr Config mask = planned<Config{.element = Element::bf16, .boolean_mask = true}, 64, 64>();
  expect_right<mask>("bf16 fwd B=2 Sq=70 Sk=100 H=2 Hk=1 D=64 Dv=64 mask=bhij seed=4");
  expect_right<mask>("bf16 fwd B=2 Sq=70 Sk=100 H=2 Hk=1 D=64 Dv=64 mask=b11j sink seed=5");
  expect_right<mask>("bf16 fwd B=1 Sq=70 Sk=100 H=2 Hk=2 D=64 Dv=64 mask=1hi1 shift=-120 seed=6");
  expect_right<planned<Config{.element = Element::bf16, .masked = true, .dropout = true}, 64, 64>()>(
      "bf16 fwd B=2 Sq=70 Sk=100 H=2 Hk=1 D=64 Dv=64 causal dropout=0.25 seed=7");
  expect_right<planned<Config{.element = Element::bf16, .masked = true, .varlen = true}, 64, 64>()>(
      "bf16 fwd B=4 Sq=140 Sk=200 H=2 Hk=1 D=64 Dv=64 causal varlen sink seed=8");
  expect_right<planned<Config{.element = Element::bf16, .varlen = true}, 64, 64>()>(
      "bf16 fwd B=3 Sq=140 Sk=100 H=2 Hk=1 D=64 Dv=64 used=qk seed=9");
  constexpr Config all = planned<Config{.element = Element::fp16,
                                        .masked = true,
                                        .softcap = true,
                                        .alibi = true,
                                        .bias = true,
                                        .boolean_mask = true,
                                        .dropout = true,
                                        .varlen = true,
                                        .strided = true},
                                 64, 64>();
  expect_right<all>(
      "fp16 fwd B=3 Sq=70 Sk=130 H=4 Hk=2 D=33 Dv=49 causal window=90,-1 softcap=30 alibi=bh bias=bhij:fp32 "
      "mask=bhij sink dropout=0.25 "
      "varlen used=qk layout=2 seed=10");
  expect_right<all>(
      "fp16 fwd B=3 Sq=7 Sk=300 H=6 Hk=2 D=40 Dv=64 window=4,-1 topleft softcap=1.5 amplitude=3 alibi=h "
      "bias=h11:fp16 mask=1hi1 "
      "dropout=0.25 varlen layout=m seed=11");
}

// A bias far below 0 is a number like any other: on all keys of a row it cancels.
TEST(EmulatedForward, BiasesFarBelowZero) {
  constexpr Config half = planned<Config{.element = Element::bf16, .bias = true}, 64, 64>();
  constexpr Config full = planned<Config{.element = Element::fp32, .bias = true}, 64, 64>();
  for (const double low : {-1e30, 1e30, -5e4, double(std::numeric_limits<float>::lowest())}) {
    const auto change = [&](Attention& x) {
      for (i64 i = 0; i < 70; ++i)
        for (i64 j = 0; j < 200; ++j)
          if (i % 2 || j < 90) x.bias.set(low, i, j);
    };
    expect_right<half>("bf16 fwd B=1 Sq=70 Sk=200 H=1 Hk=1 D=64 Dv=64 bias=ij:fp32 seed=3", change);
    expect_right<full>("fp32 fwd B=1 Sq=70 Sk=200 H=1 Hk=1 D=64 Dv=64 bias=ij:fp32 sink seed=4", change);
  }
}

TEST(EmulatedForward, Layouts) {
  constexpr Config strided = planned<Config{.element = Element::bf16, .strided = true}, 64, 64>();
  for (const char* layout : {"2", "p", "n", "o"})
    expect_right<strided>(std::string("bf16 fwd B=2 Sq=20 Sk=70 H=2 Hk=2 D=64 Dv=48 layout=") + layout +
                          " seed=1");
  expect_right<strided>("bf16 fwd B=2 Sq=20 Sk=70 H=2 Hk=2 D=1 Dv=3 seed=1");
  for (const char* layout : {"t", "e"})
    expect_right<planned<kBf16, 64, 64>()>(
        std::string("bf16 fwd B=2 Sq=20 Sk=70 H=2 Hk=2 D=64 Dv=48 layout=") + layout + " seed=1");
}

TEST(EmulatedForward, Fp32) {
  expect_right<planned<kFp32, 64, 64>()>("fp32 fwd B=1 Sq=70 Sk=150 H=1 Hk=1 D=64 Dv=64 seed=1");
  expect_right<planned<kFp32, 128, 128>()>(
      "fp32 fwd B=1 Sq=30 Sk=150 H=1 Hk=1 D=128 Dv=128 amplitude=3 seed=2");
  expect_right<planned<Config{.element = Element::fp32, .masked = true, .softcap = true}, 32, 96>()>(
      "fp32 fwd B=1 Sq=70 Sk=100 H=1 Hk=1 D=20 Dv=68 causal softcap=30 seed=3");
  constexpr Config sink = planned<Config{.element = Element::fp32,
                                         .masked = true,
                                         .alibi = true,
                                         .boolean_mask = true,
                                         .dropout = true,
                                         .varlen = true,
                                         .strided = true},
                                  1, 3>();
  expect_right<sink>(
      "fp32 fwd B=2 Sq=16 Sk=1 H=4 Hk=4 D=1 Dv=3 causal shift=-120 alibi=h mask=bhij sink dropout=0.25 "
      "used=k "
      "layout=o seed=4");
  expect_right<planned<kFp32, 256, 256>()>(
      "fp32 fwd B=1 Sq=30 Sk=150 H=1 Hk=1 D=256 Dv=256 scale=-0.1 seed=4");
  expect_right<planned<Config{.element = Element::fp32, .softcap = true, .dropout = true}, 256, 256>()>(
      "fp32 fwd B=1 Sq=30 Sk=90 H=2 Hk=1 D=256 Dv=252 softcap=30 dropout=0.25 seed=5");
}

}  // namespace
}  // namespace tilewise::test
