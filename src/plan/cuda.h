// What the planner knows of a GPU and what it decides for one.
#pragma once

#include <string>
#include <vector>

#include "kernels/shared/config.h"

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
  std::vector<Config> kernels;  // in launch order
};

}  // namespace tilewise::plan
