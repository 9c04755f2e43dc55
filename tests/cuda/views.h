// Problems for tests with the fake driver.
#pragma once

#include <cstdint>
#include <vector>

#include "cuda/driver/memory.h"
#include "tilewise/tilewise.h"

namespace tilewise::cuda {

// Tensors in device memory in which nothing is read: for what does not depend on values.
struct Views {
  explicit Views(int device) : ordinal(device) {}
  tw_tensor tensor(tw_dtype dtype, std::vector<int64_t> size) {
    tw_tensor t{};
    t.dtype = dtype, t.ndim = int(size.size()), t.device_type = TW_CUDA, t.device_index = ordinal;
    int64_t elements = 1;
    for (int i = t.ndim - 1; i >= 0; --i)
      t.size[i] = size[size_t(i)], t.stride[i] = elements, elements *= size[size_t(i)];
    buffers.emplace_back(ordinal, size_t(elements) * 4);
    t.data = buffers.back().data();
    return t;
  }
  tw_attention attention(int64_t B, int64_t S, int64_t H, int64_t D) {
    tw_attention a;
    tw_attention_init(&a, sizeof a);
    for (tw_tensor* t : {&a.q, &a.k, &a.v, &a.out, &a.dout, &a.dq, &a.dk, &a.dv})
      *t = tensor(TW_BF16, {B, S, H, D});
    a.lse = tensor(TW_FP32, {B, H, S});
    return a;
  }
  int ordinal;
  std::vector<DeviceBuffer> buffers;
};

}  // namespace tilewise::cuda
