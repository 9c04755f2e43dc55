// The listed kernels through NVRTC, which needs no GPU: each must compile in time, keep wgmma asynchronous
// and its descriptors in uniform registers, use the registers and the shared memory that golden_kernels.txt
// says, and touch no local memory in a loop of products (sass.h). Kernels that spill outside such a loop
// stand by name in known_spills.txt, with how many bytes; one that has got better must be struck off.
// TILEWISE_WRITE_GOLDEN=FILE and TILEWISE_WRITE_SPILLS=FILE write the tables anew.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <sstream>
#include <utility>

#include "core/error.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/jit/compiler.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernels.h"
#include "kernels/baseline/fa1.h"
#include "kernels/mma/backward_tiles.h"
#include "kernels/mma/tiles.h"
#include "kernels/mma/wide.h"
#include "kernels/wgmma/launch.h"
#include "plan/cuda.h"
#include "sass.h"

namespace tilewise::cuda {
namespace {

constexpr int kArchs[] = {80, 86, 89, 90, 100, 120};

// The processor time that one kernel may take, on the 2-core x86 that ran this.
constexpr double kSeconds = 2;

// "sm_80 mma forward bf16 ..." -> registers and bytes of dynamic shared memory, or bytes of spills; of the
// compiler that the first line names.
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
      if (line[end] == ' ') shared[name] = std::stoi(line.substr(end));
    }
  }
  std::string nvrtc;
  std::map<std::string, int> number, shared;
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

// Bytes of dynamic shared memory; 0 for the small kernels around the main ones.
int shared_bytes(const Config& c) {
  if (c.family == Family::wgmma && c.kernel == Kernel::forward) return wgmma::forward_smem_bytes(c);
  if (c.family == Family::fa1 && c.kernel == Kernel::forward) return baseline::fa1_forward_smem_bytes(c);
  if (c.family == Family::fa1 && c.kernel == Kernel::backward) return baseline::fa1_backward_smem_bytes(c);
  if (c.family != Family::mma) return 0;
  switch (c.kernel) {
    case Kernel::forward: return mma::forward_smem_bytes(c);
    case Kernel::backward: return mma::backward_smem_bytes(c);
    case Kernel::backward_dq: return mma::backward_dq_smem_bytes(c);
    case Kernel::wide_forward:
    case Kernel::wide_dkv:
    case Kernel::wide_dq:
    case Kernel::wide_dbias: return mma::wide_smem_bytes(c);
    default: return 0;
  }
}

// A kernel and the processor time that NVRTC took for it: of up to three attempts the least, because
// neighbours on the same core and cache add to it.
std::pair<CompiledKernel, double> compile_in_time(const Config& c, const std::string& target) {
  CompiledKernel kernel;
  double least = 1e9;
  for (int attempt = 0; attempt < 3 && least > kSeconds; ++attempt) {
    const std::clock_t begin = std::clock();
    kernel = compile_kernel(c, target);
    least = std::min(least, double(std::clock() - begin) / CLOCKS_PER_SEC);
  }
  return {kernel, least};
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

// Accesses of local memory in loops of products: spills, and arrays whose index is no constant. wgmma's
// forward has such an array by design, of a block that it computes again; cold.
int local_in_loop(const Config& c, const CompiledKernel& k, int arch) {
  return c.family == Family::wgmma && !k.spill_bytes ? 0 : loop_facts(k.cubin, arch).local_in_loop;
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
    const auto [k, seconds] = compile_in_time(c, target);
    ++compiled;
    if (std::getenv("TILEWISE_ALL_KERNELS")) EXPECT_LE(seconds, kSeconds) << name;
    EXPECT_FALSE(k.serialized) << name << "\n" << k.warnings;
    const int shared = shared_bytes(c);
    EXPECT_LE(shared, plan::machine_of_arch(GetParam()).shared_memory) << name;
    if (new_golden.is_open()) new_golden << k.registers << " " << shared << "\t" << name << std::endl;
    const LoopFacts loop = loop_facts(k.cubin, GetParam());
    EXPECT_EQ(local_in_loop(c, k, GetParam()), 0) << name << ": local memory in its main loop";
    EXPECT_EQ(loop.products > 0, loop.products_in_loop > 0) << name << ": where is its main loop?";
    // Where ptxas takes the warps of a warpgroup to have diverged, it moves the descriptors for each wgmma.
    if (c.kernel == Kernel::forward)
      EXPECT_LE(4 * loop.moved_descriptors, loop.products) << name << ": descriptors in ordinary registers";
    if (new_spills.is_open()) {
      if (k.spill_bytes) new_spills << k.spill_bytes << "\t" << name << std::endl;
    } else {
      EXPECT_LE(k.spill_bytes, value(spills.number, name)) << name;
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
    EXPECT_EQ(shared, value(golden.shared, name)) << name;
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

// What nobody lists: every feature at once, with lengths.
std::vector<Config> kernels_with_everything(int arch, Element element, int D, bool masked, bool strided) {
  Config c;
  c.element = element, c.masked = masked;
  c.softcap = c.alibi = c.bias = c.boolean_mask = c.dropout = c.varlen = true;
  Config tma = c;
  c.strided = strided;
  const mma::TileRoom room{int(plan::machine_of_arch(arch).shared_memory), arch};
  std::vector<Config> list;
  if (arch == 90 && !strided && wgmma::choose_forward_tiles(tma, D, D, 1024, 1024)) list.push_back(tma);
  Config forward = c, backward = c, dq = c;
  backward.dbias = true;
  if (mma::choose_forward_tiles(forward, D, D, room)) list.push_back(forward);
  if (mma::choose_backward_tiles(backward, D, D, room)) {
    list.push_back(backward);
    dq.deterministic = true;
    if (mma::choose_backward_dq_tiles(dq, D, D, room.shared_memory)) list.push_back(dq);
  }
  for (Kernel kernel : {Kernel::wide_forward, Kernel::wide_dkv, Kernel::wide_dq, Kernel::wide_dbias}) {
    if (D != 256) continue;  // they are for any head dim
    list.push_back(c);
    list.back().dbias = kernel == Kernel::wide_dkv;
    mma::choose_wide_tiles(list.back(), kernel);
  }
  return list;
}

TEST_P(KernelsOf, EverythingAtOnceKeepsLocalMemoryOutOfLoops) {
  if (!nvrtc_state().usable) GTEST_SKIP() << nvrtc_state().why_not;
  const bool all = std::getenv("TILEWISE_ALL_KERNELS");
  for (Element element : {Element::bf16, Element::fp32})
    for (int D : {32, 64, 96, 128, 192, 256})
      for (const auto& [masked, strided] : {std::pair{true, false}, {true, true}, {false, true}}) {
        if (!all && (element != Element::bf16 || (D != 64 && D != 128) || strided)) continue;
        for (const Config& c : kernels_with_everything(GetParam(), element, D, masked, strided)) {
          const CompiledKernel k = compile_kernel(c, targets_for(c.family, GetParam()).front());
          EXPECT_EQ(local_in_loop(c, k, GetParam()), 0) << GetParam() << " " << config_summary(c);
          EXPECT_TRUE(c.family != Family::wgmma || k.spill_bytes == 0) << config_summary(c);
        }
      }
}

// A kernel of mma.sync with any features; nothing where no tile holds its head dims.
std::optional<Config> random_kernel(int arch, std::mt19937& random) {
  const auto below = [&](size_t n) { return int(random() % n); };
  constexpr int kDims[] = {32, 64, 96, 128, 192, 256};
  constexpr Kernel kKernels[] = {Kernel::forward,     Kernel::backward,     Kernel::backward,
                                 Kernel::backward_dq, Kernel::wide_forward, Kernel::wide_dkv,
                                 Kernel::wide_dq,     Kernel::wide_dbias};
  const mma::TileRoom room{int(plan::machine_of_arch(arch).shared_memory), arch};
  Config c;
  c.element = Element(below(3));
  for (bool* feature :
       {&c.masked, &c.softcap, &c.alibi, &c.bias, &c.boolean_mask, &c.dropout, &c.varlen, &c.strided})
    *feature = below(2);
  const Kernel kernel = kKernels[below(std::size(kKernels))];
  const int D = kDims[below(std::size(kDims))], Dv = below(4) ? D : kDims[below(std::size(kDims))];
  c.deterministic = kernel == Kernel::backward_dq || (kernel == Kernel::backward && below(2));
  c.dbias = (kernel == Kernel::backward || kernel == Kernel::wide_dkv) && c.bias && below(2);
  Config backward = c;
  const bool has_backward = mma::choose_backward_tiles(backward, D, Dv, room);
  switch (kernel) {
    case Kernel::forward: return mma::choose_forward_tiles(c, D, Dv, room) ? std::optional(c) : std::nullopt;
    case Kernel::backward: return has_backward ? std::optional(backward) : std::nullopt;
    case Kernel::backward_dq:
      return has_backward && mma::choose_backward_dq_tiles(c, D, Dv, room.shared_memory) ? std::optional(c)
                                                                                         : std::nullopt;
    default: mma::choose_wide_tiles(c, kernel); return c;
  }
}

// A sample of what nobody lists, always the same; TILEWISE_RANDOM_KERNELS=N takes N kernels of it.
TEST_P(KernelsOf, AnyFeaturesKeepLocalMemoryOutOfLoops) {
  if (!nvrtc_state().usable) GTEST_SKIP() << nvrtc_state().why_not;
  const char* wish = std::getenv("TILEWISE_RANDOM_KERNELS");
  const int count = wish ? std::atoi(wish) : std::getenv("TILEWISE_ALL_KERNELS") ? 40 : 3;
  std::mt19937 random{unsigned(GetParam())};
  for (int n = 0; n < count; ++n) {
    const std::optional<Config> c = random_kernel(GetParam(), random);
    if (!c) continue;
    const CompiledKernel k = compile_kernel(*c, targets_for(c->family, GetParam()).front());
    EXPECT_EQ(local_in_loop(*c, k, GetParam()), 0) << GetParam() << " " << config_summary(*c);
  }
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
