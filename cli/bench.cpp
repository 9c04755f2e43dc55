// tilewise bench: speed over a grid of problems, beside the machine's peak of the same moment and beside
// contenders.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/cli.h"
#include "cli/contender.h"
#include "cli/options.h"
#include "cli/table.h"
#include "core/error.h"
#include "cpu/backend.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

struct Arguments {
  ShapeOptions shape;
  ScoreOptions scores;
  std::string pass = "fwd", against, seconds = "1", clock = "wall";
  bool full = false, json = false;
};

struct Cell {
  Shape shape;
  tw_options options;
  Work work;
};

struct Grid {
  std::vector<Cell> cells;
  std::vector<std::string> algorithms, against;
  DeviceName device;
  double seconds;
  Clock clock;
  std::optional<GpuPeaks> gpu;  // where the device is one
};

Work read_work(const std::string& text) {
  if (text == "fwd") return Work::forward;
  if (text == "bwd") return Work::backward;
  if (text == "fwdbwd") return Work::both;
  invalid("--pass: '", text, "'; must be fwd, bwd or fwdbwd (or several: fwd,bwd)");
}

const char* name_of(Work work) {
  return work == Work::forward ? "fwd" : work == Work::backward ? "bwd" : "fwdbwd";
}

Grid read_grid(const Arguments& x) {
  Grid g;
  g.device = read_device(x.scores.device);
  if (g.device.type == TW_CUDA) g.gpu.emplace(g.device.index);
  g.seconds = read_number("--seconds", x.seconds);
  if (!(g.seconds > 0 && g.seconds <= 3600))
    invalid("--seconds: '", x.seconds, "'; must be above 0, at most 3600");
  if (x.clock != "wall" && x.clock != "cpu") invalid("--clock: '", x.clock, "'; must be wall or cpu");
  g.clock.kind = x.clock == "wall" ? ClockKind::wall : ClockKind::cpu;
  g.algorithms = split(x.scores.algorithm, ',');  // none named: one empty name, the planner's choice
  if (!x.against.empty()) g.against = split(x.against, ',');
  for (const std::string& name : g.against)
    if (name != "unfused" && name != "unfused-kept")
      invalid("--against: '", name,
              "'; must be unfused (a new tensor for every step) or unfused-kept (S and P allocated once)");
  ScoreOptions scores = x.scores;
  scores.algorithm.clear();
  const tw_options options = read_score_options(scores);
  g.clock.threads = options.threads ? options.threads : cpu::machine().threads;
  std::vector<tw_options> masks = {options};
  if (!options.causal && x.scores.window.empty() && !x.full) {
    masks.push_back(options);
    masks.back().causal = 1;
  }
  for (const std::string& dtype : split(x.shape.dtype, ','))
    for (const std::string& pass : split(x.pass, ','))
      for (const std::string& dim : split(x.shape.dim, ','))
        for (const tw_options& mask : masks)
          for (const std::string& seqlen : split(x.shape.seqlen, ',')) {
            ShapeOptions one = x.shape;
            one.dtype = dtype;
            one.dim = dim;
            one.seqlen = seqlen;
            g.cells.push_back({read_shape(one), mask, read_work(pass)});
          }
  return g;
}

std::string mask_text(const tw_options& o) {
  if (o.window_left >= 0 || o.window_right >= 0) return "window";
  return o.causal ? "causal" : "full";
}

struct Line {
  std::string algorithm;
  Peak peak;
  Measurement measured;
};

// On the CPU that of the instruction set that runs the cell.
Peak peak_of(Grid& g, const Cell& c, const std::string& algorithm) {
  if (g.gpu) return g.gpu->of(c.shape, c.options, c.work);
  tw_options o = c.options;
  o.algorithm = algorithm.empty() ? nullptr : algorithm.c_str();
  return cpu_peak(c.shape, o, c.work, isa_of(shape_only(c.shape, TW_FORWARD, o, g.device)));
}

// The library's algorithms first, then what they are compared with.
std::vector<Line> measure(Grid& g, const Cell& c) {
  std::vector<std::unique_ptr<Contender>> contenders;
  std::vector<Line> lines;
  for (const std::string& name : g.algorithms) {
    contenders.push_back(make_tilewise(c.shape, c.options, c.work, g.device, name, g.clock));
    lines.push_back({name.empty() ? "tilewise" : name, peak_of(g, c, name), {}});
  }
  for (const std::string& name : g.against) {
    contenders.push_back(make_unfused(
        c.shape, c.options, name == "unfused" ? Temporaries::separate : Temporaries::kept, g.clock));
    lines.push_back({name, peak_of(g, c, ""), {}});
  }
  std::vector<Peak> peaks;
  for (const Line& line : lines) peaks.push_back(line.peak);
  const std::vector<Measurement> m = compare(contenders, peaks, g.seconds);
  for (size_t i = 0; i < lines.size(); ++i) lines[i].measured = m[i];
  return lines;
}

// Every mistake shows before the first measurement.
void check_cell(Grid& g, const Cell& c) {
  const tw_pass pass = c.work == Work::forward ? TW_FORWARD : TW_BACKWARD;
  for (const std::string& name : g.algorithms) {
    tw_options o = c.options;
    o.algorithm = name.empty() ? nullptr : name.c_str();
    const tw::Plan accepted(shape_only(c.shape, pass, o, g.device), pass);
    if (g.device.type == TW_CPU && g.clock.kind == ClockKind::cpu && peak_of(g, c, name).memory_bound)
      invalid("--clock: cpu counts no waiting for memory, which is what limits ", c.shape.seqlen_q,
              " queries; choose --clock wall");
  }
  if (g.against.empty()) return;
  const std::string against = "--against: " + g.against[0];
  if (c.work != Work::forward) invalid(against, " has no backward; choose --pass fwd");
  if (g.device.type != TW_CPU) invalid(against, " runs on the CPU; on a GPU use --algorithm unfused,fa1");
  if (c.shape.dtype != TW_FP32) invalid(against, " runs in fp32; choose --dtype fp32");
  if (mask_text(c.options) == "window" || c.options.softcap > 0 || c.options.dropout_p > 0)
    invalid(against, " knows no window, softcap or dropout; leave them out");
}

std::string first_columns(const Cell& c) {
  const Shape& s = c.shape;
  const std::string keys = s.seqlen_k == s.seqlen_q ? "" : "/" + std::to_string(s.seqlen_k);
  const std::string heads =
      std::to_string(s.heads) + (s.kv_heads == s.heads ? "" : "/" + std::to_string(s.kv_heads));
  return format("%-5s %-6s %-7s %5lld %11s %4lld %6s", tilewise::name_of(s.dtype), name_of(c.work),
                mask_text(c.options).c_str(), static_cast<long long>(s.batch),
                (std::to_string(s.seqlen_q) + keys).c_str(), static_cast<long long>(s.dim), heads.c_str());
}

std::string rate_text(const Peak& peak, double rate) {
  if (peak.memory_bound) return format("%.0f GB/s", rate / 1e9);
  return rate < 1e13 ? format("%.0f GFLOP/s", rate / 1e9) : format("%.1f TFLOP/s", rate / 1e12);
}

void print_lines(const Cell& c, const std::vector<Line>& lines) {
  for (size_t i = 0; i < lines.size(); ++i) {
    const Measurement& m = lines[i].measured;
    std::string line =
        first_columns(c) + format("  %-12s %10s %14s %5.1f %% %s", lines[i].algorithm.c_str(),
                                  time_text(m.seconds).c_str(), rate_text(lines[i].peak, m.rate).c_str(),
                                  100 * m.share, bar(m.share, 20).c_str());
    if (m.host > 0) line += format("  host %.1f us", 1e6 * m.host);
    if (i > 0)
      line += format("  %s is %.1f times as fast", lines[0].algorithm.c_str(),
                     m.seconds / lines[0].measured.seconds);
    std::printf("%s\n", line.c_str());
  }
  std::fflush(stdout);
}

// What the shares are shares of.
void print_peaks(const std::vector<Line>& all) {
  std::map<std::string, std::vector<const Line*>> by_meaning;
  for (const Line& line : all) by_meaning[line.peak.meaning].push_back(&line);
  for (auto& [meaning, lines] : by_meaning) {
    std::sort(lines.begin(), lines.end(),
              [](const Line* a, const Line* b) { return a->measured.peak < b->measured.peak; });
    const auto text = [](const Line* l) { return rate_text(l->peak, l->measured.peak); };
    const std::string least = text(lines.front()), most = text(lines.back());
    std::printf("peak: %s, %s%s\n", meaning.c_str(), least.c_str(),
                most == least ? "" : (" to " + most).c_str());
  }
}

nlohmann::json json_line(const Cell& c, const Line& line) {
  const Peak& peak = line.peak;
  const Shape& s = c.shape;
  nlohmann::json j = {{"algorithm", line.algorithm},
                      {"pass", name_of(c.work)},
                      {"dtype", tilewise::name_of(s.dtype)},
                      {"mask", mask_text(c.options)},
                      {"batch", s.batch},
                      {"seqlen_q", s.seqlen_q},
                      {"seqlen_k", s.seqlen_k},
                      {"heads", s.heads},
                      {"kv_heads", s.kv_heads},
                      {"dim", s.dim},
                      {"dim_v", s.dim_v},
                      {"seconds", line.measured.seconds},
                      {peak.memory_bound ? "bytes_per_second" : "flops_per_second", line.measured.rate},
                      {"share_of_peak", line.measured.share},
                      {"peak", peak.meaning},
                      {"peak_per_second", line.measured.peak}};
  if (line.measured.host > 0) j["host_seconds"] = line.measured.host;
  return j;
}

void bench(const Arguments& x) {
  Grid g = read_grid(x);
  for (const Cell& c : g.cells) check_cell(g, c);
  nlohmann::json all = nlohmann::json::array();
  if (!x.json)
    std::printf("%-5s %-6s %-7s %5s %11s %4s %6s  %-12s %10s %14s  of the peak measured in between\n",
                "dtype", "pass", "mask", "batch", "seqlen", "dim", "heads", "algorithm", "median", "");
  std::vector<Line> everything;
  for (const Cell& c : g.cells) {
    const std::vector<Line> lines = measure(g, c);
    everything.insert(everything.end(), lines.begin(), lines.end());
    if (x.json)
      for (const Line& line : lines) all.push_back(json_line(c, line));
    else
      print_lines(c, lines);
  }
  if (x.json)
    std::printf("%s\n", all.dump(1).c_str());
  else
    print_peaks(everything);
}

}  // namespace

void add_bench(CLI::App& app) {
  auto x = std::make_shared<Arguments>();
  x->shape.seqlen = "512,2048,8192";
  x->shape.dim = "64,128";
  CLI::App* verb = app.add_subcommand("bench", "Speed, as a share of the peak measured in the same run");
  add_shape_options(*verb, x->shape);
  add_score_options(*verb, x->scores);
  auto* how =
      verb->add_option_group("Measurement", "--seqlen, --dim, --dtype, --pass and --algorithm take lists");
  how->add_option("--pass", x->pass, "fwd, bwd, fwdbwd")->capture_default_str();
  how->add_flag("--full", x->full, "Without a mask only (default: without and causal)");
  how->add_option("--against", x->against, "unfused, unfused-kept: standard attention on the CPU");
  how->add_option("--seconds", x->seconds, "Time for each problem")->capture_default_str();
  how->add_option("--clock", x->clock,
                  "wall, or cpu: the threads' own time, for a machine that others use too")
      ->capture_default_str();
  how->add_flag("--json", x->json, "Results as JSON on standard output");
  verb->footer(R"(Examples:
  tilewise bench
  tilewise bench --dtype fp32,bf16 --seqlen 2048 --pass fwd,bwd --json
  tilewise bench --seqlen 4096 --dim 64 --against unfused
  tilewise bench --seqlen 1 --seqlen-k 65536 --heads 32 --kv-heads 8 --dim 128 --full      (decoding)
  tilewise bench --device cuda --dtype bf16 --heads 16 --dim 128 --algorithm fa2,unfused

Operations are counted as 2 (D + Dv) for each visible pair of query and key, 2.5 times that for the backward;
a causal mask halves them. The peak is that of the same threads' fused multiply-adds (bf16: pair products,
where the CPU has them), measured in short windows between the runs; for decoding it is reading memory. On a
GPU it is a loop of the fastest tensor-core instruction that the library has for it, or where the tensors,
read and written once, would take longer, a copy in device memory. The last lines name them.)");
  verb->callback([x] { bench(*x); });
}

}  // namespace tilewise::cli
