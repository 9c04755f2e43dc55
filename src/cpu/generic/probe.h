// What this processor can do at most, right now: the yardsticks of `tilewise bench`.
#pragma once

#include "cpu/generic/vec.h"
#include "cpu/isa.h"

namespace tilewise::cpu {

static constexpr int kProbeChains =
    12;  // independent accumulators: enough for 6 cycles of latency, twice a cycle

// Different starts, or the compiler may find that all chains are one; the sum is returned, or they are none.
template <class V>
TILEWISE_INLINE void start_chains(typename V::F (&acc)[kProbeChains]) {
  for (int c = 0; c < kProbeChains; ++c) acc[c] = V::set1(float(c));
}
template <class V>
TILEWISE_INLINE float end_chains(typename V::F (&acc)[kProbeChains]) {
  for (int c = 1; c < kProbeChains; ++c) acc[0] += acc[c];
  return acc[0][0];
}

template <class V>
[[gnu::noinline]] static float probe_fma(i64 steps) {
  typename V::F acc[kProbeChains], x = V::pin(V::set1(0.5f)), y = V::pin(V::set1(0.25f));
  start_chains<V>(acc);
  for (i64 i = 0; i < steps; ++i)
    for (int c = 0; c < kProbeChains; ++c) acc[c] = acc[c] * x + y;
  return end_chains<V>(acc);
}

template <class V>
[[gnu::noinline]] static float probe_pairs(i64 steps) {
  typename V::F acc[kProbeChains], x = V::pin(typename V::F{});
  start_chains<V>(acc);
  for (i64 i = 0; i < steps; ++i)
    for (int c = 0; c < kProbeChains; ++c) acc[c] = V::dot_pairs(acc[c], 0x3F803F80u, x);
  return end_chains<V>(acc);
}

template <class V>
[[gnu::noinline]] static float probe_read(const void* memory, i64 bytes) {
  constexpr int kStep = 8 * V::W * 4;
  const char* p = static_cast<const char*>(memory);
  typename V::F sum[4] = {};
  for (i64 i = 0; i + kStep <= bytes; i += kStep)
    for (int c = 0; c < 8; ++c) sum[c % 4] += V::load(p + i + c * V::W * 4);
  return (sum[0] + sum[1] + sum[2] + sum[3])[0];
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
