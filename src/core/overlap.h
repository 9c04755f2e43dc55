// Do strided views share memory? Used to refuse outputs that would overwrite what is still to be read.
#pragma once

#include <cstdint>

#include "tilewise/tilewise.h"

namespace tilewise {

// The dimension by which a tensor's own elements may collide, or -1 when each element has memory of its own.
int self_overlap(const tw_tensor& t);

// The bytes from a tensor's lowest element to its highest; nothing where it is empty or has no memory.
struct Extent {
  uintptr_t first = 0, end = 0;
  bool touches(const Extent& other) const { return first < other.end && other.first < end; }
};
Extent extent_of(const tw_tensor& t);

// May two non-empty tensors share a byte? Exact for slices of one packed buffer (q, k, v of a fused
// projection) and for disjoint buffers; conservative (true) for exotic interleavings.
bool may_overlap(const tw_tensor& a, const tw_tensor& b);

}  // namespace tilewise
