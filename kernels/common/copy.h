// Arguments and launch of common/copy.cuh, for the host and the kernel.
#pragma once

#include "../shared/params.h"

namespace tilewise::common {

// to(b, s, h, d) = from(b, s, h, d) for d < columns, 0 for columns <= d < padded_columns.
struct CopyParams {
  const void* from;
  void* to;
  Strides from_stride, to_stride;
  i64 B, S, H;
  i32 columns, padded_columns;

  constexpr i64 elements() const { return B * S * H * padded_columns; }
};

inline constexpr i32 kCopyThreads = 256;

}  // namespace tilewise::common
