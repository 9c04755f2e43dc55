// The .safetensors format: an 8-byte length, a JSON header, then the tensors end to end.
#pragma once

#include <map>

#include "cli/io/file.h"
#include "cli/io/tensor.h"

namespace tilewise::cli {

struct SafetensorsEntry {
  std::string dtype;  // as the header names it
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes after the header
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  uint64_t data_offset = 0;  // of the first byte after the header
};

// Checks the whole header: structure, sizes, and that the tensors fill the file without holes or overlaps.
SafetensorsHeader read_safetensors_header(const InputFile& file);

FileTensor read_safetensors(const InputFile& file, const std::string& tensor);

// Parses and checks a header's text for `data_bytes` of tensors (exposed for tests and fuzzing).
SafetensorsHeader parse_safetensors_header(const std::string& name, std::string_view text,
                                           uint64_t data_bytes);

void write_safetensors(OutputFile& file,
                       const std::vector<std::pair<std::string, const HostTensor*>>& tensors);

}  // namespace tilewise::cli
