// The portable instruction set: vector extensions of 4 lanes, no -m flags (SSE2 on x86-64).
#include "cpu/generic/table.h"

namespace tilewise::cpu {
namespace {

struct Isa : Base<Isa, 4> {
  static constexpr int kRows = 4, kVectors = 2, kQueries = kVectors * W, kKeys = 128;
  TILEWISE_INLINE F pin(F x) {
#if defined(__x86_64__)
    asm("" : "+x"(x));
#endif
    return x;
  }
};

}  // namespace

extern const Kernels kScalarKernels;
constexpr Kernels kScalarKernels = make_table<Isa>("scalar");

}  // namespace tilewise::cpu
