// A TMA tensor map as memory: CUtensorMap, 128 opaque bytes that the host has the driver fill.
#pragma once

#include "types.h"

namespace tilewise {

struct alignas(64) TensorMap {
  u64 word[16];
};

}  // namespace tilewise
