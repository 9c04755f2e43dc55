// tilewise demo: what runs here, how exact it is, and what it gains over standard attention. At most a
// minute.
#include <malloc.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <cstdio>

#include "cli/cli.h"
#include "cli/contender.h"
#include "cli/table.h"
#include "cli/unfused.h"
#include "core/error.h"
#include "cpu/backend.h"
#include "oracle/accuracy.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

constexpr double kMostSeconds = 45;  // after that the rest of the table is left out
constexpr int64_t kHeads = 2;

tw_options options_of(bool causal) {
  tw_options o = tw::Attention().options;
  o.causal = causal;
  return o;
}

Shape shape_of(int64_t seqlen, tw_dtype dtype) { return {1, seqlen, seqlen, kHeads, kHeads, 64, 64, dtype}; }

void show_machine() {
  const std::string isa = isa_of(shape_only(shape_of(512, TW_FP32), TW_FORWARD, options_of(false), {}));
  std::printf("%s", tw::info().c_str());
  std::printf("\nThis demonstration runs on the CPU with %s, %d threads.\n\n", isa.c_str(),
              cpu::machine().threads);
}

// Forward against the fp64 oracle, beside what standard attention in the same dtype makes of it.
void show_exactness() {
  std::printf("Exactness, S 512, D 64, causal: largest error against fp64\n");
  std::printf("  %-6s %12s %20s\n", "", "tilewise", "standard attention");
  for (tw_dtype dtype : {TW_FP32, TW_FP16, TW_BF16}) {
    Sample sample(shape_of(512, dtype), TW_FORWARD, options_of(true));
    tw::run(sample.attention);
    const Problem p = make_problem(sample.attention, TW_FORWARD);
    const auto verdicts = oracle::judge_forward(p, oracle::some_rows(p, 200, 1));
    std::printf("  %-6s %12.2e %20.2e   %s\n", name_of(dtype), verdicts[0].ours.max, verdicts[0].naive.max,
                oracle::all_pass(verdicts) ? "exact to rounding" : "WRONG");
    if (!oracle::all_pass(verdicts)) throw Exit{kExitFailed};
  }
  std::printf("\n");
  std::fflush(stdout);
}

double peak_rss() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * double(usage.ru_maxrss);
}

// How far `work` raises the peak of a process above the inputs and outputs that it holds; measured in a
// child.
template <class Work>
double memory_of(int64_t seqlen, bool causal, Work&& work) {
  int channel[2];
  if (pipe(channel) != 0) return 0;
  malloc_trim(0);  // else the child would fill pages that are already there
  const pid_t child = fork();
  if (child == 0) {
    const Sample sample(shape_of(seqlen, TW_FP32), TW_FORWARD, options_of(causal));
    const double before = peak_rss();
    work(sample.attention);
    const double bytes = peak_rss() - before;
    _exit(write(channel[1], &bytes, sizeof bytes) == sizeof bytes ? 0 : 1);
  }
  close(channel[1]);
  double bytes = 0;
  if (child < 0 || read(channel[0], &bytes, sizeof bytes) != sizeof bytes) bytes = 0;
  close(channel[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  return bytes;
}

void show_row(int64_t seqlen, bool causal, double seconds) {
  const Shape shape = shape_of(seqlen, TW_FP32);
  const tw_options options = options_of(causal);
  std::vector<std::unique_ptr<Contender>> contenders;
  contenders.push_back(make_tilewise(shape, options, Work::forward, {}, "", {}));
  contenders.push_back(make_unfused(shape, options, Temporaries::separate, {}));
  const Peak peak =
      cpu_peak(shape, options, Work::forward, isa_of(shape_only(shape, TW_FORWARD, options, {})));
  const std::vector<Measurement> m = compare(contenders, {peak, peak}, seconds);
  contenders.clear();
  const double fused = memory_of(seqlen, causal, [](const tw_attention& a) { tw::run(a); });
  const double unfused = memory_of(seqlen, causal, [](const tw_attention& a) {
    Unfused(a, cpu::machine().threads, Temporaries::separate).run();
  });
  const double speedup = m[1].seconds / m[0].seconds;
  std::printf("  %-6s %5lld %10s %10s %6.1fx %s %5.0f %% %8s %8s\n", causal ? "causal" : "full",
              static_cast<long long>(seqlen), time_text(m[1].seconds).c_str(),
              time_text(m[0].seconds).c_str(), speedup, bar(speedup / 20, 20).c_str(), 100 * m[0].share,
              bytes_text(unfused).c_str(), bytes_text(fused).c_str());
  std::fflush(stdout);
}

void show_speed() {
  const Clock clock;
  const double start = clock.now();
  std::printf(
      "Speed and memory against unfused standard attention (S and P written out), fp32, %lld heads, D 64\n",
      static_cast<long long>(kHeads));
  std::printf("  %-6s %5s %10s %10s %7s %-20s %7s %8s %8s\n", "mask", "S", "unfused", "tilewise", "faster",
              "(bar: 20 times)", "of peak", "unfused", "tilewise");
  std::printf("  %-6s %5s %10s %10s %7s %-20s %7s %8s %8s\n", "", "", "time", "time", "", "", "", "memory",
              "memory");
  for (bool causal : {false, true})
    for (int64_t seqlen : {512, 1024, 2048, 4096, 8192}) {
      if (clock.now() - start > kMostSeconds) {
        std::printf("  the machine is busy: the rest is left out to stay below a minute\n");
        return;
      }
      show_row(seqlen, causal, 0.4);
    }
  std::printf(
      "\nPeak: fused multiply-adds of the same threads, measured between the runs. Memory: beyond inputs and "
      "outputs.\n");
}

}  // namespace

void add_demo(CLI::App& app) {
  CLI::App* verb =
      app.add_subcommand("demo", "What runs here, how exact it is and how fast (at most a minute)");
  verb->callback([] {
    show_machine();
    show_exactness();
    show_speed();
    std::printf("\nNext: tilewise --help, tilewise check, tilewise bench --help\n");
  });
}

}  // namespace tilewise::cli
