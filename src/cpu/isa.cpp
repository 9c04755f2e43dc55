#include "cpu/isa.h"

namespace tilewise::cpu {

extern const Kernels kScalarKernels, kAvx2Kernels, kAvx512Kernels, kAvx512Bf16Kernels, kNeonKernels;

namespace {

struct Entry {
  const Kernels* kernels;
  bool (*usable)();
};

// Best last.
constexpr Entry kEntries[] = {
    {&kScalarKernels, [] { return true; }},
#if defined(__x86_64__)
    // Every processor with AVX2 has F16C, which clang 14 cannot ask for by name.
    {&kAvx2Kernels, [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
    {&kAvx512Kernels,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
     }},
    {&kAvx512Bf16Kernels,
     [] {
       return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512bf16");
     }},
#elif defined(__aarch64__)
    {&kNeonKernels, [] { return true; }},
#endif
};

}  // namespace

const Kernels* find_kernels(std::string_view isa) {
  for (const Entry& e : kEntries)
    if (e.kernels->name == isa) return e.kernels;
  return nullptr;
}

bool isa_usable(std::string_view isa) {
  for (const Entry& e : kEntries)
    if (e.kernels->name == isa) return e.usable();
  return false;
}

}  // namespace tilewise::cpu
