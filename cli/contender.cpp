#include "cli/contender.h"

#include <algorithm>
#include <ctime>

#include "cli/execute.h"
#include "core/error.h"
#include "cpu/backend.h"
#include "cpu/probe.h"
#include "cuda/driver/memory.h"
#include "cuda/launch/params.h"
#include "cuda/probe.h"
#include "plan/decision.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

constexpr Clock kWall{};

double median(std::vector<double> x) {
  std::nth_element(x.begin(), x.begin() + long(x.size() / 2), x.end());
  return x[x.size() / 2];
}

double flops(const Shape& s, const tw_options& o, Work work) {
  return forward_flops(s, o) * (work == Work::forward ? 1 : work == Work::backward ? 2.5 : 3.5);
}

// Bytes of the tensors of one run, each counted once for each pass that reads or writes it.
double tensor_traffic(const Shape& s, Work work) {
  const double columns = double(s.dim + s.dim_v) * double(tilewise::size_of(s.dtype)),
               rows = double(s.batch * s.seqlen_q * s.heads),
               keys = double(s.batch * s.seqlen_k * s.kv_heads), lse = 4 * rows;
  const double forward = (rows + keys) * columns + lse;       // q, k, v, out
  const double backward = 2 * (rows + keys) * columns + lse;  // and dout, dq, dk, dv
  return work == Work::forward ? forward : work == Work::backward ? backward : forward + backward;
}

tw_pass pass_of(Work work) { return work == Work::forward ? TW_FORWARD : TW_BACKWARD; }

// One pass of the library on host tensors, planned once.
struct CpuPass {
  CpuPass(const tw_attention& a, tw_pass pass) : plan(a, pass) { workspace.reserve(plan.workspace()); }
  tw::Plan plan;
  tw::Workspace workspace;
};

class OnCpu : public Contender {
 public:
  OnCpu(const Shape& shape, const tw_options& options, Work work, Clock clock)
      : sample_(shape, pass_of(work), options),
        work_(work),
        clock_(clock),
        forward_(sample_.attention, TW_FORWARD) {
    if (work != Work::forward) backward_ = std::make_unique<CpuPass>(sample_.attention, TW_BACKWARD);
    forward_.plan.execute(sample_.attention, forward_.workspace);
  }
  double run() override {
    const double start = clock_.now();
    if (work_ != Work::backward) forward_.plan.execute(sample_.attention, forward_.workspace);
    if (backward_) backward_->plan.execute(sample_.attention, backward_->workspace);
    return clock_.now() - start;
  }

 private:
  Sample sample_;
  Work work_;
  Clock clock_;
  CpuPass forward_;
  std::unique_ptr<CpuPass> backward_;
};

class OnGpu : public Contender {
 public:
  OnGpu(const Shape& shape, const tw_options& options, Work work, DeviceName device)
      : device_(device.index), work_(work), timer_(device.index) {
    const Sample sample(shape, pass_of(work), options);
    a_ = planned(sample.attention, pass_of(work), device);
    for (const TensorUse& use : tensors_of(pass_of(work))) {
      tw_tensor& t = a_.*use.tensor;
      if (!t.dtype) continue;
      const size_t bytes = tensor_bytes(t);
      tensors_.emplace_back(device_, bytes);
      if (bytes) tensors_.back().upload((sample.attention.*use.tensor).data, bytes);
      t.data = tensors_.back().data();
    }
    forward_ = std::make_unique<tw::Plan>(a_, TW_FORWARD);
    if (work != Work::forward) backward_ = std::make_unique<tw::Plan>(a_, TW_BACKWARD);
    workspace_ =
        cuda::DeviceBuffer(device_, std::max(forward_->workspace(), backward_ ? backward_->workspace() : 0));
    forward();
    if (backward_) backward();
    cuda::synchronize(device_, nullptr);
    const double once = run();
    burst_ = std::clamp(int(0.005 / std::max(once, 1e-6)), 1, 50);
  }
  double run() override {
    timer_.start(nullptr);
    for (int i = 0; i < burst_; ++i) enqueue();
    timer_.stop(nullptr);
    return timer_.seconds() / burst_;
  }
  double host_seconds() override {
    constexpr int kCalls = 8;  // few enough that the driver's queue takes them all without waiting
    std::vector<double> seconds;
    for (int round = 0; round < 21; ++round) {
      cuda::synchronize(device_, nullptr);
      const double start = kWall.now();
      for (int i = 0; i < kCalls; ++i) enqueue();
      seconds.push_back((kWall.now() - start) / kCalls);
    }
    cuda::synchronize(device_, nullptr);
    return median(seconds);
  }

 private:
  void enqueue() {
    if (work_ != Work::backward) forward();
    if (work_ != Work::forward) backward();
  }
  void forward() { forward_->execute(a_, workspace_.data(), workspace_.bytes()); }
  void backward() { backward_->execute(a_, workspace_.data(), workspace_.bytes()); }

  const int device_;
  const Work work_;
  tw_attention a_;
  std::vector<cuda::DeviceBuffer> tensors_;
  cuda::DeviceBuffer workspace_;
  std::unique_ptr<tw::Plan> forward_, backward_;
  cuda::Timer timer_;
  int burst_ = 1;
};

class UnfusedContender : public Contender {
 public:
  UnfusedContender(const Shape& shape, const tw_options& options, Temporaries temporaries, Clock clock)
      : sample_(shape, TW_FORWARD, options),
        clock_(clock),
        unfused_(sample_.attention, options.threads ? options.threads : cpu::machine().threads, temporaries) {
  }
  double run() override {
    const double start = clock_.now();
    unfused_.run();
    return clock_.now() - start;
  }

 private:
  Sample sample_;
  Clock clock_;
  Unfused unfused_;
};

}  // namespace

double Clock::now() const {
  timespec t{};
  clock_gettime(kind == ClockKind::wall ? CLOCK_MONOTONIC : CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double(t.tv_sec) + 1e-9 * double(t.tv_nsec)) / (kind == ClockKind::wall ? 1 : threads);
}

std::unique_ptr<Contender> make_tilewise(const Shape& shape, const tw_options& options, Work work,
                                         DeviceName device, const std::string& algorithm, Clock clock) {
  tw_options o = options;
  if (!algorithm.empty()) o.algorithm = algorithm.c_str();
  if (device.type == TW_CUDA) return std::make_unique<OnGpu>(shape, o, work, device);
  return std::make_unique<OnCpu>(shape, o, work, clock);
}

std::unique_ptr<Contender> make_unfused(const Shape& shape, const tw_options& options,
                                        Temporaries temporaries, Clock clock) {
  return std::make_unique<UnfusedContender>(shape, options, temporaries, clock);
}

Peak cpu_peak(const Shape& s, const tw_options& o, Work work, const std::string& isa) {
  Peak peak;
  const int threads = o.threads ? o.threads : cpu::machine().threads;
  // Each key and value is read once for the queries of its group: below some 16 of them memory is the limit.
  if (work == Work::forward && s.seqlen_q * (s.heads / s.kv_heads) <= 16) {
    peak.memory_bound = peak.costly = true;
    peak.amount =
        double(s.batch * s.seqlen_k * s.kv_heads * (s.dim + s.dim_v)) * double(tilewise::size_of(s.dtype));
    peak.meaning = "reading memory";
    peak.measure = [=] { return cpu::probe_read(isa, threads, int64_t(256) << 20, 3); };
    return peak;
  }
  const bool pairs = s.dtype == TW_BF16 && cpu::has_pairs(isa);
  peak.amount = flops(s, o, work);
  peak.meaning = std::string(pairs ? "products of bf16 pairs, " : "fused multiply-adds of fp32, ") + isa;
  peak.measure = [=] { return cpu::probe_flops(isa, pairs ? cpu::Peak::pairs : cpu::Peak::fp32, threads); };
  return peak;
}

const GpuPeaks::Probe& GpuPeaks::products(tw_dtype dtype) {
  const auto found = products_.find(dtype);
  if (found != products_.end()) return found->second;
  const auto rate = std::make_shared<cuda::ProductRate>(device_, cuda::element_of(dtype));
  Peak peak;
  peak.meaning = rate->meaning();
  peak.measure = [rate] { return rate->measure(); };
  return products_[dtype] = {peak, rate->measure()};
}

const GpuPeaks::Probe& GpuPeaks::copies() {
  if (copies_) return *copies_;
  const auto rate = std::make_shared<cuda::CopyRate>(device_);
  Peak peak;
  peak.memory_bound = true;
  peak.meaning = rate->meaning();
  peak.measure = [rate] { return rate->measure(); };
  copies_ = {peak, rate->measure()};
  return *copies_;
}

Peak GpuPeaks::of(const Shape& s, const tw_options& o, Work work) {
  const Probe &multiply = products(s.dtype), &copy = copies();
  const double operations = flops(s, o, work), bytes = tensor_traffic(s, work);
  const bool memory_bound = bytes / copy.first > operations / multiply.first;
  Peak peak = memory_bound ? copy.peak : multiply.peak;
  peak.amount = memory_bound ? bytes : operations;
  return peak;
}

std::vector<Measurement> compare(const std::vector<std::unique_ptr<Contender>>& contenders,
                                 const std::vector<Peak>& peaks, double budget) {
  const size_t n = contenders.size();
  std::vector<std::vector<double>> seconds(n), rates(n), shares(n);
  std::vector<double> before(n);
  for (size_t i = 0; i < n; ++i) {
    contenders[i]->run();
    if (peaks[i].costly) before[i] = peaks[i].measure();
  }
  const double start = kWall.now();
  for (int round = 0; round < 100 && (round < 3 || kWall.now() - start < budget); ++round)
    for (size_t i = 0; i < n; ++i) {
      if (!peaks[i].costly) before[i] = peaks[i].measure();
      const double took = contenders[i]->run();
      const double after = peaks[i].costly ? before[i] : peaks[i].measure();
      seconds[i].push_back(took);
      rates[i].push_back((before[i] + after) / 2);
      shares[i].push_back(peaks[i].amount / took / rates[i].back());
    }
  std::vector<Measurement> results;
  for (size_t i = 0; i < n; ++i) {
    const double typical = median(seconds[i]);
    results.push_back({typical, peaks[i].amount / typical, median(rates[i]), median(shares[i]),
                       contenders[i]->host_seconds()});
  }
  return results;
}

std::string isa_of(const tw_attention& a) {
  return plan::decide_cpu(make_problem(a, TW_FORWARD), cpu::machine()).algorithm;
}

}  // namespace tilewise::cli
