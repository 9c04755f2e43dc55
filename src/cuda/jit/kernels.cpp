#include "cuda/jit/kernels.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "core/env.h"
#include "core/error.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/jit/cache.h"
#include "cuda/jit/config_text.h"

namespace tilewise::cuda {
namespace {

// A value that is made once per key, by whoever asks first, without holding up those who ask for other keys.
// A maker that throws leaves the key unmade.
template <class Key, class Value>
class OnceMap {
 public:
  template <class Make>
  Value get(const Key& key, Make&& make) {
    Slot& slot = slot_of(key);
    const std::lock_guard lock(slot.making);
    if (!slot.made) {
      slot.value = make();
      slot.made = true;
    }
    return slot.value;
  }

 private:
  struct Slot {
    std::mutex making;
    bool made = false;
    Value value{};
  };
  Slot& slot_of(const Key& key) {
    const std::lock_guard lock(mutex_);
    auto& slot = slots_[key];
    if (!slot) slot = std::make_unique<Slot>();
    return *slot;
  }
  std::mutex mutex_;
  std::map<Key, std::unique_ptr<Slot>> slots_;
};

// Kernels already found or compiled, by key.
class Memory {
 public:
  std::shared_ptr<const CompiledKernel> find(const std::string& key) {
    const std::lock_guard lock(mutex_);
    const auto found = kernels_.find(key);
    return found == kernels_.end() ? nullptr : found->second;
  }
  std::shared_ptr<const CompiledKernel> keep(const std::string& key, CompiledKernel kernel) {
    auto shared = std::make_shared<const CompiledKernel>(std::move(kernel));
    const std::lock_guard lock(mutex_);
    return kernels_[key] = shared;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const CompiledKernel>> kernels_;
};

Memory& memory() {
  static Memory m;
  return m;
}

bool compiling_allowed() { return env("TILEWISE_JIT") != "off"; }

bool nvrtc_compiles_for(const std::string& target) {
  const std::vector<int>& known = nvrtc_state().architectures;
  return nvrtc_state().usable &&
         std::find(known.begin(), known.end(), std::stoi(target.substr(3))) != known.end();
}

FoundKernel compile_and_keep(const Config& config, const std::vector<std::string>& targets) {
  if (!compiling_allowed())
    fail(TW_COMPILER_ERROR, "TILEWISE_JIT=off, and neither a pack nor the cache (", cache_folder().string(),
         ") holds the kernel ", config_summary(config), " for ", targets.front(),
         "; prebuild it with `tilewise compile --arch ", targets.front(),
         " --all --pack FILE` and set TILEWISE_PACK=FILE");
  if (!nvrtc_state().usable) fail(TW_COMPILER_ERROR, nvrtc_state().why_not);
  const auto target = std::find_if(targets.begin(), targets.end(), nvrtc_compiles_for);
  if (target == targets.end())
    fail(TW_COMPILER_ERROR, "NVRTC ", nvrtc_state().major, ".", nvrtc_state().minor, " (", nvrtc_state().path,
         ") does not compile for ", targets.front(), "; pip install --upgrade nvidia-cuda-nvrtc");
  const std::string key = kernel_key(config, *target);
  CompiledKernel compiled = compile_kernel(config, *target);
  write_cache(key, *target, compiled);
  return {memory().keep(key, std::move(compiled)), Origin::compiler, *target};
}

}  // namespace

const char* name_of(Origin origin) {
  switch (origin) {
    case Origin::memory: return "loaded in this process";
    case Origin::pack: return "in a pack";
    case Origin::cache: return "in the cache";
    case Origin::compiler: return "compiled now";
    case Origin::nowhere: return "to be compiled at first use";
  }
  fail(TW_INTERNAL, "unnamed origin");
}

std::vector<std::string> targets_for(Family family, int capability) {
  if (family == Family::wgmma) return {cat("sm_", capability, "a")};
  std::vector<std::string> targets;
  for (int minor = capability; minor >= capability / 10 * 10; --minor) targets.push_back(cat("sm_", minor));
  return targets;
}

FoundKernel look_up_kernel(const Config& config, int capability) {
  const std::vector<std::string> targets = targets_for(config.family, capability);
  for (const std::string& target : targets) {
    const std::string key = kernel_key(config, target);
    if (auto kernel = memory().find(key)) return {kernel, Origin::memory, target};
    if (auto packed = read_packs(key)) return {memory().keep(key, std::move(*packed)), Origin::pack, target};
    if (auto cached = read_cache(key, target))
      return {memory().keep(key, std::move(*cached)), Origin::cache, target};
    if (nvrtc_compiles_for(target))
      return {nullptr, Origin::nowhere, target};  // better than code for an older target
  }
  return {nullptr, Origin::nowhere, targets.front()};
}

FoundKernel obtain_kernel(const Config& config, int capability) {
  static OnceMap<std::pair<std::string, int>, FoundKernel> found;
  return found.get({config_text(config), capability}, [&] {
    const FoundKernel at_hand = look_up_kernel(config, capability);
    return at_hand.kernel ? at_hand : compile_and_keep(config, targets_for(config.family, capability));
  });
}

Function load_kernel(const Config& config, const Device& device, uint64_t context, int shared_bytes) {
  static OnceMap<std::pair<std::string, uint64_t>, Function> loaded;
  return loaded.get({config_text(config), context}, [&] {
    const FoundKernel found = obtain_kernel(config, device.capability());
    return load_function(found.kernel->cubin, found.kernel->symbol, shared_bytes,
                         cat("the kernel ", config_summary(config), " for ", found.target));
  });
}

}  // namespace tilewise::cuda
