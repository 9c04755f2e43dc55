#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "capi/guard.h"

namespace tilewise::capi {
namespace {

constexpr size_t kFirstSize = sizeof(tw_attention);  // the struct of version 0.1; grows with later versions

tw_attention defaults() {
  tw_attention a{};
  a.struct_size = sizeof a;
  a.options.scale = std::numeric_limits<double>::quiet_NaN();
  a.options.window_left = a.options.window_right = -1;
  return a;
}

void check_size(size_t size) {
  if (size < kFirstSize)
    invalid("struct_size: ", size, "; must be sizeof(tw_attention), at least ", kFirstSize,
            " (call tw_attention_init(&a, sizeof a) first)");
}

}  // namespace

tw_attention read_attention(const tw_attention* a) {
  if (!a) invalid("attention: NULL; pass a tw_attention");
  check_size(a->struct_size);
  const auto* bytes = reinterpret_cast<const unsigned char*>(a);
  if (a->struct_size > sizeof *a &&
      std::any_of(bytes + sizeof *a, bytes + a->struct_size, [](unsigned char b) { return b != 0; }))
    invalid("struct_size: ", a->struct_size, "; this library knows ", sizeof *a,
            " bytes and the rest is not zero; use a library as new as your header");
  tw_attention copy = defaults();
  std::memcpy(&copy, a, std::min(a->struct_size, sizeof copy));
  return copy;
}

void copy_text(const std::string& text, char* buffer, size_t capacity, size_t* length) {
  if (length) *length = text.size();
  if (!buffer || !capacity) return;
  const size_t n = std::min(text.size(), capacity - 1);
  std::memcpy(buffer, text.data(), n);
  buffer[n] = 0;
}

}  // namespace tilewise::capi

using namespace tilewise;

tw_status tw_attention_init(tw_attention* a, size_t struct_size) {
  return capi::guard([&] {
    if (!a) invalid("attention: NULL; pass a tw_attention");
    capi::check_size(struct_size);
    const tw_attention d = capi::defaults();
    if (struct_size > sizeof d) std::memset(static_cast<void*>(a), 0, struct_size);
    std::memcpy(static_cast<void*>(a), &d, sizeof d);
    a->struct_size = struct_size;
  });
}

const char* tw_last_error(void) { return capi::last_error().c_str(); }

const char* tw_version(void) { return "0.1.0"; }

const char* tw_status_name(tw_status status) {
  switch (status) {
    case TW_OK: return "TW_OK";
    case TW_INVALID_ARGUMENT: return "TW_INVALID_ARGUMENT";
    case TW_UNSUPPORTED: return "TW_UNSUPPORTED";
    case TW_OUT_OF_MEMORY: return "TW_OUT_OF_MEMORY";
    case TW_DEVICE_ERROR: return "TW_DEVICE_ERROR";
    case TW_COMPILER_ERROR: return "TW_COMPILER_ERROR";
    case TW_INTERNAL: return "TW_INTERNAL";
  }
  return "unknown status";
}
