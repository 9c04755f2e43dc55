// A shared library found at run time.
#pragma once

#include <string>

namespace tilewise::cuda {

class SharedLibrary {
 public:
  SharedLibrary() = default;
  // Opens `name` (a path, or a name for the system loader); `only_if_loaded` finds a library that the process
  // already holds. Empty on failure, with the loader's sentence in why_not(). Never closed: CUDA libraries do
  // not survive it.
  static SharedLibrary open(const std::string& name, bool only_if_loaded = false);

  explicit operator bool() const { return handle_ != nullptr; }
  void* symbol(const char* name) const;
  const std::string& path() const { return path_; }  // the file that was really loaded
  const std::string& why_not() const { return why_not_; }

 private:
  void* handle_ = nullptr;
  std::string path_, why_not_;
};

// The file that holds this very code: libtilewise.so, the Python module, or the program it is linked into.
std::string own_path();

// Fills a table of function pointers, member by member. Returns the name of the first symbol that is missing,
// or "".
#define TILEWISE_RESOLVE(symbol_name, parameters)                                                      \
  if (table.symbol_name = reinterpret_cast<decltype(table.symbol_name)>(library.symbol(#symbol_name)); \
      !table.symbol_name && missing.empty())                                                           \
    missing = #symbol_name;

}  // namespace tilewise::cuda
