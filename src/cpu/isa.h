// The instruction sets of this build: one table of kernels each.
#pragma once

#include <string_view>

#include "cpu/task.h"

namespace tilewise::cpu {

struct Probes {               // each returns a value that depends on all its work
  float (*fma)(i64 steps);    // fp32 multiply-adds, as fast as registers allow
  i64 fma_flops;              // of one step
  float (*pairs)(i64 steps);  // bf16 pair dot products; null when there are none
  i64 pairs_flops;
  float (*read)(const void* memory, i64 bytes);  // streams over memory, 64-byte aligned
};

struct Kernels {
  const char* name;
  int queries;  // of a sub-block
  int keys;     // of a key block
  int width;    // floats of a vector
  // By dtype: fp32, fp16, bf16. scratch is 64-byte aligned and holds forward_scratch() bytes.
  void (*forward[3])(const ForwardTask& task, void* scratch);
  size_t (*forward_scratch)(const ScratchShape& shape);
  void (*backward[3])(const BackwardTask& task, void* scratch);
  size_t (*backward_scratch)(const ScratchShape& shape);
  void (*store_rows[3])(const GradientRows& rows);
  void (*decode[3])(const DecodeTask* heads, int count, void* scratch);
  size_t (*decode_scratch)(const ScratchShape& shape);
  Probes probes;
};

constexpr int dtype_index(tw_dtype t) { return t == TW_FP32 ? 0 : t == TW_FP16 ? 1 : 2; }

// Null when the instruction set is not in this build.
const Kernels* find_kernels(std::string_view isa);
// Does this processor (and operating system) have it?
bool isa_usable(std::string_view isa);

}  // namespace tilewise::cpu
