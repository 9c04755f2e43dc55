// tilewise compile: builds GPU kernels ahead of time, on any machine with NVRTC, into the cache or into a
// pack.
#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <thread>

#include "cli/cli.h"
#include "cli/options.h"
#include "core/error.h"
#include "cuda/jit/cache.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernels.h"
#include "plan/cuda.h"

namespace tilewise::cli {
namespace {

struct Arguments {
  std::string archs, pack, dtype, dim;
  bool all = false;
  int jobs = 0;
};

struct Job {
  Config config;
  int arch;
};

// "sm_90a", "sm_90" or "90"
int read_arch(const std::string& text) {
  std::string digits = text.rfind("sm_", 0) == 0 ? text.substr(3) : text;
  if (!digits.empty() && digits.back() == 'a') digits.pop_back();
  const bool number =
      !digits.empty() && digits.size() <= 3 && digits.find_first_not_of("0123456789") == std::string::npos;
  const plan::CudaMachine m = plan::machine_of_arch(number ? std::stoi(digits) : 0);
  if (!m.unavailable.empty())
    invalid("--arch: '", text,
            "'; must be some of sm_80, sm_86, sm_87, sm_89, sm_90, sm_100, sm_103, sm_120, sm_121");
  return m.arch;
}

bool wanted(const Arguments& x, const Config& c) {
  const auto lists = [](const std::string& list, const std::string& item) {
    for (const std::string& s : split(list, ','))
      if (s == item) return true;
    return list.empty();
  };
  return lists(x.dtype, cuda::name_of(c.element)) &&
         (lists(x.dim, std::to_string(c.d)) || c.family == Family::common);
}

std::vector<Job> read_jobs(const Arguments& x) {
  std::vector<Job> jobs;
  if (!x.all && x.dtype.empty() && x.dim.empty())
    invalid("what to compile: give --all, or choose by --dtype and --dim");
  for (const std::string& text : split(x.archs, ',')) {
    const int arch = read_arch(text);
    for (const Config& c : plan::listed_kernels(arch))
      if (wanted(x, c)) jobs.push_back({c, arch});
  }
  return jobs;
}

void compile(const Arguments& x) {
  const std::vector<Job> jobs = read_jobs(x);
  const size_t workers = size_t(x.jobs > 0 ? x.jobs : int(std::max(1u, std::thread::hardware_concurrency())));
  std::vector<cuda::PackEntry> entries(jobs.size());
  std::atomic<size_t> next{0};
  std::mutex printing;
  std::string failure;
  const auto work = [&] {
    for (size_t i; (i = next++) < jobs.size();) {
      const Job& job = jobs[i];
      try {
        const cuda::FoundKernel found = cuda::obtain_kernel(job.config, job.arch);
        entries[i] = {cuda::kernel_key(job.config, found.target), *found.kernel};
        const std::lock_guard lock(printing);
        std::printf("%-8s %s: %d registers, %d bytes spilled, %.2f s, %s\n", found.target.c_str(),
                    cuda::config_summary(job.config).c_str(), found.kernel->registers,
                    found.kernel->spill_bytes, found.kernel->seconds, cuda::name_of(found.origin));
        std::fflush(stdout);
      } catch (const Error& e) {
        const std::lock_guard lock(printing);
        if (failure.empty()) failure = e.what();
        next = jobs.size();
      }
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(workers, jobs.size()); ++i) threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  if (!failure.empty()) fail(TW_COMPILER_ERROR, failure);
  if (!x.pack.empty()) cuda::write_pack(x.pack, entries);
  std::printf("%zu kernels in %s\n", jobs.size(),
              x.pack.empty() ? cuda::cache_folder().c_str() : x.pack.c_str());
}

}  // namespace

void add_compile(CLI::App& app) {
  auto x = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("compile", "Build GPU kernels ahead of time; needs NVRTC, but no GPU");
  verb->add_option("--arch", x->archs,
                   "sm_80, sm_86, sm_89, sm_90a, sm_100, sm_120, or several: sm_80,sm_90a")
      ->required();
  verb->add_flag("--all", x->all, "Every kernel that usual problems need");
  verb->add_option("--dtype", x->dtype, "Only these element types: bf16,fp16,fp32");
  verb->add_option("--dim", x->dim, "Only these head dims: 64,128");
  verb->add_option("--pack", x->pack,
                   "Write a pack, for TILEWISE_PACK or beside libtilewise.so, besides filling the cache")
      ->type_name("FILE");
  verb->add_option("--jobs", x->jobs, "Compilations side by side (default: all cores)");
  verb->footer(R"(Examples:
  tilewise compile --arch sm_90a --all --pack hopper.twpack
  tilewise compile --arch sm_80,sm_86 --dtype bf16 --dim 64,128)");
  verb->callback([x] { compile(*x); });
}

}  // namespace tilewise::cli
