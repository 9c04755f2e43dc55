// What a test needs besides emulator.h for kernels with TMA: tensor maps that the emulator can read.
#pragma once

#include "kernels/shared/tensor_map.h"
#include "kernels/wgmma/launch.h"

namespace tilewise::emulator {

// Stands in for cuTensorMapEncodeTiled: checks what the driver checks and packs the shape.
TensorMap encode(const wgmma::MapShape& shape);

}  // namespace tilewise::emulator
