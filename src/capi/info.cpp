#include "capi/guard.h"
#include "core/env.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

using namespace tilewise;

tw_status tw_info(char* text, size_t capacity, size_t* length) {
  return capi::guard([&] {
    std::ostringstream s;
    s << "tilewise " << tw_version() << "\n";
    const plan::CpuMachine& m = cpu::machine();
    s << "CPU: " << m.threads << (m.threads == 1 ? " thread" : " threads") << "; instruction sets:";
    for (const plan::CpuIsa& isa : m.isas)
      s << " " << isa.name << (isa.usable ? "" : isa.built ? " (not here)" : " (not built)");
    s << "\n"
      << "CUDA: " << cuda::info();
    for (const EnvVariable& v : kEnvironment)
      if (const std::string value = env(v.name); !value.empty()) s << v.name << "=" << value << "\n";
    capi::copy_text(s.str(), text, capacity, length);
  });
}
