// The tensors of a command line: where each one is read from or written to.
//     FILE.npy                     one array
//     FILE.safetensors[:NAME]      a tensor by name (default: the option's own name)
//     NAME                         a tensor of the file given by --tensors
#pragma once

#include <map>
#include <memory>
#include <string>

#include "cli/io/file.h"
#include "cli/io/tensor.h"

namespace tilewise::cli {

class Reader {
 public:
  // `dtype`: what --dtype says; TW_DTYPE_NONE = as the files are.
  Reader(std::string tensors_file, tw_dtype dtype) : tensors_file_(std::move(tensors_file)), dtype_(dtype) {}

  // q, k, v, dout: rounded to --dtype. An absent `place` is the option's own name in --tensors.
  HostTensor floating(const std::string& option, const std::string& place);
  // bias: keeps its own floating type (fp64 becomes fp32). sink, slopes, dlse: exactly fp32. Absent stays
  // absent.
  HostTensor bias(const std::string& option, const std::string& place);
  HostTensor fp32(const std::string& option, const std::string& place);
  HostTensor boolean(const std::string& option, const std::string& place);
  HostTensor index(const std::string& option, const std::string& place);

  const std::map<std::string, std::string>& files() const { return files_; }  // canonical path -> option

 private:
  FileTensor read(const std::string& option, const std::string& place);
  std::string tensors_file_;
  tw_dtype dtype_;
  std::map<std::string, std::string> files_;
};

class Writer {
 public:
  // Opens a temporary file beside the destination, so that a folder that cannot be written is known before
  // any work. An absent `place` asks for nothing. `inputs`: files that must not be overwritten.
  void declare(const std::string& option, const std::string& place,
               const std::map<std::string, std::string>& inputs);
  // Writes every declared tensor and only then gives the files their names.
  void commit(const std::map<std::string, const HostTensor*>& tensors);

 private:
  struct Destination {
    std::unique_ptr<OutputFile> file;
    bool safetensors = false;
    std::vector<std::pair<std::string, std::string>> tensors;  // name in the file, option
  };
  std::map<std::string, Destination> files_;  // by canonical path
};

}  // namespace tilewise::cli
