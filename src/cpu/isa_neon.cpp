// NEON (AArch64): 4 lanes, 32 registers, fused multiply-add.
#include "cpu/generic/table.h"

namespace tilewise::cpu {
namespace {

struct Isa : Base<Isa, 4> {
  static constexpr int kRows = 8, kVectors = 3, kQueries = kVectors * W, kKeys = 128;
  TILEWISE_INLINE F pin(F x) {
    asm("" : "+w"(x));
    return x;
  }
};

}  // namespace

extern const Kernels kNeonKernels;
constexpr Kernels kNeonKernels = make_table<Isa>("neon");

}  // namespace tilewise::cpu
