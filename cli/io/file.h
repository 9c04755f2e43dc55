// Files: reading with every length checked, and writing so that a failure or a signal leaves nothing
// half-written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace tilewise::cli {

// An open file. `name` (the argument it came from) leads every message.
class InputFile {
 public:
  InputFile(std::string name, std::string path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();
  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  void read(uint64_t offset, void* data, size_t bytes) const;

 private:
  std::string name_, path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// A temporary file beside its destination, renamed over it by commit(). Removed when destroyed or when a
// signal ends the process before that.
class OutputFile {
 public:
  OutputFile(std::string name, std::string path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();
  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void finish();  // everything is on the disk
  void commit();  // and has its name

 private:
  std::string name_, path_, temporary_;
  int fd_ = -1;
  int slot_ = -1;
};

// After this, SIGINT, SIGTERM and SIGHUP remove the unfinished output files and then end the process as they
// would have.
void remove_outputs_on_signals();

}  // namespace tilewise::cli
