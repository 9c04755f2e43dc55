// What the planner knows of a GPU and what it decides for one.
#pragma once

#include <string>
#include <vector>

#include "kernels/shared/config.h"

namespace tilewise {
struct Problem;
}

namespace tilewise::plan {

struct CudaMachine {
  std::string name;
  int arch = 0;  // 80, 86, 89, 90, 100, 120
  int multiprocessors = 0;
  int shared_memory = 0;  // bytes a thread block may have
  i64 l2_bytes = 0;
  std::string unavailable;  // why no GPU can be used; "" when one can
};

struct CudaChoice {
  Family family = Family::mma;
  std::vector<Config> kernels;     // the family's, in launch order
  std::vector<std::string> notes;  // what the user should know of them
};

// The names that force a CUDA algorithm, best first.
std::vector<std::string> cuda_algorithms();

// A GPU of this compute capability that need not be here: for compiling ahead of time. `unavailable` when
// there is no such GPU.
CudaMachine machine_of_arch(int arch);

// The kernels that a user of this GPU will meet: those of every algorithm over problems that vary element
// type, head dim, mask, layout and each feature, forward and backward. `tilewise compile --all` builds them,
// the tests compile them.
std::vector<Config> listed_kernels(int arch);

}  // namespace tilewise::plan
