// Failures travel as one exception inside the library; src/capi turns it into a status and a message.
#pragma once

#include <charconv>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tilewise/tilewise.h"

namespace tilewise {

class Error : public std::runtime_error {
 public:
  Error(tw_status status, const std::string& message) : std::runtime_error(message), status_(status) {}
  tw_status status() const { return status_; }

 private:
  tw_status status_;
};

// Text of one value, in no locale: messages look the same in every process that loads the library.
inline void append(std::string& s, std::string_view x) { s += x; }
inline void append(std::string& s, const char* x) { s += x; }
inline void append(std::string& s, char x) { s += x; }
inline void append(std::string& s, bool x) { s += x ? '1' : '0'; }
template <class T>
requires std::integral<T> || std::floating_point<T>
void append(std::string& s, T x) {
  char text[32];
  if constexpr (std::integral<T>)
    s.append(text, std::to_chars(text, text + sizeof text, x).ptr);
  else
    s.append(text, std::to_chars(text, text + sizeof text, x, std::chars_format::general, 6).ptr);
}
inline void append(std::string& s, const void* x) {
  char text[24];
  s += "0x";
  s.append(text, std::to_chars(text, text + sizeof text, reinterpret_cast<uintptr_t>(x), 16).ptr);
}

// All arguments, in one string.
template <class... Args>
std::string cat(const Args&... args) {
  std::string s;
  (append(s, args), ...);
  return s;
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
