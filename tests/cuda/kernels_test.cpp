// The listed kernels through NVRTC, which needs no GPU: each must compile, keep wgmma asynchronous and its
// descriptors in uniform registers, use the registers that golden_kernels.txt says, and touch no local memory
// in a loop of products (sass.h). Kernels that spill outside such a loop stand by name in known_spills.txt,
// with how many bytes, and "+n" where n accesses are in the loop all the same; one that has got better must
// be struck off. TILEWISE_WRITE_GOLDEN=FILE and TILEWISE_WRITE_SPILLS=FILE write the tables anew.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "core/error.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/jit/compiler.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernels.h"
#include "plan/cuda.h"
#include "sass.h"

namespace tilewise::cuda {
namespace {

constexpr int kArchs[] = {80, 86, 89, 90, 100, 120};

// "sm_80 mma forward bf16 ..." -> registers, or bytes; of the compiler that the first line names.
struct Table {
  explicit Table(const char* path) {
    std::ifstream file(path);
    std::string line;
    while (std::getline(file, line)) {
      if (line.rfind("nvrtc ", 0) == 0) nvrtc = line.substr(6);
      const size_t tab = line.find('\t');
      if (tab == std::string::npos) continue;
      const std::string name = line.substr(tab + 1);
      size_t end = 0;
      EXPECT_TRUE(number.emplace(name, std::stoi(line, &end)).second) << path << ": twice: " << line;
      if (line[end] == '+') in_loop[name] = std::stoi(line.substr(end + 1));
    }
  }
  std::string nvrtc;
  std::map<std::string, int> number, in_loop;
};

int value(const std::map<std::string, int>& numbers, const std::string& name) {
  const auto at = numbers.find(name);
  return at == numbers.end() ? 0 : at->second;
}

std::ofstream written_table(const char* variable, const std::string& nvrtc) {
  std::ofstream file;
  if (const char* path = std::getenv(variable)) {
    file.open(path, std::ios::app);
    if (file.tellp() == 0) file << "nvrtc " << nvrtc << "\n";
  }
  return file;
}

// What runs by default is a sample: every family, pass and element type, the head dims people use.
// TILEWISE_ALL_KERNELS (the test labelled slow) runs all, TILEWISE_KERNELS=TEXT those whose summary has TEXT.
bool in_sample(const Config& c, int arch) {
  if (const char* part = std::getenv("TILEWISE_KERNELS"))
    return config_summary(c).find(part) != std::string::npos;
  if (std::getenv("TILEWISE_ALL_KERNELS")) return true;
  const bool baseline = c.family == Family::unfused || c.family == Family::fa1;
  const bool plain = !c.varlen && !c.softcap && !c.alibi && !c.bias && !c.boolean_mask && !c.dropout &&
                     (!c.deterministic || baseline) && !c.dbias;
  const bool no_mask = c.kernel == Kernel::backward_prepare || c.kernel == Kernel::backward_convert;
  const bool masked = c.masked || no_mask || baseline;  // those need not look at one
  const bool usual = plain && masked && c.d == 128 && c.element == Element::bf16;
  if (arch == 80 || arch == 90)
    return usual || c.family == Family::common || c.kernel == Kernel::product_rate ||
           (plain && masked && c.d == 64 && c.element != Element::fp16);
  return usual;
}

class KernelsOf : public testing::TestWithParam<int> {};

TEST_P(KernelsOf, CompileWithoutSpillsAsTheGoldenTableSays) {
  if (!nvrtc_state().usable) GTEST_SKIP() << nvrtc_state().why_not;
  const Table golden(GOLDEN_KERNELS), spills(KNOWN_SPILLS);
  const std::string nvrtc = cat(nvrtc_state().major, ".", nvrtc_state().minor);
  std::ofstream new_golden = written_table("TILEWISE_WRITE_GOLDEN", nvrtc),
                new_spills = written_table("TILEWISE_WRITE_SPILLS", nvrtc);
  int compiled = 0;
  for (const Config& c : plan::listed_kernels(GetParam())) {
    if (!in_sample(c, GetParam())) continue;
    const std::string target = targets_for(c.family, GetParam()).front();
    const std::string name = target + " " + config_summary(c);
    const CompiledKernel k = compile_kernel(c, target);
    ++compiled;
    EXPECT_FALSE(k.serialized) << name << "\n" << k.warnings;
    if (new_golden.is_open()) new_golden << k.registers << "\t" << name << std::endl;
    const LoopFacts loop = loop_facts(k.cubin, GetParam());
    const int in_loop = k.spill_bytes ? loop.local_in_loop : 0;  // else it is no spill but an array
    EXPECT_EQ(loop.products > 0, loop.products_in_loop > 0) << name << ": where is its main loop?";
    // Where ptxas takes the warps of a warpgroup to have diverged, it moves the descriptors for each wgmma.
    if (c.kernel == Kernel::forward)
      EXPECT_LE(4 * loop.moved_descriptors, loop.products) << name << ": descriptors in ordinary registers";
    if (new_spills.is_open()) {
      if (k.spill_bytes)
        new_spills << k.spill_bytes << (in_loop ? cat("+", in_loop) : "") << "\t" << name << std::endl;
    } else {
      EXPECT_LE(k.spill_bytes, value(spills.number, name)) << name;
      EXPECT_LE(in_loop, value(spills.in_loop, name)) << name;
      if (spills.number.count(name) && nvrtc == spills.nvrtc) {
        EXPECT_GT(k.spill_bytes, 0) << name << " spills no more: strike it off known_spills.txt";
      }
    }
    if (nvrtc != golden.nvrtc || new_golden.is_open()) continue;  // registers are this compiler's own
    const auto known = golden.number.find(name);
    if (known == golden.number.end())
      ADD_FAILURE() << name << " is not in golden_kernels.txt: " << k.registers << " registers";
    else
      EXPECT_EQ(k.registers, known->second) << name;
  }
  EXPECT_GE(compiled, 5);
}

INSTANTIATE_TEST_SUITE_P(Arch, KernelsOf, testing::ValuesIn(kArchs), testing::PrintToStringParamName());

// What the check of loops finds where there is something to find: half the registers that the tile needs.
TEST_P(KernelsOf, SpillsInALoopAreSeen) {
  if (!nvrtc_state().usable) GTEST_SKIP() << nvrtc_state().why_not;
  Config c;
  c.min_blocks = 4;
  const CompiledKernel k = compile_kernel(c, targets_for(c.family, GetParam()).front());
  EXPECT_GT(k.spill_bytes, 100);
  EXPECT_GT(loop_facts(k.cubin, GetParam()).local_in_loop, 20);
}

// The list of exceptions names kernels that exist.
TEST(Kernels, KnownSpillsAreListedKernels) {
  std::set<std::string> names;
  for (int arch : kArchs)
    for (const Config& c : plan::listed_kernels(arch))
      names.insert(targets_for(c.family, arch).front() + " " + config_summary(c));
  for (const auto& [name, bytes] : Table(KNOWN_SPILLS).number) EXPECT_TRUE(names.count(name)) << name;
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
