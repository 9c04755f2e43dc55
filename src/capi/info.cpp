#include "capi/guard.h"
#include "core/env.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

using namespace tilewise;

tw_status tw_info(char* text, size_t capacity, size_t* length) {
  return capi::guard([&] {
    const plan::CpuMachine& m = cpu::machine();
    std::string s = cat("tilewise ", tw_version(), "\nCPU: ", m.threads,
                        m.threads == 1 ? " thread" : " threads", "; instruction sets:");
    for (const plan::CpuIsa& isa : m.isas)
      s += cat(" ", isa.name, isa.usable ? "" : isa.built ? " (not here)" : " (not built)");
    s += "\nCUDA: " + cuda::info();
    for (const EnvVariable& v : kEnvironment)
      if (const std::string value = env(v.name); !value.empty()) s += cat(v.name, "=", value, "\n");
    capi::copy_text(s, text, capacity, length);
  });
}
