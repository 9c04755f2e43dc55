// NVRTC, NVIDIA's run-time compiler, found at run time. It needs no GPU.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::cuda {

struct NvrtcState {
  bool usable = false;
  std::string why_not;  // a sentence that says what was tried and what to install
  std::string path;
  int major = 0, minor = 0;
  std::vector<int> architectures;  // those it compiles for, ascending: 75, 80, 86, ...
};

// Finds NVRTC on first use: TILEWISE_NVRTC_PATH (a file or its folder; binding when set), a library that the
// process already holds, the pip wheels beside Python's site-packages, CUDA_HOME, the system loader. A
// library whose major version is newer than the driver's is passed over, and said.
const NvrtcState& nvrtc_state();

struct SourceFile {
  std::string_view path;  // from the repository's root: what #include and error messages name
  std::string_view text;
};

struct NvrtcResult {
  bool ok = false;
  std::string cubin;
  std::string symbol;  // lowered name of the name expression
  std::string log;
};

// Compiles `source`, which may include any of `headers`. Throws only when NVRTC itself is unusable.
NvrtcResult nvrtc_compile(const std::string& source, const char* name, std::span<const SourceFile> headers,
                          const std::vector<std::string>& options, const std::string& name_expression);

}  // namespace tilewise::cuda
