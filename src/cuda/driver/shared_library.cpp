#include "cuda/driver/shared_library.h"

#include <dlfcn.h>
#include <link.h>

namespace tilewise::cuda {

SharedLibrary SharedLibrary::open(const std::string& name, bool only_if_loaded) {
  SharedLibrary library;
  library.handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | (only_if_loaded ? RTLD_NOLOAD : 0));
  if (!library.handle_) {
    const char* why = dlerror();
    library.why_not_ = why ? why : "not loaded";
    return library;
  }
  link_map* map = nullptr;
  library.path_ =
      dlinfo(library.handle_, RTLD_DI_LINKMAP, &map) == 0 && map && *map->l_name ? map->l_name : name;
  return library;
}

void* SharedLibrary::symbol(const char* name) const { return handle_ ? dlsym(handle_, name) : nullptr; }

std::string own_path() {
  Dl_info info{};
  return dladdr(reinterpret_cast<const void*>(&own_path), &info) && info.dli_fname ? info.dli_fname : "";
}

}  // namespace tilewise::cuda
