#include "cuda/backend.h"

#include <map>
#include <mutex>

#include "core/env.h"
#include "core/error.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/jit/cache.h"
#include "cuda/launch/families.h"

namespace tilewise::cuda {
namespace {

constexpr int kOldestCapability = 80;  // mma.sync m16n8k16, cp.async

plan::CudaMachine describe_machine(int ordinal) {
  plan::CudaMachine m;
  if (!driver_state().usable) {
    m.unavailable = driver_state().why_not;
    return m;
  }
  if (ordinal < 0 || size_t(ordinal) >= devices().size()) {
    m.unavailable = cat("device ", ordinal, " does not exist: this process sees ", devices().size(),
                        " CUDA devices (CUDA_VISIBLE_DEVICES limits them)");
    return m;
  }
  const Device& d = devices()[size_t(ordinal)];
  m.name = d.name;
  m.arch = d.capability();
  m.multiprocessors = d.multiprocessors;
  m.shared_memory = d.shared_memory_per_block;
  m.l2_bytes = d.l2_bytes;
  if (m.arch < kOldestCapability)
    m.unavailable = cat(d.name, " has compute capability ", d.major, ".", d.minor,
                        "; the kernels need 8.0 (Ampere) or newer");
  return m;
}

}  // namespace

const plan::CudaMachine& machine(int ordinal) {
  static std::mutex mutex;
  static std::map<int, plan::CudaMachine> machines;
  const std::lock_guard lock(mutex);
  const auto found = machines.find(ordinal);
  return found != machines.end() ? found->second : machines[ordinal] = describe_machine(ordinal);
}

std::unique_ptr<Execution> make_execution(const Problem& p, const plan::CudaChoice& choice) {
  return make_family_execution(p, choice);
}

std::string info() {
  std::string text;
  const DriverState& driver = driver_state();
  if (!driver.usable)
    text += driver.why_not + "\n";
  else
    text += cat("driver for CUDA ", driver.version / 1000, ".", driver.version % 1000 / 10, " (", driver.path,
                ")\n");
  for (const Device& d : devices())
    text += cat("  GPU ", d.ordinal, ": ", d.name, ", compute capability ", d.major, ".", d.minor, ", ",
                d.multiprocessors, " multiprocessors, ", d.shared_memory_per_block / 1024,
                " KB of shared memory a block, ", d.l2_bytes >> 20, " MB L2, ", d.memory >> 30, " GB\n");
  const NvrtcState& nvrtc = nvrtc_state();
  text += "NVRTC: ";
  text += nvrtc.usable ? cat(nvrtc.major, ".", nvrtc.minor, " (", nvrtc.path, ")\n") : nvrtc.why_not + "\n";
  const std::string cache = cache_folder().string();
  text += cat("kernel cache: ", cache.empty() ? "none (no home folder)" : cache, "\n");
  return text;
}

}  // namespace tilewise::cuda
