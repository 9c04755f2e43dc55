// Arguments and launch of common/combine_splits.cuh, for the host and the kernel.
#pragma once

#include "../shared/backward_layout.h"
#include "../shared/params.h"

namespace tilewise::common {

// Partial results over disjoint sets of keys: the first, then `parts - 1` more of one layout, `step` elements
// apart. Two tensors (tw_merge) are a first part and one more; the splits of a forward are a first part and
// more in the same workspace.
struct CombineParams {
  const void *first_out, *more_out;  // (B, S, H, Dv), or packed (T, H, Dv) with B = 1 and S = T
  const float *first_lse, *more_lse;
  Strides first_stride, more_stride;
  i64 first_lse_b, first_lse_h, first_lse_s, more_lse_b, more_lse_h, more_lse_s;
  i64 out_step, lse_step;  // from one further part to the next
  i32 parts;
  i32 part_element;  // Element of the partial outputs; the result's is Config::element
  void* out;
  float* lse;  // or null
  Strides out_stride;
  i64 lse_b, lse_h, lse_s;
  i64 B, S, H;
  i32 Dv;
};

inline constexpr int kCombineThreads = 128;  // a warp a row

constexpr u64 combine_blocks(const CombineParams& p) {
  return u64((p.B * p.S * p.H + kCombineThreads / 32 - 1) / (kCombineThreads / 32));
}

}  // namespace tilewise::common
