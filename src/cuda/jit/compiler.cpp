#include "cuda/jit/compiler.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <sstream>

#include "core/error.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/jit/bundle.h"
#include "cuda/jit/config_text.h"

namespace tilewise::cuda {
namespace {

// Where the kernels live: the file that defines one, and its name.
struct Entry {
  Family family;
  Kernel kernel;
  const char* header;
  const char* function;
};

constexpr Entry kEntries[] = {
    {Family::wgmma, Kernel::forward, "kernels/wgmma/fwd.cuh", "tilewise::wgmma::forward"},
    {Family::mma, Kernel::backward, "kernels/mma/bwd.cuh", "tilewise::mma::backward"},
    {Family::mma, Kernel::backward_prepare, "kernels/common/bwd_prepare.cuh",
     "tilewise::common::bwd_prepare"},
    {Family::mma, Kernel::backward_sink, "kernels/common/bwd_prepare.cuh", "tilewise::common::reduce_sink"},
    {Family::mma, Kernel::backward_statistics, "kernels/mma/bwd_statistics.cuh",
     "tilewise::mma::backward_statistics"},
    {Family::mma, Kernel::backward_dq, "kernels/mma/bwd_dq.cuh", "tilewise::mma::backward_dq"},
    {Family::mma, Kernel::backward_repair, "kernels/mma/bwd_repair.cuh", "tilewise::mma::backward_repair"},
    {Family::mma, Kernel::backward_convert, "kernels/common/bwd_convert.cuh",
     "tilewise::common::bwd_convert"},
    {Family::mma, Kernel::backward_dbias, "kernels/common/bwd_convert.cuh",
     "tilewise::common::convert_dbias"},
    {Family::mma, Kernel::forward, "kernels/mma/fwd.cuh", "tilewise::mma::forward"},
    {Family::mma, Kernel::wide_forward, "kernels/mma/wide_fwd.cuh", "tilewise::mma::wide_forward"},
    {Family::mma, Kernel::wide_dkv, "kernels/mma/wide_bwd.cuh", "tilewise::mma::wide_dkv"},
    {Family::mma, Kernel::wide_dbias, "kernels/mma/wide_bwd.cuh", "tilewise::mma::wide_dbias"},
    {Family::mma, Kernel::wide_dq, "kernels/mma/wide_bwd.cuh", "tilewise::mma::wide_dq"},
    {Family::unfused, Kernel::product_nt, "kernels/baseline/unfused.cuh", "tilewise::baseline::product_nt"},
    {Family::unfused, Kernel::product_nn, "kernels/baseline/unfused.cuh", "tilewise::baseline::product_nn"},
    {Family::unfused, Kernel::product_tn, "kernels/baseline/unfused.cuh", "tilewise::baseline::product_tn"},
    {Family::unfused, Kernel::softmax, "kernels/baseline/unfused.cuh", "tilewise::baseline::softmax"},
    {Family::unfused, Kernel::softmax_backward, "kernels/baseline/unfused.cuh",
     "tilewise::baseline::softmax_backward"},
    {Family::fa1, Kernel::forward, "kernels/baseline/fa1_fwd.cuh", "tilewise::baseline::fa1_forward"},
    {Family::fa1, Kernel::backward, "kernels/baseline/fa1_bwd.cuh", "tilewise::baseline::fa1_backward"},
    {Family::fa1, Kernel::backward_prepare, "kernels/common/bwd_prepare.cuh",
     "tilewise::common::bwd_prepare"},
    {Family::common, Kernel::combine_splits, "kernels/common/combine_splits.cuh",
     "tilewise::common::combine_splits"},
    {Family::mma, Kernel::product_rate, "kernels/common/product_rate.cuh", "tilewise::common::mma_rate"},
    {Family::wgmma, Kernel::product_rate, "kernels/common/product_rate.cuh", "tilewise::common::wgmma_rate"},
    {Family::common, Kernel::uncovered, "kernels/common/uncovered.cuh", "tilewise::common::uncovered"},
};

const Entry& entry_of(const Config& config) {
  for (const Entry& e : kEntries)
    if (e.family == config.family && e.kernel == config.kernel) return e;
  fail(TW_INTERNAL, "no kernel for ", config_text(config));
}

// The log's first errors: enough to act on, short enough for a message.
std::string first_errors(const std::string& log) {
  std::istringstream lines(log);
  std::string line, text;
  int count = 0;
  while (std::getline(lines, line) && count < 3)
    if (line.find("error") != std::string::npos) text += (count++ ? "; " : "") + line;
  return count ? text : log.substr(0, 400);
}

}  // namespace

std::string kernel_source(const Config& config) {
  return cat("#include \"", entry_of(config).header, "\"\n\nnamespace tilewise {\nconstexpr ",
             "Config kConfig = ", config_text(config), ";\n}\n");
}

std::string kernel_expression(const Config& config) {
  return cat(entry_of(config).function, "<tilewise::kConfig>");
}

std::vector<std::string> compile_options(const std::string& target) {
  return {"--gpu-architecture=" + target, "--std=c++20", "--device-as-default-execution-space",
          "--ptxas-options=--verbose"};
}

void read_compiler_log(const std::string& log, CompiledKernel& kernel) {
  std::istringstream lines(log);
  std::string line;
  while (std::getline(lines, line)) {
    int a = 0, b = 0, c = 0;
    if (const char* used = std::strstr(line.c_str(), "Used ");
        used && std::sscanf(used, "Used %d registers", &a) == 1)
      kernel.registers = std::max(kernel.registers, a);
    else if (const size_t stack = line.find(" bytes stack frame");  // after a prefix that versions differ in
             stack != std::string::npos &&
             std::sscanf(line.c_str() + line.find_last_not_of("0123456789", stack - 1) + 1,
                         "%d bytes stack frame, %d bytes spill stores, %d bytes spill loads", &a, &b,
                         &c) == 3)
      kernel.stack_bytes = std::max(kernel.stack_bytes, a), kernel.spill_bytes += b + c;
    if (line.find("(C75") != std::string::npos) kernel.serialized = true;
    if (line.find("warning") != std::string::npos || line.find("(C75") != std::string::npos)
      kernel.warnings += line + "\n";
  }
}

CompiledKernel compile_kernel(const Config& config, const std::string& target) {
  const auto begin = std::chrono::steady_clock::now();
  NvrtcResult result = nvrtc_compile(kernel_source(config), "tilewise_kernel.cu", kernel_bundle(),
                                     compile_options(target), kernel_expression(config));
  if (!result.ok)
    fail(TW_COMPILER_ERROR, "NVRTC ", nvrtc_state().major, ".", nvrtc_state().minor, " (", nvrtc_state().path,
         ") refuses the kernel ", config_summary(config), " for ", target, ": ", first_errors(result.log));
  CompiledKernel kernel;
  kernel.cubin = std::move(result.cubin);
  kernel.symbol = std::move(result.symbol);
  read_compiler_log(result.log, kernel);
  kernel.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return kernel;
}

}  // namespace tilewise::cuda
