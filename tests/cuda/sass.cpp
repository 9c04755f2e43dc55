#include "sass.h"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

namespace tilewise::cuda {
namespace {

struct Instruction {
  uint64_t low, high;
  // The low 12 bits tell the operation and the kind of its operands.
  int operation() const { return int(low & 0xFFF); }
  bool unconditional() const {  // the guard is PT, and so is a branch's second predicate
    return (low >> 12 & 15) == 7 && (high >> 23 & 15) == 7;
  }
};
static_assert(sizeof(Instruction) == 16);

enum Operation {
  kHmma = 0x23C,
  kHgmma = 0x9F0,
  kHgmmaRegister = 0xDF0,
  kLoadLocal = 0x983,
  kStoreLocal = 0x387,
  kToUniform = 0x2CA,  // R2UR
  kBranch = 0x947,
  kBranchUniform = 0x547,
  kCall = 0x944,  // ptxas also leaves loops by it (CALL.REL.NOINC)
  kReturn = 0x950,
  kExit = 0x94D,
};

// The instructions that may come after number k.
std::vector<int> successors(const std::vector<Instruction>& code, int k, int arch) {
  const Instruction& x = code[size_t(k)];
  const int n = int(code.size()), op = x.operation();
  std::vector<int> next;
  if (op == kBranch || op == kBranchUniform || op == kCall) {
    int64_t words = int64_t(x.low >> 34 | x.high << 30) << 16 >> 16;  // of 4 bytes, from the next instruction
    if (arch >= 90) words = words * 256 + int64_t(x.low >> 16 & 255);
    const int64_t target = k + 1 + words / 4;
    if (target >= 0 && target < n) next.push_back(int(target));
    if (op == kBranch && x.unconditional()) return next;
  } else if ((op == kExit || op == kReturn) && (x.low >> 12 & 15) == 7) {
    return next;
  }
  if (k + 1 < n) next.push_back(k + 1);
  return next;
}

// For every instruction the number of its strongly connected component (Tarjan's algorithm): those of a loop
// share one.
std::vector<int> components(const std::vector<std::vector<int>>& next) {
  const size_t n = next.size();
  std::vector<int> order(n, -1), low(n), component(n, -1), stack, path;
  std::vector<size_t> tried(n);
  int time = 0, count = 0;
  for (size_t root = 0; root < n; ++root) {
    if (order[root] < 0) path.push_back(int(root));
    while (!path.empty()) {
      const size_t v = size_t(path.back());
      if (order[v] < 0) order[v] = low[v] = time++, stack.push_back(int(v));
      if (tried[v] < next[v].size()) {
        const size_t u = size_t(next[v][tried[v]++]);
        if (order[u] < 0)
          path.push_back(int(u));
        else if (component[u] < 0)
          low[v] = std::min(low[v], order[u]);
        continue;
      }
      path.pop_back();
      if (!path.empty()) low[size_t(path.back())] = std::min(low[size_t(path.back())], low[v]);
      if (low[v] != order[v]) continue;
      for (int u = -1; u != int(v); stack.pop_back()) u = stack.back(), component[size_t(u)] = count;
      ++count;
    }
  }
  return component;
}

void add_function(LoopFacts& facts, const std::vector<Instruction>& code, int arch) {
  std::vector<std::vector<int>> next;
  for (int k = 0; k < int(code.size()); ++k) next.push_back(successors(code, k, arch));
  const std::vector<int> component = components(next);
  std::vector<int> size(code.size()), products(code.size()), spills(code.size());
  for (size_t k = 0; k < code.size(); ++k) {
    const size_t c = size_t(component[k]);
    const int op = code[k].operation();
    ++size[c];
    products[c] += op == kHmma || op == kHgmma || op == kHgmmaRegister;
    spills[c] += op == kLoadLocal || op == kStoreLocal;
  }
  // Products of one chain follow each other closely.
  constexpr size_t kClose = 24;
  for (size_t k = 0, last = code.size(), moves = 0; k < code.size(); ++k) {
    const int op = code[k].operation();
    if (op == kToUniform) ++moves;
    if (op != kHgmma && op != kHgmmaRegister) continue;
    if (last < k && k - last < kClose) facts.moved_descriptors += int(moves);
    last = k, moves = 0;
  }
  for (size_t c = 0; c < code.size(); ++c) {
    facts.products += products[c];
    if (size[c] < 2 || !products[c]) continue;
    facts.products_in_loop += products[c];
    facts.local_in_loop += spills[c];
  }
}

template <class T>
T read(const std::string& bytes, size_t at) {
  if (at + sizeof(T) > bytes.size()) throw std::runtime_error("a cubin that ends too early");
  T x;
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}

}  // namespace

LoopFacts loop_facts(const std::string& cubin, int arch) {
  const auto header = read<Elf64_Ehdr>(cubin, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) throw std::runtime_error("no cubin");
  const auto section = [&](size_t i) {
    return read<Elf64_Shdr>(cubin, header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  const Elf64_Shdr names = section(header.e_shstrndx);
  LoopFacts facts;
  for (size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr s = section(i);
    if (cubin.compare(names.sh_offset + s.sh_name, 6, ".text.") != 0) continue;
    std::vector<Instruction> code;
    for (size_t at = 0; at + sizeof(Instruction) <= s.sh_size; at += sizeof(Instruction))
      code.push_back(read<Instruction>(cubin, s.sh_offset + at));
    add_function(facts, code, arch);
  }
  return facts;
}

}  // namespace tilewise::cuda
