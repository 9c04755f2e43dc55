// Carving a thread's scratch memory, which is part of the caller's workspace, into 64-byte aligned arrays.
#pragma once

#include "kernels/shared/types.h"

namespace tilewise::cpu {

namespace {
struct Carver {
  char* memory;  // null: only count
  size_t used = 0;
  float* floats(i64 n) {
    char* at = memory ? memory + used : nullptr;
    used += (size_t(n) * 4 + 63) / 64 * 64;
    return reinterpret_cast<float*>(at);
  }
};
}  // namespace

}  // namespace tilewise::cpu
