// Compiled kernels on disk: read-only packs, searched first, and a cache that compilation fills.
//
// An entry is a few lines of text, the cubin, and the SHA-256 of all that. Whatever is not exactly such an
// entry with the expected key (truncated, foreign, from another version) is as good as absent. Writers make a
// temporary file and rename it, so that readers and racing writers see whole entries only. A folder that
// cannot be read or written costs compilations, no errors.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cuda/jit/compiler.h"

namespace tilewise::cuda {

// SHA-256 over every embedded source, the program, the options and the target: what the machine code is a
// function of, but for the compiler, which stands in the cache file's name. Packs are looked up without it:
// they serve machines without NVRTC.
std::string kernel_key(const Config& config, const std::string& target);

// $TILEWISE_CACHE_DIR, else $XDG_CACHE_HOME/tilewise, else ~/.cache/tilewise; empty when there is no home.
std::filesystem::path cache_folder();

// Entries compiled by another NVRTC than the present one are passed over; without one, any will do.
std::optional<CompiledKernel> read_cache(const std::string& key, const std::string& target);
void write_cache(const std::string& key, const std::string& target, const CompiledKernel& kernel);

// TILEWISE_PACK, then *.twpack beside the library.
std::optional<CompiledKernel> read_packs(const std::string& key);

struct PackEntry {
  std::string key;
  CompiledKernel kernel;
};
void write_pack(const std::filesystem::path& file, const std::vector<PackEntry>& entries);  // throws

// One entry as bytes, and back; nothing unless it is whole and its key is `key`.
std::string encode_entry(const std::string& key, const CompiledKernel& kernel);
std::optional<CompiledKernel> decode_entry(const std::string& key, std::string_view bytes);

}  // namespace tilewise::cuda
