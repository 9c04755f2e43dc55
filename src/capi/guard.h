// The one place where exceptions end: runs a body, keeps its message for tw_last_error(), returns its status.
#pragma once

#include <new>
#include <string>

#include "core/error.h"

namespace tilewise::capi {

inline std::string& last_error() {
  thread_local std::string message;
  return message;
}

template <class Body>
tw_status guard(Body&& body) noexcept {
  auto report = [](tw_status status, const char* what) {
    try {
      last_error() = what;
    } catch (...) {
    }
    return status;
  };
  try {
    last_error().clear();
    body();
    return TW_OK;
  } catch (const Error& e) {
    return report(e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return report(TW_OUT_OF_MEMORY, "host memory ran out");
  } catch (const std::exception& e) {
    return report(TW_INTERNAL, e.what());
  } catch (...) {
    return report(TW_INTERNAL, "unknown failure");
  }
}

// Copies a text out in the manner of tw_plan_explain().
void copy_text(const std::string& text, char* buffer, size_t capacity, size_t* length);

// The caller's struct in this library's layout: older callers' missing members get their defaults.
tw_attention read_attention(const tw_attention* a);

}  // namespace tilewise::capi
