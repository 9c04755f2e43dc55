#include "core/env.h"

#include <cstdlib>

#include "core/error.h"

namespace tilewise {

std::string env(std::string_view name) {
  for (const EnvVariable& v : kEnvironment)
    if (name == v.name) {
      const char* value = std::getenv(v.name);
      return value ? value : "";
    }
  fail(TW_INTERNAL, "environment variable ", name, " is not in the table of core/env.h");
}

}  // namespace tilewise
