// The emulator against itself: right kernels run and give the right numbers, each kind of wrong one is
// refused by name.
#define TILEWISE_EMULATE
#include "emulator.h"

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/ptx/barrier.h"
#include "kernels/ptx/convert.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/memory.h"
#include "kernels/ptx/mma.h"
#include "kernels/ptx/special.h"
#include "kernels/ptx/warp.h"

using namespace tilewise;
using emulator::Launch;
using emulator::Order;

namespace {

int failures = 0;

void check(bool ok, const char* what) {
  if (ok) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

// The launch must be refused with `expected` in the message ("" = must pass).
template <class Kernel>
void expect(const char* expected, const char* what, const Launch& launch, Kernel&& kernel) {
  std::string message;
  try {
    emulator::launch(launch, kernel);
  } catch (const emulator::Error& e) {
    message = e.what();
  }
  const bool ok = *expected ? message.find(expected) != std::string::npos : message.empty();
  if (!ok) std::printf("FAILED: %s: expected '%s', got '%s'\n", what, expected, message.c_str());
  failures += !ok;
}

// A [16][16] times B [8][16]^T from shared memory by ldmatrix and mma, against plain loops.
void matrix_product(bool bf16) {
  std::vector<unsigned short> a(16 * 16), b(8 * 16);
  std::vector<float> af, bf, c(16 * 8), expected(16 * 8);
  u32 state = 1;
  const auto fill = [&](std::vector<unsigned short>& bits, std::vector<float>& values) {
    for (auto& x : bits) {
      state = state * 1664525u + 1013904223u;
      const float v = static_cast<float>(static_cast<int>(state >> 20) - 2048) / 1024.f;
      const u32 pair = bf16 ? ptx::cvt_bf16x2(v, 0) : ptx::cvt_f16x2(v, 0);
      x = static_cast<unsigned short>(pair);
      values.push_back(bf16 ? ptx::bf16_low(pair) : ptx::cvt_f32_f16(pair));
    }
  };
  fill(a, af), fill(b, bf);
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < 8; ++j)
      for (int k = 0; k < 16; ++k) expected[i * 8 + j] += af[i * 16 + k] * bf[j * 16 + k];
  const emulator::Registered ra(a.data(), a.size() * 2, "a", false), rb(b.data(), b.size() * 2, "b", false),
      rc(c.data(), c.size() * 4, "c", true);
  expect("", "matrix product", {.threads = 32, .shared_bytes = 768}, [&] {
    const u32 lane = ptx::thread_index();
    ptx::cp_async_16(lane * 16, a.data() + lane * 8, 16);
    if (lane < 16) ptx::cp_async_16(512 + lane * 16, b.data() + lane * 8, 16);
    ptx::cp_async_commit();
    ptx::cp_async_wait<0>();
    ptx::sync_warp();
    u32 fa[4], fb[2];
    ptx::ldmatrix_x4(fa, (lane % 16) * 32 + (lane / 16) * 16);
    ptx::ldmatrix_x2(fb, 512 + (lane % 8) * 32 + (lane / 8 % 2) * 16);
    float acc[4] = {};
    bf16 ? ptx::mma_bf16(acc, fa, fb[0], fb[1]) : ptx::mma_f16(acc, fa, fb[0], fb[1]);
    const u32 g = lane / 4, q = lane % 4;
    for (u32 r = 0; r < 4; ++r) ptx::store_global(&c[(g + 8 * (r >> 1)) * 8 + 2 * q + (r & 1)], acc[r]);
  });
  float worst = 0;
  for (int i = 0; i < 128; ++i) worst = std::fmax(worst, std::fabs(c[i] - expected[i]));
  check(worst < 1e-4f, "matrix product values");
}

}  // namespace

int main() {
  matrix_product(true);
  matrix_product(false);

  for (int i = 0; i < 65536; ++i) {  // every fp16 pattern survives the round trip
    const float x = ptx::cvt_f32_f16(static_cast<u32>(i));
    if (!std::isnan(x) && (ptx::cvt_f16x2(x, 0) & 0xFFFF) != static_cast<u32>(i)) {
      check(false, "fp16 round trip");
      break;
    }
  }

  const Launch two_warps{.threads = 64, .shared_bytes = 1024};
  expect("", "exchange through shared memory", two_warps, [] {
    const u32 t = ptx::thread_index();
    ptx::st_shared(t * 4, t);
    ptx::sync_threads();
    if (ptx::ld_shared((63 - t) * 4) != 63 - t) throw emulator::Error("wrong value");
  });
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    Launch l = two_warps;
    l.order = order;
    expect("race", "missing barrier", l, [] {
      const u32 t = ptx::thread_index();
      ptx::st_shared(t * 4, t);
      ptx::ld_shared((63 - t) * 4);
    });
    expect("race", "missing second barrier", l, [] {
      const u32 t = ptx::thread_index();
      ptx::st_shared(t * 4, t);
      ptx::sync_threads();
      ptx::ld_shared((63 - t) * 4);
      ptx::st_shared(t * 4, t);
    });
    expect("", "producer and consumer by named barrier", l, [] {
      const u32 t = ptx::thread_index();
      if (t < 32) {
        ptx::st_shared(t * 4, t);
        ptx::bar_arrive(3, 64);
      } else {
        ptx::bar_sync(3, 64);
        if (ptx::ld_shared((t - 32) * 4) != t - 32) throw emulator::Error("wrong value");
      }
    });
    expect("read after write", "write after arriving", l, [] {
      const u32 t = ptx::thread_index();
      if (t < 32) {
        ptx::bar_arrive(3, 64);
        ptx::st_shared(t * 4, t);
        ptx::sync_warp();
      } else {
        ptx::bar_sync(3, 64);
        for (int i = 0; i < 40; ++i) ptx::sync_warp();
        ptx::ld_shared((t - 32) * 4);
        ptx::sync_warp();
        ptx::ld_shared((t - 32) * 4);
      }
      ptx::sync_threads();
      if (t >= 32) throw emulator::Error("read after write not possible in this order");
    });
  }
  expect("divergence", "lanes at different collectives", two_warps, [] {
    if (ptx::thread_index() % 2)
      ptx::sync_warp();
    else
      ptx::vote_any(true);
  });
  expect("returned", "a lane leaves early", two_warps, [] {
    if (ptx::thread_index() != 5) ptx::sync_warp();
  });
  expect("deadlock", "half of the block at a barrier", two_warps, [] {
    if (ptx::thread_index() < 32) ptx::sync_threads();
  });
  expect("in flight", "cp.async not waited for", two_warps, [] {
    ptx::cp_async_16(ptx::thread_index() * 16, nullptr, 0);
    ptx::cp_async_commit();
  });
  expect("", "cp.async read too early is NaN", two_warps, [] {
    const u32 t = ptx::thread_index();
    ptx::cp_async_16(t * 16, nullptr, 0);
    ptx::cp_async_commit();
    if (ptx::ld_shared(t * 16) != 0xFFFFFFFFu) throw emulator::Error("the copy did not wait");
    ptx::cp_async_wait<0>();
    if (ptx::ld_shared(t * 16) != 0) throw emulator::Error("no zero fill");
  });
  expect("shared memory access", "past the end of shared memory", two_warps, [] { ptx::ld_shared(1024); });
  expect("misaligned shared", "misaligned", two_warps, [] { ptx::ld_shared_v4(8); });

  std::vector<float> x(4);
  const emulator::Registered rx(x.data(), 16, "x", false);
  expect("past the end of x", "global read past the end", two_warps, [&] { ptx::load_global(x.data() + 4); });
  expect("read-only", "global write to an input", two_warps, [&] { ptx::store_global(x.data(), 1.f); });

  std::printf(failures ? "%d failures\n" : "emulator: all passed\n", failures);
  return failures != 0;
}
