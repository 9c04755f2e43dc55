// The listed kernels through NVRTC, which needs no GPU: each must compile, spill nothing, keep wgmma
// asynchronous, and use the registers and shared memory that golden_kernels.txt says.
// TILEWISE_WRITE_GOLDEN=FILE writes that table anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "core/error.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/jit/compiler.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernels.h"
#include "plan/cuda.h"

namespace tilewise::cuda {
namespace {

constexpr int kArchs[] = {80, 86, 89, 90, 100, 120};

// "sm_80 mma forward bf16 ..." -> registers
std::map<std::string, int> read_golden(std::string& nvrtc) {
  std::ifstream file(GOLDEN_KERNELS);
  std::map<std::string, int> golden;
  std::string line;
  while (std::getline(file, line)) {
    if (line.rfind("nvrtc ", 0) == 0) nvrtc = line.substr(6);
    const size_t tab = line.find('\t');
    if (tab != std::string::npos) golden[line.substr(tab + 1)] = std::stoi(line);
  }
  return golden;
}

// What runs by default is a sample: every family, pass and element type, the head dims people use.
// TILEWISE_ALL_KERNELS (the test labelled slow) runs all.
bool in_sample(const Config& c, int arch) {
  if (std::getenv("TILEWISE_ALL_KERNELS")) return true;
  const bool plain = !c.varlen && !c.softcap && !c.alibi && !c.bias && !c.boolean_mask && !c.dropout &&
                     !c.deterministic && !c.dbias;
  const bool no_mask = c.kernel == Kernel::backward_prepare || c.kernel == Kernel::backward_convert;
  const bool masked = c.masked || no_mask;  // those two never look at one
  const bool usual = plain && masked && c.d == 128 && c.element == Element::bf16;
  if (arch == 80 || arch == 90)
    return usual || c.family == Family::common ||
           (plain && masked && c.d == 64 && c.element != Element::fp16);
  return usual;
}

TEST(Kernels, CompileWithoutSpillsAsTheGoldenTableSays) {
  if (!nvrtc_state().usable) GTEST_SKIP() << nvrtc_state().why_not;
  std::string golden_nvrtc;
  const std::map<std::string, int> golden = read_golden(golden_nvrtc);
  const std::string nvrtc = cat(nvrtc_state().major, ".", nvrtc_state().minor);
  std::ofstream written;
  if (const char* path = std::getenv("TILEWISE_WRITE_GOLDEN")) {
    written.open(path);
    written << "nvrtc " << nvrtc << "\n";
  }
  int compiled = 0;
  for (int arch : kArchs)
    for (const Config& c : plan::listed_kernels(arch)) {
      if (!in_sample(c, arch)) continue;
      const std::string target = targets_for(c.family, arch).front();
      const std::string name = target + " " + config_summary(c);
      const CompiledKernel k = compile_kernel(c, target);
      ++compiled;
      // Three warpgroups have 160 registers a thread, and O alone takes 128 at Dv 256: what little these
      // wgmma kernels spill lies around their cold paths. Bias and boolean masks load an element a score
      // between the products.
      const bool wgmma = c.family == Family::wgmma;
      const bool loads = wgmma && (c.bias || c.boolean_mask), tight = wgmma && (c.warps == 12 || c.dv > 128);
      EXPECT_LE(k.spill_bytes, loads ? 2048 : tight ? 256 : 0) << name;
      EXPECT_FALSE(k.serialized) << name << "\n" << k.warnings;
      if (written.is_open()) written << k.registers << "\t" << name << std::endl;
      if (nvrtc != golden_nvrtc || written.is_open()) continue;  // registers are this compiler's own
      const auto known = golden.find(name);
      if (known == golden.end())
        ADD_FAILURE() << name << " is not in golden_kernels.txt: " << k.registers << " registers";
      else
        EXPECT_EQ(k.registers, known->second) << name;
    }
  EXPECT_GT(compiled, 20);
}

TEST(Kernels, EveryListedKernelFitsItsGpu) {
  for (int arch : kArchs) {
    const std::vector<Config> list = plan::listed_kernels(arch);
    EXPECT_GT(list.size(), 100u) << arch;
    for (const Config& c : list) EXPECT_NO_THROW(kernel_source(c)) << config_text(c);
  }
}

}  // namespace
}  // namespace tilewise::cuda
