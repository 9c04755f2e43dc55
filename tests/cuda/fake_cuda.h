// A stand-in for libcuda: devices that remember what was asked of them. Its memory is host memory; its
// kernels do nothing. Grids that the driver refuses it refuses as well: empty ones, and what a dimension
// cannot hold.
//   FAKE_CUDA_DEVICES   their compute capabilities, "90" when unset, "80 90" for two
//   FAKE_CUDA_VERSION   13000 when unset
//   FAKE_CUDA_NO_IDS    contexts have no numbers
//   FAKE_CUDA_FAIL      "symbol=code ...": these functions fail
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace fake_cuda {

struct Launch {
  std::string kernel;
  unsigned grid[3], threads, shared_bytes, cluster;
  void* stream;
  int device;
  std::vector<unsigned char> argument;  // one of them, `argument_bytes` of it
  const void* graph;                    // the executable that it came with, or null
};

struct Graphs {
  int graphs = 0, executables = 0;  // that there are
  int made = 0, parameters_set = 0;
};

inline void* const kPerThread = reinterpret_cast<void*>(2);  // another stream for each thread
inline void* const kGreen = reinterpret_cast<void*>(64);     // a stream of a green context

// Exported by the library with C linkage:
//   fake_cuda_launches()   std::vector<Launch>*, what was launched so far
//   fake_cuda_calls()      std::set<std::string>*, the functions called so far that could fail
//   fake_cuda_argument_bytes(size_t)   how much of an argument of the launches to come is kept
//   fake_cuda_argument_index(size_t)   which argument; the first when unset
//   fake_cuda_fail(const char*)        as FAKE_CUDA_FAIL; "" = nothing fails
//   fake_cuda_graphs()     Graphs*
//   fake_cuda_capture(void*)           the stream that is being captured; null = none
//   fake_cuda_primary_active(int)      0: the primary contexts are gone
// A second library, fake_cuda_without_graphs, lacks the graphs' functions.

}  // namespace fake_cuda
