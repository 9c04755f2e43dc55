// What the planner knows of a CPU and what it decides for one.
#pragma once

#include <string>
#include <vector>

namespace tilewise::plan {

struct CpuIsa {
  std::string name;     // "scalar", "avx2", "avx512", "avx512_bf16", "neon"
  bool built = false;   // compiled into this library
  bool usable = false;  // built, and this processor and operating system have it
};

struct CpuMachine {
  std::vector<CpuIsa> isas;  // best last
  int threads = 1;           // cores this process may use
  std::string forced_isa;    // TILEWISE_ISA
};

enum class CpuStrategy {
  tiles,   // one task = a block of queries of one head
  decode,  // few queries, many keys: tasks are chunks of keys, merged in a fixed order
};

// Most queries of a sequence, and most (query head, query) rows that share a key/value head, for decode:
// beyond it a tile of queries is well enough filled to be faster.
inline constexpr int kDecodeQueries = 8, kDecodeRows = 64;
inline constexpr int kDecodeKeys = 512;  // fewest keys for decode when lse is wanted too

struct CpuChoice {
  std::string isa;
  CpuStrategy strategy = CpuStrategy::tiles;
  int threads = 1;
};

}  // namespace tilewise::plan
