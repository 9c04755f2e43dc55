#include "cpu/probe.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "core/error.h"
#include "cpu/isa.h"
#include "cpu/pool.h"

namespace tilewise::cpu {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> x) {
  if (x.empty()) return 0;
  std::nth_element(x.begin(), x.begin() + i64(x.size() / 2), x.end());
  return x[x.size() / 2];
}

const Kernels& usable(const std::string& isa) {
  const Kernels* k = find_kernels(isa);
  if (!k || !isa_usable(isa))
    invalid("isa: '", isa, "' is not usable here (`tilewise info` lists those that are)");
  return *k;
}

constexpr i64 kProbeSteps = 4000;  // 48,000 vector instructions: 10 to 20 us a window

// The best of a few windows: one that was interrupted says nothing about the peak.
double window(float (*probe)(i64), i64 flops) {
  double best = 0;
  volatile float sink = 0;
  for (int i = 0; i < 6; ++i) {
    const auto start = Clock::now();
    sink = probe(kProbeSteps);
    best = std::max(best, double(flops) * kProbeSteps / seconds_since(start));
  }
  (void)sink;
  return best;
}

}  // namespace

bool has_pairs(const std::string& isa) { return usable(isa).probes.pairs != nullptr; }

double probe_flops(const std::string& isa, Peak peak, int threads) {
  const Probes& p = usable(isa).probes;
  const bool pairs = peak == Peak::pairs && p.pairs;
  std::vector<double> rate(static_cast<size_t>(threads));
  parallel({threads}, threads, [&](int, i64 t) {
    rate[size_t(t)] = pairs ? window(p.pairs, p.pairs_flops) : window(p.fma, p.fma_flops);
  });
  double sum = 0;
  for (double r : rate) sum += r;
  return sum;
}

double probe_read(const std::string& isa, int threads, i64 bytes, int repeats) {
  const Probes& p = usable(isa).probes;
  constexpr i64 kChunk = i64{1} << 20;
  const i64 chunks = std::max<i64>(bytes / kChunk, 1);
  const auto memory = std::make_unique<char[]>(size_t(chunks * kChunk));
  std::fill_n(memory.get(), chunks * kChunk, char(1));
  std::vector<double> rates;
  std::vector<float> sums(static_cast<size_t>(chunks));
  for (int r = 0; r < repeats; ++r) {
    const auto start = Clock::now();
    parallel({threads}, chunks,
             [&](int, i64 c) { sums[size_t(c)] = p.read(memory.get() + c * kChunk, kChunk); });
    rates.push_back(double(chunks * kChunk) / seconds_since(start));
  }
  return median(rates);
}

Share measure_share(const std::string& isa, Peak peak, int threads, double flops, int repeats,
                    const std::function<void()>& f) {
  std::vector<double> seconds, peaks, shares;
  for (int r = 0; r < repeats; ++r) {
    const double before = probe_flops(isa, peak, threads);
    const auto start = Clock::now();
    f();
    const double took = seconds_since(start), after = probe_flops(isa, peak, threads),
                 now = (before + after) / 2;
    seconds.push_back(took);
    peaks.push_back(now);
    shares.push_back(flops / took / now);
  }
  return {median(seconds), median(peaks), median(shares)};
}

}  // namespace tilewise::cpu
