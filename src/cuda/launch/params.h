// What the kernels read, from a checked problem.
#pragma once

#include <array>
#include <atomic>

#include "core/problem.h"
#include "kernels/shared/config.h"

namespace tilewise::cuda {

Element element_of(tw_dtype dtype);

// Everything but the workspace pointers, which the family that owns the workspace fills.
AttentionParams attention_params(const Problem& p);

// The pointers that a plan has found to be its device's memory, one place a tensor: the driver takes a third
// of a microsecond to say whose a pointer is, and calls repeat.
class KnownPointers {
 public:
  // Refuses pointers that are not memory of the problem's device, by name; also of the workspace when there
  // is one. A kernel that read host memory would take the whole context down.
  void check(const Problem& p, const void* workspace);

 private:
  static constexpr size_t kPlaces = 22;
  std::array<std::atomic<const void*>, kPlaces> known_{};
};

// Refuses q, k, v and dout that do not begin at a multiple of 16 bytes, which a plan made without their
// addresses took for granted.
void check_alignment(const Problem& p);

}  // namespace tilewise::cuda
