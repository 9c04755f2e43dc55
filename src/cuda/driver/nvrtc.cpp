#include "cuda/driver/nvrtc.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "core/env.h"
#include "core/error.h"
#include "cuda/driver/abi.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/shared_library.h"

namespace tilewise::cuda {

using namespace abi;
namespace fs = std::filesystem;

namespace {

constexpr int kOldestMajor = 12;  // the first NVRTC with C++20, which Config as a template argument needs

struct LoadedNvrtc {
  NvrtcState state;
  Libnvrtc table;
};

// One way to open NVRTC: a name for dlopen.
struct Candidate {
  std::string name;
  bool only_if_loaded = false;
};

const char* const kFileNames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};

void add_folder(std::vector<Candidate>& list, const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : kFileNames)
    if (fs::exists(folder / name, ignored)) list.push_back({(folder / name).string()});
}

void add_site_packages(std::vector<Candidate>& list, const fs::path& site) {
  add_folder(list, site / "nvidia/cu13/lib");
  add_folder(list, site / "nvidia/cuda_nvrtc/lib");
}

// prefix/lib/python3.X/{site,dist}-packages for every X that is there.
void add_python_prefix(std::vector<Candidate>& list, const fs::path& prefix) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(prefix / "lib", ignored)) {
    if (entry.path().filename().string().rfind("python3", 0) != 0) continue;
    add_site_packages(list, entry.path() / "site-packages");
    add_site_packages(list, entry.path() / "dist-packages");
  }
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::vector<Candidate> candidates() {
  std::vector<Candidate> list;
  std::error_code ignored;
  if (const fs::path forced = env("TILEWISE_NVRTC_PATH"); !forced.empty()) {
    if (fs::is_directory(forced, ignored))
      add_folder(list, forced);
    else
      list.push_back({forced.string()});
    return list;
  }
  for (const char* name : kFileNames) list.push_back({name, true});
  // The Python module lies in site-packages/tilewise/; the pip wheels of NVRTC in site-packages/nvidia/.
  const fs::path own = fs::weakly_canonical(own_path(), ignored);
  for (fs::path up = own.parent_path(); up.has_relative_path(); up = up.parent_path())
    if (up.filename() == "site-packages" || up.filename() == "dist-packages") add_site_packages(list, up);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"})
    if (const std::string prefix = environment(name); !prefix.empty()) add_python_prefix(list, prefix);
  const std::string path = environment("PATH");
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find(':', begin), path.size());
    const fs::path python = fs::path(path.substr(begin, end - begin)) / "python3";
    if (fs::exists(python, ignored)) add_python_prefix(list, python.parent_path().parent_path());
    begin = end + 1;
  }
  for (const std::string& home :
       {environment("CUDA_HOME"), environment("CUDA_PATH"), std::string("/usr/local/cuda")})
    if (!home.empty())
      for (const char* lib : {"lib64", "lib", "targets/x86_64-linux/lib"})
        add_folder(list, fs::path(home) / lib);
  for (const char* name : kFileNames) list.push_back({name});
  return list;
}

// NVRTC opens its builtins by bare name while it compiles. pip's wheels lie where the loader does not look,
// so they are opened from beside it: a library that is loaded is found by its name.
void load_builtins(const NvrtcState& nvrtc) {
  const fs::path beside = fs::path(nvrtc.path).parent_path();
  SharedLibrary::open((beside / cat("libnvrtc-builtins.so.", nvrtc.major, ".", nvrtc.minor)).string(), false);
}

// Loads one candidate; otherwise says in one clause why not.
std::string try_load(const Candidate& candidate, LoadedNvrtc& nvrtc) {
  const SharedLibrary library = SharedLibrary::open(candidate.name, candidate.only_if_loaded);
  if (!library) return candidate.only_if_loaded ? "" : library.why_not();
  Libnvrtc table;
  std::string missing;
  TILEWISE_NVRTC_FUNCTIONS(TILEWISE_RESOLVE)
  if (!missing.empty())
    return cat(library.path(), " has no ", missing, ": it is older than CUDA ", kOldestMajor);
  NvrtcState state;
  state.path = library.path();
  if (table.nvrtcVersion(&state.major, &state.minor) != kNvrtcSuccess)
    return cat(library.path(), " does not tell its version");
  const std::string version = cat(library.path(), " is NVRTC ", state.major, ".", state.minor);
  if (state.major < kOldestMajor) return cat(version, ", too old: ", kOldestMajor, ".0 or newer is needed");
  const int driver_major = driver_state().usable ? driver_state().version / 1000 : 0;
  if (driver_major && state.major > driver_major)
    return cat(version, ", newer than the driver, which supports CUDA ", driver_major, ".",
               driver_state().version % 1000 / 10, ": update the driver, or pip install nvidia-cuda-nvrtc-cu",
               driver_major);
  load_builtins(state);
  int count = 0;
  table.nvrtcGetNumSupportedArchs(&count);
  state.architectures.resize(size_t(std::max(count, 0)));
  if (count) table.nvrtcGetSupportedArchs(state.architectures.data());
  std::sort(state.architectures.begin(), state.architectures.end());
  state.usable = true;
  nvrtc = {state, table};
  return "";
}

LoadedNvrtc load_nvrtc() {
  LoadedNvrtc nvrtc;
  std::string tried;
  for (const Candidate& candidate : candidates()) {
    const std::string why = try_load(candidate, nvrtc);
    if (nvrtc.state.usable) return nvrtc;
    if (!why.empty() && tried.find(why) == std::string::npos) tried += (tried.empty() ? "" : "; ") + why;
  }
  nvrtc.state.why_not =
      cat("no usable NVRTC (", tried.empty() ? cat("there is none in ", env("TILEWISE_NVRTC_PATH")) : tried,
          "); pip install nvidia-cuda-nvrtc, or set TILEWISE_NVRTC_PATH to libnvrtc.so");
  return nvrtc;
}

const LoadedNvrtc& nvrtc() {
  static const LoadedNvrtc n = load_nvrtc();
  return n;
}

}  // namespace

const NvrtcState& nvrtc_state() { return nvrtc().state; }

NvrtcResult nvrtc_compile(const std::string& source, const char* name, std::span<const SourceFile> headers,
                          const std::vector<std::string>& options, const std::string& name_expression) {
  if (!nvrtc_state().usable) fail(TW_COMPILER_ERROR, nvrtc_state().why_not);
  const Libnvrtc& lib = nvrtc().table;
  // NVRTC wants zero-terminated strings, which views into the bundle's literals are.
  std::vector<const char*> texts, paths, flags;
  for (const SourceFile& h : headers) {
    texts.push_back(h.text.data());
    paths.push_back(h.path.data());
  }
  for (const std::string& o : options) flags.push_back(o.c_str());

  struct Program {
    const Libnvrtc& lib;
    nvrtcProgram handle = nullptr;
    ~Program() {
      if (handle) lib.nvrtcDestroyProgram(&handle);
    }
  } program{lib};
  NvrtcResult result;
  if (lib.nvrtcCreateProgram(&program.handle, source.c_str(), name, int(texts.size()), texts.data(),
                             paths.data()) != kNvrtcSuccess ||
      lib.nvrtcAddNameExpression(program.handle, name_expression.c_str()) != kNvrtcSuccess) {
    result.log = "NVRTC could not create a program (out of memory?)";
    return result;
  }
  const nvrtcResult status = lib.nvrtcCompileProgram(program.handle, int(flags.size()), flags.data());
  size_t bytes = 0;
  if (lib.nvrtcGetProgramLogSize(program.handle, &bytes) == kNvrtcSuccess && bytes > 1) {
    result.log.resize(bytes);
    lib.nvrtcGetProgramLog(program.handle, result.log.data());
    result.log.resize(bytes - 1);
  }
  const char* lowered = nullptr;
  if (status != kNvrtcSuccess || lib.nvrtcGetCUBINSize(program.handle, &bytes) != kNvrtcSuccess ||
      bytes == 0 ||
      lib.nvrtcGetLoweredName(program.handle, name_expression.c_str(), &lowered) != kNvrtcSuccess ||
      !lowered) {
    if (result.log.empty()) result.log = cat("NVRTC returned error ", status);
    return result;
  }
  result.cubin.resize(bytes);
  result.symbol = lowered;
  result.ok = lib.nvrtcGetCUBIN(program.handle, result.cubin.data()) == kNvrtcSuccess;
  return result;
}

}  // namespace tilewise::cuda
