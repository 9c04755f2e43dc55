// Do strided views share memory? Used to refuse outputs that would overwrite what is still to be read.
#pragma once

#include "tilewise/tilewise.h"

namespace tilewise {

// The dimension by which a tensor's own elements may collide, or -1 when each element has memory of its own.
int self_overlap(const tw_tensor& t);

// May two non-empty tensors share a byte? Exact for slices of one packed buffer (q, k, v of a fused
// projection) and for disjoint buffers; conservative (true) for exotic interleavings.
bool may_overlap(const tw_tensor& a, const tw_tensor& b);

}  // namespace tilewise
