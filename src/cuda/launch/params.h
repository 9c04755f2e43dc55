// What the kernels read, from a checked problem.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/problem.h"
#include "kernels/shared/config.h"

namespace tilewise::cuda {

Element element_of(tw_dtype dtype);

// Everything but the workspace pointers, which the family that owns the workspace fills.
AttentionParams attention_params(const Problem& p);

// The pages of memory that a plan has found to be its device's. The driver takes up to a quarter of a
// microsecond to say whose a pointer is; it gives out device memory in pages of 2 MiB, each of one device,
// and calls come back to them, with other tensors too.
class KnownMemory {
 public:
  // Refuses pointers that are not memory of the problem's device, by name; also of the workspace when there
  // is one. A kernel that read host memory would take the whole context down.
  void check(const Problem& p, const void* workspace);

 private:
  static constexpr uintptr_t kPageBytes = uintptr_t{2} << 20;
  static constexpr int kPlaceBits = 6;
  std::array<std::atomic<uintptr_t>, 1 << kPlaceBits> pages_{};  // page number + 1, each at its hash
};

// Refuses q, k, v and dout that do not begin at a multiple of 16 bytes, which a plan made without their
// addresses took for granted.
void check_alignment(const Problem& p);

}  // namespace tilewise::cuda
