// Failures travel as one exception inside the library; src/capi turns it into a status and a message.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "tilewise/tilewise.h"

namespace tilewise {

class Error : public std::runtime_error {
 public:
  Error(tw_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  tw_status status() const { return status_; }

 private:
  tw_status status_;
};

// All arguments, streamed into one string.
template <class... Args>
std::string cat(const Args&... args) {
  std::ostringstream s;
  (s << ... << args);
  return s.str();
}

template <class... Args>
[[noreturn]] void fail(tw_status status, const Args&... args) {
  throw Error(status, cat(args...));
}

// A caller's mistake: names the argument, its value, the limit, and the nearest thing that works.
template <class... Args>
[[noreturn]] void invalid(const Args&... args) {
  fail(TW_INVALID_ARGUMENT, args...);
}

}  // namespace tilewise
