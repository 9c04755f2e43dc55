// What this processor can do at most, right now: the yardsticks of `tilewise bench`.
#pragma once

#include "cpu/generic/vec.h"
#include "cpu/isa.h"

namespace tilewise::cpu {

static constexpr int kProbeChains =
    12;  // independent accumulators: enough for 6 cycles of latency, twice a cycle

template <class V>
[[gnu::noinline]] static void probe_fma(i64 steps) {
  typename V::F acc[kProbeChains] = {}, x = V::set1(0.5f), y = V::set1(0.25f);
  V::pin(x);
  V::pin(y);
  for (i64 i = 0; i < steps; ++i)
    for (int c = 0; c < kProbeChains; ++c) {
      acc[c] = acc[c] * x + y;
      V::pin(acc[c]);
    }
}

template <class V>
[[gnu::noinline]] static void probe_pairs(i64 steps) {
  typename V::F acc[kProbeChains] = {}, x{};
  V::pin(x);
  for (i64 i = 0; i < steps; ++i)
    for (int c = 0; c < kProbeChains; ++c) {
      acc[c] = V::dot_pairs(acc[c], 0x3F803F80u, x);
      V::pin(acc[c]);
    }
}

template <class V>
[[gnu::noinline]] static void probe_read(const void* memory, i64 bytes) {
  constexpr int kStep = 8 * V::W * 4;
  const char* p = static_cast<const char*>(memory);
  for (i64 i = 0; i + kStep <= bytes; i += kStep)
    for (int c = 0; c < 8; ++c) {
      typename V::F x = V::load(p + i + c * V::W * 4);
      V::pin(x);
    }
}

template <class V>
constexpr Probes make_probes() {
  Probes p{};
  p.fma = probe_fma<V>;
  p.fma_flops = 2 * V::W * kProbeChains;
  if constexpr (V::kPairs) {
    p.pairs = probe_pairs<V>;
    p.pairs_flops = 4 * V::W * kProbeChains;
  }
  p.read = probe_read<V>;
  return p;
}

}  // namespace tilewise::cpu
