// NumPy's .npy format, versions 1 to 3.
#pragma once

#include "cli/io/file.h"
#include "cli/io/tensor.h"

namespace tilewise::cli {

// Reads the array of a file. Refuses everything that is not exactly one array of a known element type.
FileTensor read_npy(const InputFile& file);

void write_npy(OutputFile& file, const HostTensor& tensor);

// What the header of a .npy file says (exposed for tests and fuzzing): text is the Python dictionary.
struct NpyHeader {
  FileType type = FileType::other;
  std::vector<int64_t> shape;
  bool fortran = false;
};
NpyHeader parse_npy_header(const std::string& name, std::string_view text);

}  // namespace tilewise::cli
