// The kernels of this process: each is found (pack, cache) or compiled once, and loaded once into each
// context.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cuda/driver/driver.h"
#include "cuda/jit/compiler.h"

namespace tilewise::cuda {

// Compilation targets whose code runs on a GPU of compute capability `capability`, best first: the exact one,
// then older ones of the same generation. The wgmma family has one: sm_90a.
std::vector<std::string> targets_for(Family family, int capability);

// Where a kernel would come from now.
enum class Origin { memory, pack, cache, compiler, nowhere };
const char* name_of(Origin origin);

struct FoundKernel {
  std::shared_ptr<const CompiledKernel> kernel;  // null when it has yet to be compiled
  Origin origin = Origin::nowhere;
  std::string target;  // of `kernel`, or what it would be compiled for
};

// Looks without compiling.
FoundKernel look_up_kernel(const Config& config, int capability);

// Looks, and compiles when that is needed and allowed (TILEWISE_JIT is not off). Threads that ask for one
// kernel wait for one compilation; different kernels compile side by side.
FoundKernel obtain_kernel(const Config& config, int capability);

// obtain_kernel(), loaded into the current context of `device`. The same Function for every caller in that
// context.
Function load_kernel(const Config& config, const Device& device, uint64_t context, int shared_bytes);

}  // namespace tilewise::cuda
