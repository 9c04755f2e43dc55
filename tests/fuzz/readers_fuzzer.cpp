// Hostile headers of .npy and .safetensors files: an exception of ours is the right answer, anything else is
// not.
#include <cstdlib>
#include <string_view>

#include "cli/io/npy.h"
#include "cli/io/safetensors.h"
#include "core/error.h"
#include "fuzz/reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  try {
    if (data[0] % 2) {
      const tilewise::cli::NpyHeader h = tilewise::cli::parse_npy_header("fuzz.npy", text);
      if (tilewise::cli::count_elements("fuzz.npy", h.shape, 1) < 0) std::abort();
    } else {
      const uint64_t bytes = uint64_t(data[1]) * 16;
      const tilewise::cli::SafetensorsHeader h =
          tilewise::cli::parse_safetensors_header("fuzz.safetensors", text, bytes);
      for (const auto& [name, entry] : h.tensors)
        if (entry.begin > entry.end || entry.end > bytes) std::abort();
    }
  } catch (const tilewise::Error&) {
  }
  return 0;
}
