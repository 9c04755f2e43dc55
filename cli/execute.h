// Runs a problem whose tensors lie in host memory, on the CPU in place or on a GPU through copies.
#pragma once

#include <vector>

#include "cli/options.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {

// Every tensor of a problem, and whether the pass writes it.
struct TensorUse {
  tw_tensor tw_attention::*tensor;
  bool output;
};
std::vector<TensorUse> tensors_of(tw_pass pass);

// The problem's tensors as they will be seen on the device, for planning: same shapes, no data.
tw_attention planned(const tw_attention& a, tw_pass pass, DeviceName device);

// Bytes from the first element to the end of the last: tensors here have no negative strides.
size_t tensor_bytes(const tw_tensor& t);

// On a terminal, work of more than a second shows a progress bar on standard error.
void execute(const tw_attention& a, tw_pass pass, DeviceName device);

}  // namespace tilewise::cli
