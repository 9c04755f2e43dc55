#include "cpu/generic/avx512.h"

#include "cpu/generic/table.h"

namespace tilewise::cpu {
namespace {

struct Isa : Avx512<Isa> {};

}  // namespace

extern const Kernels kAvx512Kernels;
constexpr Kernels kAvx512Kernels = make_table<Isa>("avx512");

}  // namespace tilewise::cpu
