// tilewise check: is this installation right? A list of problems that together use every feature, on every
// kernel that this machine can run, each result held against the fp64 oracle.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <thread>

#include "cli/cli.h"
#include "cli/contender.h"
#include "cli/execute.h"
#include "cli/options.h"
#include "cli/sample.h"
#include "core/error.h"
#include "cpu/backend.h"
#include "oracle/accuracy.h"
#include "plan/cuda.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

enum Feature : unsigned {
  kCausal = 1,
  kTopLeft = 2,
  kWindow = 4,
  kSoftcap = 8,
  kAlibi = 16,
  kBias = 32,
  kMask = 64,
  kSink = 128,
  kDropout = 256,
  kPacked = 512,
};

struct Trial {
  const char* name;
  Shape shape;
  unsigned features;
};

// batch, Sq, Sk, heads, kv heads, D, Dv. Lengths are no multiples of any tile.
const Trial kTrials[] = {
    {"plain fp32", {2, 131, 131, 4, 4, 64, 64, TW_FP32}, 0},
    {"plain fp16", {1, 200, 200, 4, 4, 64, 64, TW_FP16}, 0},
    {"plain bf16", {1, 200, 200, 4, 4, 64, 64, TW_BF16}, 0},
    {"causal fp32, D 128", {1, 257, 257, 2, 2, 128, 128, TW_FP32}, kCausal},
    {"causal bf16, D 128, grouped heads", {1, 257, 257, 8, 2, 128, 128, TW_BF16}, kCausal},
    {"causal fp16, more keys than queries", {1, 65, 300, 4, 1, 64, 64, TW_FP16}, kCausal},
    {"causal fp32, more queries than keys", {1, 150, 70, 2, 2, 32, 32, TW_FP32}, kCausal},
    {"top-left causal bf16", {1, 70, 150, 2, 2, 64, 64, TW_BF16}, kCausal | kTopLeft},
    {"window fp32", {1, 190, 190, 2, 2, 64, 64, TW_FP32}, kWindow},
    {"window and softcap bf16", {1, 190, 190, 2, 2, 64, 64, TW_BF16}, kWindow | kSoftcap},
    {"softcap fp16", {2, 96, 96, 2, 1, 96, 96, TW_FP16}, kSoftcap},
    {"ALiBi fp32, causal", {2, 120, 120, 4, 4, 64, 64, TW_FP32}, kAlibi | kCausal},
    {"bias bf16", {2, 77, 133, 2, 2, 64, 64, TW_BF16}, kBias},
    {"mask fp32", {2, 77, 133, 2, 2, 40, 72, TW_FP32}, kMask},
    {"bias, mask and sink fp16", {1, 90, 90, 4, 2, 64, 64, TW_FP16}, kBias | kMask | kSink},
    {"sink bf16, causal", {1, 130, 130, 4, 2, 64, 64, TW_BF16}, kSink | kCausal},
    {"dropout fp32", {2, 100, 100, 2, 2, 64, 64, TW_FP32}, kDropout},
    {"dropout bf16, causal", {1, 100, 140, 4, 2, 128, 128, TW_BF16}, kDropout | kCausal},
    {"packed sequences fp32, causal", {4, 260, 260, 2, 2, 64, 64, TW_FP32}, kPacked | kCausal},
    {"packed sequences bf16", {4, 260, 260, 4, 2, 128, 128, TW_BF16}, kPacked},
    {"one query, fp32", {1, 1, 1500, 8, 2, 128, 128, TW_FP32}, 0},
    {"one query, bf16", {3, 1, 700, 8, 2, 64, 64, TW_BF16}, kCausal},
    {"odd head dims fp32", {1, 50, 60, 2, 2, 33, 7, TW_FP32}, kCausal},
    {"head dim 256 bf16", {1, 80, 80, 2, 2, 256, 256, TW_BF16}, kCausal},
};

// The trial's tensors: a dense sample, with what its features add.
struct Problem : Sample {
  Problem(const Trial& t, tw_pass pass) : Sample(t.shape, pass, options(t.features)) {
    const Shape& s = t.shape;
    if (t.features & kAlibi) {
      alibi = vector(s.heads, [](int64_t h) { return 0.25f / float(1 + h); });
      attention.alibi_slopes = alibi.view();
    }
    if (t.features & kSink) {
      sink = vector(s.heads, [](int64_t h) { return 0.5f * float(h) - 1; });
      attention.sink = sink.view();
    }
    if (t.features & kBias) {
      bias = HostTensor("bias", TW_FP32, {1, s.heads, s.seqlen_q, s.seqlen_k});
      for (int64_t i = 0; i < bias.elements(); ++i) bias.as<float>()[i] = float(i * 37 % 101) / 50 - 1;
      attention.bias = bias.view();
    }
    if (t.features & kMask) {
      mask = HostTensor("mask", TW_BOOL, {s.batch, 1, s.seqlen_q, s.seqlen_k});
      for (int64_t i = 0; i < mask.elements(); ++i)
        mask.as<uint8_t>()[i] = i * 29 % 7 != 0 && i / s.seqlen_k % 13 != 5;
      attention.mask = mask.view();
    }
    if (t.features & kPacked) pack(s, pass);
  }

  static tw_options options(unsigned f) {
    tw_options o = tw::Attention().options;
    o.causal = (f & kCausal) != 0;
    o.alignment = f & kTopLeft ? TW_TOP_LEFT : TW_BOTTOM_RIGHT;
    if (f & kWindow) o.window_left = 40, o.window_right = 9;
    if (f & kSoftcap) o.softcap = 5;
    if (f & kDropout) o.dropout_p = 0.2, o.seed = 7, o.offset = 3;
    return o;
  }

  HostTensor alibi, sink, bias, mask, offsets;

 private:
  template <class F>
  static HostTensor vector(int64_t n, F&& f) {
    HostTensor t("vector", TW_FP32, {n});
    for (int64_t i = 0; i < n; ++i) t.as<float>()[i] = f(i);
    return t;
  }

  // The first batch entry's rows become four sequences, one of them empty, with some rows left over.
  void pack(const Shape& s, tw_pass pass) {
    offsets = HostTensor("cu_seqlens", TW_INT32, {5});
    const int32_t n = int32_t(s.seqlen_q);
    const int32_t starts[5] = {0, n / 3, n / 3, n / 2 + 5, n - 4};
    std::memcpy(offsets.data.data(), starts, sizeof starts);
    attention.cu_seqlens_q = attention.cu_seqlens_k = offsets.view();
    for (const TensorUse& use : tensors_of(pass)) {
      tw_tensor& t = attention.*use.tensor;
      if (t.ndim == 4 || use.tensor == &tw_attention::lse) drop_batch(t);
    }
  }
  static void drop_batch(tw_tensor& t) {
    for (int i = 0; i + 1 < t.ndim; ++i) t.size[i] = t.size[i + 1], t.stride[i] = t.stride[i + 1];
    --t.ndim;
  }
};

struct Tally {
  int right = 0, wrong = 0;
  std::map<std::string, int> unavailable;  // by reason
  double worst = 0;                        // largest share of the allowed error that a tensor used
};

// Forward, or forward and backward.
void run(const Trial& t, tw_pass pass, DeviceName device, const std::string& algorithm, Tally& tally) {
  Problem problem(t, pass);
  tw_attention& a = problem.attention;
  if (!algorithm.empty()) a.options.algorithm = algorithm.c_str();
  try {
    execute(a, TW_FORWARD, device);
    if (pass == TW_BACKWARD) execute(a, TW_BACKWARD, device);
  } catch (const tw::Error& e) {
    if (e.status() != TW_UNSUPPORTED) throw;
    ++tally.unavailable[e.what()];
    return;
  }
  const tilewise::Problem p = make_problem(a, pass);
  const auto verdicts =
      pass == TW_FORWARD ? oracle::judge_forward(p, oracle::all_rows(p)) : oracle::judge_backward(p);
  for (const oracle::Verdict& v : verdicts)
    if (v.allowed.max > 0) tally.worst = std::max(tally.worst, v.ours.max / v.allowed.max);
  if (oracle::all_pass(verdicts)) {
    ++tally.right;
    return;
  }
  ++tally.wrong;
  std::printf("WRONG: %s, %s\n%s\n", t.name, pass == TW_FORWARD ? "forward" : "backward",
              oracle::messages(verdicts, true).c_str());
}

// One trial of one pass on one algorithm.
struct Job {
  const Trial* trial;
  tw_pass pass;
  std::string algorithm;
  bool ready = true;  // false: a kernel of it was not compiled in time
};

// Compiles side by side what the jobs need on a GPU: one after the other that takes minutes. What cannot be
// compiled or planned says so when its turn comes; what has not begun after `seconds` is not ready.
void prepare_kernels(std::vector<Job>& jobs, DeviceName device, double seconds) {
  const Clock clock;
  const double start = clock.now();
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i; (i = next++) < jobs.size();) {
      Job& job = jobs[i];
      job.ready = clock.now() - start < seconds;
      if (job.ready) try {
          const Problem problem(*job.trial, job.pass);
          tw_attention a = planned(problem.attention, job.pass, device);
          if (!job.algorithm.empty()) a.options.algorithm = job.algorithm.c_str();
          tw::Plan(a, job.pass).prepare();
        } catch (const std::exception&) {
        }
    }
  };
  std::vector<std::thread> threads(std::max(1u, std::thread::hardware_concurrency()));
  for (std::thread& t : threads) t = std::thread(work);
  for (std::thread& t : threads) t.join();
}

int run_jobs(const std::vector<Job>& jobs, DeviceName device, const std::string& algorithm, tw_pass pass) {
  Tally tally;
  int late = 0;
  for (const Job& job : jobs) {
    if (job.algorithm != algorithm || job.pass != pass) continue;
    if (job.ready)
      run(*job.trial, pass, device, algorithm, tally);
    else
      ++late;
  }
  std::printf("%-12s %-8s  %2d right, %d wrong", algorithm.c_str(),
              pass == TW_FORWARD ? "forward" : "backward", tally.right, tally.wrong);
  if (tally.right + tally.wrong)
    std::printf("; the largest error is %.0f %% of what is allowed", 100 * tally.worst);
  std::printf("\n");
  for (const auto& [reason, count] : tally.unavailable)
    std::printf("             %d not available: %s\n", count, reason.c_str());
  if (late)
    std::printf(
        "             %d not run: compiling their kernels would take too long; `tilewise check` again goes "
        "on\n",
        late);
  std::fflush(stdout);
  return tally.wrong;
}

void check(const std::string& device_text, const std::string& algorithm) {
  const DeviceName device = read_device(device_text);
  std::vector<std::string> algorithms = {algorithm};
  if (algorithm.empty() && device.type == TW_CUDA) algorithms = plan::cuda_algorithms();
  if (algorithm.empty() && device.type == TW_CPU) {
    algorithms.clear();
    for (const plan::CpuIsa& isa : cpu::machine().isas)
      if (isa.usable) algorithms.push_back(isa.name);
  }
  std::vector<Job> jobs;
  for (const std::string& name : algorithms)  // best first, should time run out
    for (const Trial& t : kTrials)
      for (tw_pass pass : {TW_FORWARD, TW_BACKWARD}) jobs.push_back({&t, pass, name});
  constexpr double kCompiling = 35;  // seconds: with the last to begin and the runs, less than a minute
  if (device.type == TW_CUDA) prepare_kernels(jobs, device, kCompiling);
  int failures = 0;
  for (const std::string& name : algorithms)
    for (tw_pass pass : {TW_FORWARD, TW_BACKWARD}) failures += run_jobs(jobs, device, name, pass);
  if (failures) {
    std::printf("This installation is NOT right: %d results are wrong.\n", failures);
    throw Exit{kExitFailed};
  }
  std::printf("Everything that ran is right.\n");
}

}  // namespace

void add_check(CLI::App& app) {
  struct Arguments {
    std::string device = "cpu", algorithm;
  };
  auto x = std::make_shared<Arguments>();
  CLI::App* verb =
      app.add_subcommand("check", "Is this installation right? A self-test of less than a minute");
  verb->add_option("--device", x->device, "cpu, cuda or cuda:N")->capture_default_str();
  verb->add_option("--algorithm", x->algorithm,
                   "One only (default: every instruction set of the CPU, every algorithm of the GPU)");
  verb->footer(R"(Examples:
  tilewise check
  tilewise check --device cuda)");
  verb->callback([x] { check(x->device, x->algorithm); });
}

}  // namespace tilewise::cli
