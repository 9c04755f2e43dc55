// From a Config to a cubin.
#pragma once

#include <string>
#include <vector>

#include "kernels/shared/config.h"

namespace tilewise::cuda {

// What NVRTC made of one Config for one target, and what its assembler said about it.
struct CompiledKernel {
  std::string cubin;
  std::string symbol;  // the kernel's name in the cubin
  int registers = 0;   // a thread
  int stack_bytes = 0;
  int spill_bytes = 0;      // stores and loads
  bool serialized = false;  // wgmma instructions wait for each other (C75xx)
  std::string warnings;     // NVRTC's, verbatim
  double seconds = 0;       // of compilation
};

// The program NVRTC compiles: an include and one Config. `kernel_expression` names its instantiated kernel.
std::string kernel_source(const Config& config);
std::string kernel_expression(const Config& config);
std::vector<std::string> compile_options(const std::string& target);

// `target`: "sm_80", "sm_90a". Throws Error(TW_COMPILER_ERROR) with NVRTC's words.
CompiledKernel compile_kernel(const Config& config, const std::string& target);

// Fills registers, spills, serialized and warnings from NVRTC's log.
void read_compiler_log(const std::string& log, CompiledKernel& kernel);

}  // namespace tilewise::cuda
