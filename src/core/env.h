// Every environment variable that Tilewise reads, in one table (`tilewise info` prints it).
#pragma once

#include <string>
#include <string_view>

namespace tilewise {

struct EnvVariable {
  const char* name;
  const char* meaning;
};

inline constexpr EnvVariable kEnvironment[] = {
    {"TILEWISE_ISA",
     "CPU instruction set to use: scalar, avx2, avx512, avx512_bf16 or neon (default: the best one here)"},
    {"TILEWISE_THREADS", "CPU threads when the call does not say (default: all cores)"},
    {"TILEWISE_ALGORITHM",
     "kernel to use when the call does not say, by a name that `tilewise explain` lists"},
    {"TILEWISE_JIT", "off: never compile a GPU kernel at run time, use packs and the cache only"},
    {"TILEWISE_CACHE_DIR",
     "folder of compiled GPU kernels (default: XDG_CACHE_HOME/tilewise, else ~/.cache/tilewise)"},
    {"TILEWISE_PACK",
     "file of prebuilt GPU kernels (from `tilewise compile --pack`), searched before the cache"},
    {"TILEWISE_NVRTC_PATH", "libnvrtc.so to load, or the folder it is in"},
    {"TILEWISE_CUDA_DRIVER_PATH", "libcuda.so to load instead of the system's"},
};

// The variable's value; "" when unset. The name must be in the table.
std::string env(std::string_view name);

}  // namespace tilewise
