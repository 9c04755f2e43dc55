// The wgmma forward in the emulator against the oracle: conformance cases (support/case.h) with NaN and
// infinities wherever nothing may be read, through emulated TMA, mbarriers and wgmma, warps in friendly and
// hostile order.
#define TILEWISE_EMULATE
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <list>

#include "core/error.h"
#include "cuda/launch/params.h"
#include "emulator.h"
#include "far_offsets.h"
#include "hopper.h"
#include "kernels/wgmma/fwd.cuh"
#include "oracle/accuracy.h"
#include "support/case.h"

namespace tilewise::test {
namespace {

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
  return c;
}

wgmma::ForwardLaunch launch_of(const Config& c, const Problem& p, const AttentionParams& a, u32* counter) {
  wgmma::ForwardLaunch l{};
  l.pack_log2 = wgmma::pack_log2(c, a.group, a.Sq);
  l.order = wgmma::tile_order(c, a);
  l.section_keys = wgmma::section_keys(a);
  l.tile_counter = counter;
  const bool packed_q = a.cu_seqlens_q, packed_k = a.cu_seqlens_k;
  const i64 q_rows = packed_q ? a.total_q : a.Sq, k_rows = packed_k ? a.total_k : a.Sk;
  l.q = emulator::encode(wgmma::query_map(a.q, a.q_stride, q_rows, packed_q ? 1 : a.B, a.H, a.D, l.pack_log2,
                                          wgmma::kGroupRows));
  l.out = emulator::encode(wgmma::query_map(a.out, a.out_stride, q_rows, packed_q ? 1 : a.B, a.H, a.Dv,
                                            l.pack_log2, wgmma::kWarpRows));
  l.k = emulator::encode(wgmma::key_value_map(a.k, a.k_stride, k_rows, packed_k ? 1 : a.B, a.Hk, a.D, c.Bc));
  l.v = emulator::encode(wgmma::key_value_map(a.v, a.v_stride, k_rows, packed_k ? 1 : a.B, a.Hk, a.Dv, c.Bc));
  EXPECT_TRUE(p.D == a.D);
  return l;
}

template <Config c>
std::string emulate(Attention& x, const Problem& p, emulator::Order order, u32 blocks, bool dynamic) {
  for (auto& t : x.tensors()) {
    if (!*t.tensor) continue;
    if (t.forward_output) t.tensor->fill_elements(std::nan(""));
    t.tensor->remember();
  }
  u32 counter = 0;
  std::list<emulator::Registered> registered;
  for (auto& t : x.tensors())
    if (*t.tensor)
      registered.emplace_back(t.tensor->storage().data(), t.tensor->storage().size(), t.name,
                              t.forward_output);
  registered.emplace_back(&counter, sizeof(counter), "tile_counter", true);
  const AttentionParams params = cuda::attention_params(p);
  try {
    const wgmma::ForwardLaunch launch = launch_of(c, p, params, dynamic ? &counter : nullptr);
    emulator::launch({.grid = {blocks, 1, 1},
                      .threads = u32(wgmma::threads(c)),
                      .shared_bytes = u32(wgmma::forward_smem_bytes(c)),
                      .order = order,
                      .seed = x.c.seed},
                     [&] { wgmma::forward<c>(params, launch); });
  } catch (const emulator::Error& e) {
    return e.what();
  }
  for (auto& t : x.tensors())
    if (*t.tensor)
      if (std::string damage = t.tensor->damage(t.name, t.forward_output); !damage.empty()) return damage;
  return oracle::messages(oracle::judge_forward(p, oracle::all_rows(p)), true);
}

template <Config features, int D, int Dv, i64 rows = 4096>
constexpr Config planned() {
  Config c = features;
  if (!wgmma::choose_forward_tiles(c, D, Dv, rows, rows)) throw "no tile";
  return c;
}

template <Config c>
void expect_right(const std::string& line, const std::function<void(Attention&)>& change = {}) {
  const Case parsed = parse_case(line);
  struct Run {
    emulator::Order order;
    u32 blocks;
    bool dynamic;
  };
  for (const Run run : {Run{emulator::Order::forward, 2, true}, Run{emulator::Order::reverse, 3, false}}) {
    Attention x(parsed);
    if (change) change(x);
    const Problem p = make_problem(x.a, TW_FORWARD);
    Config needed = c;
    const Config f = features_of(p);
    needed.element = f.element, needed.masked = f.masked, needed.softcap = f.softcap, needed.alibi = f.alibi;
    needed.bias = f.bias, needed.boolean_mask = f.boolean_mask, needed.dropout = f.dropout,
    needed.varlen = f.varlen;
    ASSERT_TRUE(needed == c) << "the case needs other features: " << line;
    EXPECT_EQ(emulate<c>(x, p, run.order, run.blocks, run.dynamic), "") << line;
  }
}

constexpr Config kBf16{.element = Element::bf16};
constexpr Config kFp16{.element = Element::fp16};
constexpr Config kMasked{.element = Element::bf16, .masked = true};
constexpr Config kVarlen{.element = Element::bf16, .masked = true, .varlen = true};
constexpr Config kScores{
    .element = Element::bf16, .masked = true, .softcap = true, .alibi = true, .bias = true};

TEST(EmulatedWgmmaForward, Plain) {
  expect_right<planned<kBf16, 64, 64>()>("bf16 fwd B=2 Sq=200 Sk=150 H=2 Hk=2 D=64 Dv=64 seed=1");
  expect_right<planned<kBf16, 128, 128>()>("bf16 fwd B=1 Sq=150 Sk=300 H=2 Hk=1 D=128 Dv=128 seed=2");
  expect_right<planned<kBf16, 128, 128>()>("bf16 fwd B=2 Sq=1 Sk=1 H=4 Hk=1 D=104 Dv=120 sink seed=3");
  expect_right<planned<kFp16, 64, 64, 512>()>(
      "fp16 fwd B=1 Sq=70 Sk=200 H=2 Hk=1 D=64 Dv=64 amplitude=3 seed=4");
}

TEST(EmulatedWgmmaForward, OffsetsBeyond32Bits) {
  const FarMemory far_memory;
  for (int far : {0, 1, 2})
    expect_right<planned<kBf16, 64, 64>()>("bf16 fwd B=3 Sq=5 Sk=5 H=4 Hk=2 D=8 Dv=8", [&](Attention& x) {
      const FarMemory::Spread spread(x, far_memory.memory, far);
    });
}

TEST(EmulatedWgmmaForward, Bands) {
  expect_right<planned<kMasked, 128, 128>()>(
      "bf16 fwd B=1 Sq=300 Sk=420 H=2 Hk=2 D=128 Dv=128 causal seed=5");
  expect_right<planned<kMasked, 128, 128>()>(
      "bf16 fwd B=1 Sq=300 Sk=200 H=6 Hk=2 D=128 Dv=128 causal sink seed=6");
  expect_right<planned<kMasked, 128, 128>()>(
      "bf16 fwd B=1 Sq=70 Sk=300 H=8 Hk=1 D=128 Dv=128 causal topleft seed=7");
  expect_right<planned<kMasked, 64, 64>()>(
      "bf16 fwd B=1 Sq=400 Sk=500 H=1 Hk=1 D=64 Dv=64 window=60,20 seed=8");
  expect_right<planned<kMasked, 64, 64>()>(
      "bf16 fwd B=1 Sq=400 Sk=390 H=2 Hk=1 D=64 Dv=64 window=170,0 seed=9");
  // Three warpgroups: the first one sees nothing of a tile's last block.
  expect_right<planned<kMasked, 64, 64>()>("bf16 fwd B=1 Sq=500 Sk=500 H=1 Hk=1 D=64 Dv=64 causal seed=23");
  // Blocks of 80 keys: half of a tile's rows see nothing of its last one.
  expect_right<planned<kMasked, 256, 256>()>(
      "bf16 fwd B=1 Sq=260 Sk=260 H=1 Hk=1 D=256 Dv=256 causal seed=24");
}

// A NaN or infinity shows exactly where exact arithmetic puts it, also inside a tile that the diagonal
// crosses; and scores far apart make the softmax guess wrong.
TEST(EmulatedWgmmaForward, VisibleNaNsAndWrongGuesses) {
  constexpr Config c = planned<kMasked, 128, 128>();
  const std::string line = "bf16 fwd B=1 Sq=140 Sk=140 H=2 Hk=2 D=128 Dv=128 causal seed=20";
  expect_right<c>(line, [](Attention& x) {
    x.set(x.v, NAN, 0, 50, 0, 7);
    x.set(x.v, INFINITY, 0, 100, 1, 3);
  });
  expect_right<c>(line, [](Attention& x) { x.set(x.k, NAN, 0, 70, 0, 3); });
  expect_right<c>(line, [](Attention& x) { x.set(x.q, NAN, 0, 99, 0, 63); });
  expect_right<c>("bf16 fwd B=1 Sq=140 Sk=400 H=1 Hk=1 D=128 Dv=128 causal amplitude=12 seed=21");
  expect_right<planned<kMasked, 64, 64>()>(
      "bf16 fwd B=1 Sq=140 Sk=400 H=1 Hk=1 D=64 Dv=64 causal amplitude=12 seed=22");
}

TEST(EmulatedWgmmaForward, Lengths) {
  expect_right<planned<kVarlen, 128, 128>()>(
      "bf16 fwd B=5 Sq=180 Sk=260 H=4 Hk=2 D=128 Dv=128 causal varlen seed=10");
  expect_right<planned<kVarlen, 128, 128>()>(
      "bf16 fwd B=40 Sq=9 Sk=30 H=2 Hk=1 D=128 Dv=128 window=8,3 varlen used=qk sink seed=11");
  expect_right<planned<kVarlen, 128, 128>()>(
      "bf16 fwd B=3 Sq=100 Sk=140 H=2 Hk=2 D=128 Dv=128 causal used=qk seed=12");
}

// As many tiles as the blocks can work on: one that takes no more must leave the next to the others.
TEST(EmulatedWgmmaForward, ManyTiles) {
  static_assert(2 * wgmma::kMaxTiles == 512);
  expect_right<planned<kBf16, 64, 64, 64>()>("bf16 fwd B=2 Sq=1 Sk=1 H=256 Hk=256 D=64 Dv=64 seed=25");
}

TEST(EmulatedWgmmaForward, HeadDims) {
  expect_right<planned<kMasked, 96, 96>()>("bf16 fwd B=1 Sq=140 Sk=270 H=1 Hk=1 D=96 Dv=88 causal seed=13");
  expect_right<planned<kMasked, 192, 192>()>(
      "bf16 fwd B=1 Sq=140 Sk=270 H=1 Hk=1 D=192 Dv=192 causal seed=14");
  expect_right<planned<kMasked, 192, 128>()>(
      "bf16 fwd B=1 Sq=140 Sk=270 H=2 Hk=1 D=192 Dv=128 causal seed=15");
  expect_right<planned<kMasked, 256, 256>()>(
      "bf16 fwd B=1 Sq=140 Sk=270 H=1 Hk=1 D=256 Dv=200 causal seed=16");
  expect_right<planned<kMasked, 64, 256>()>("bf16 fwd B=1 Sq=140 Sk=270 H=1 Hk=1 D=40 Dv=256 causal seed=17");
}

TEST(EmulatedWgmmaForward, Scores) {
  expect_right<planned<kScores, 128, 128>()>(
      "bf16 fwd B=1 Sq=140 Sk=270 H=2 Hk=1 D=128 Dv=128 causal softcap=5 alibi=h bias=bhij:bf16 sink "
      "seed=18");
  // Maxima that rise from block to block by little and by much, and a bias far below 0 that cancels.
  constexpr Config kBias = planned<Config{.element = Element::bf16, .bias = true}, 64, 64>();
  const std::string line = "bf16 fwd B=1 Sq=140 Sk=270 H=1 Hk=1 D=64 Dv=64 bias=ij:fp32 seed=20";
  for (const double rise : {3., 11., 90., 20000.})
    expect_right<kBias>(line, [&](Attention& x) {
      for (i64 i = 0; i < 140; ++i)
        for (i64 j = 0; j < 270; ++j) x.bias.set(double(269 - j) / 64 * rise * (i % 3), i, j);
    });
  for (const double low : {-1e30, 1e30, -5e4, double(std::numeric_limits<float>::lowest())})
    expect_right<kBias>(line, [&](Attention& x) {
      for (i64 i = 0; i < 140; ++i)
        for (i64 j = 0; j < 270; ++j)
          if (i % 2 || j < 90) x.bias.set(low, i, j);
    });
  expect_right<planned<Config{.element = Element::bf16, .boolean_mask = true, .dropout = true}, 64, 64>()>(
      "bf16 fwd B=2 Sq=140 Sk=270 H=2 Hk=2 D=64 Dv=64 mask=1hi1 dropout=0.25 seed=19");
}

}  // namespace
}  // namespace tilewise::test
