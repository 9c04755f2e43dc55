// What a cubin's machine code says about its loops, read from the instructions' bits: without a disassembler,
// which no machine of ours must have.
#pragma once

#include <string>

namespace tilewise::cuda {

struct LoopFacts {
  int products = 0;           // tensor-core instructions
  int products_in_loop = 0;   // those inside a loop
  int moved_descriptors = 0;  // moves to uniform registers between wgmmas that follow each other
  int local_in_loop = 0;      // accesses of local memory in loops that have such instructions
};

// arch: 80, 90, ...: encodings differ. Throws std::runtime_error on what is no cubin.
LoopFacts loop_facts(const std::string& cubin, int arch);

}  // namespace tilewise::cuda
