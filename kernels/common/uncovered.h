// Arguments and launch of common/uncovered.cuh, for the host and the kernel.
#pragma once

#include "../shared/params.h"

namespace tilewise::common {

// Output rows that no sequence covers: those past the last offset of a packed tensor, and those of a slot
// past its used length.
struct UncoveredParams {
  void* tensor;  // (B, S, H, columns), or packed (rows, H, columns)
  Strides stride;
  float* lse;  // or null; its uncovered rows become -inf
  i64 lse_b, lse_h, lse_s;
  i32 B, S, H, columns;        // S: of a slot when not packed
  const void *offsets, *used;  // neither: all rows are cleared
  i32 offsets_are_64, used_are_64;
  i64 offsets_stride, used_stride;
  i64 rows;  // of the tensor over all sequences
};

inline constexpr i32 kUncoveredThreads = 256;
inline constexpr i32 kUncoveredRows = kUncoveredThreads / 32;  // a warp looks after one row at a time

}  // namespace tilewise::common
