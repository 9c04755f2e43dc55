#include "cli/io/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"

namespace tilewise::cli {
namespace {

// Paths that the signal handler removes. It may only read atomics and call unlink().
constexpr int kSlots = 32;
std::array<std::atomic<char*>, kSlots> unfinished;

extern "C" void remove_and_end(int signal) {
  for (std::atomic<char*>& path : unfinished)
    if (char* p = path.load()) unlink(p);
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

int remember(const std::string& path) {
  char* copy = strdup(path.c_str());
  for (int i = 0; copy && i < kSlots; ++i) {
    char* empty = nullptr;
    if (unfinished[size_t(i)].compare_exchange_strong(empty, copy)) return i;
  }
  std::free(copy);
  fail(TW_OUT_OF_MEMORY, path, ": too many output files; at most ", kSlots);
}

void forget(int slot) {
  if (slot >= 0) std::free(unfinished[size_t(slot)].exchange(nullptr));
}

}  // namespace

void remove_outputs_on_signals() {
  for (int signal : {SIGINT, SIGTERM, SIGHUP})
    if (std::signal(signal, remove_and_end) == SIG_IGN) std::signal(signal, SIG_IGN);  // as under nohup
}

InputFile::InputFile(std::string name, std::string path) : name_(std::move(name)), path_(std::move(path)) {
  fd_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd_ < 0) invalid(name_, ": cannot open '", path_, "': ", std::strerror(errno));
  struct stat s {};
  if (fstat(fd_, &s) != 0 || !S_ISREG(s.st_mode)) {
    close(fd_);
    invalid(name_, ": '", path_, "' is not a regular file; a .npy or .safetensors file is needed");
  }
  size_ = uint64_t(s.st_size);
}

InputFile::~InputFile() { close(fd_); }

void InputFile::read(uint64_t offset, void* data, size_t bytes) const {
  auto* to = static_cast<char*>(data);
  while (bytes) {
    const ssize_t n = pread(fd_, to, std::min<size_t>(bytes, 1 << 30), off_t(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(TW_DEVICE_ERROR, name_, ": cannot read '", path_, "': ", std::strerror(errno));
    if (n == 0) invalid(name_, ": '", path_, "' ends at byte ", offset, "; ", bytes, " more are needed");
    to += n;
    offset += uint64_t(n);
    bytes -= size_t(n);
  }
}

OutputFile::OutputFile(std::string name, std::string path) : name_(std::move(name)), path_(std::move(path)) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (fs::is_directory(path_, ignored)) invalid(name_, ": '", path_, "' is a folder; name a file in it");
  const fs::path full(path_);
  temporary_ = (full.parent_path() / ("." + full.filename().string() + ".XXXXXX")).string();
  fd_ = mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) invalid(name_, ": cannot write beside '", path_, "': ", std::strerror(errno));
  const mode_t mask = umask(0);
  umask(mask);
  fchmod(fd_, 0666 & ~mask);
  try {
    slot_ = remember(temporary_);
  } catch (...) {
    close(fd_);
    unlink(temporary_.c_str());
    throw;
  }
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) close(fd_);
  if (slot_ >= 0) unlink(temporary_.c_str());
  forget(slot_);
}

void OutputFile::write(const void* data, size_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes) {
    const ssize_t n = ::write(fd_, from, std::min<size_t>(bytes, 1 << 30));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail(TW_DEVICE_ERROR, name_, ": cannot write '", path_, "': ", std::strerror(errno));
    from += n;
    bytes -= size_t(n);
  }
}

void OutputFile::finish() {
  const int fd = std::exchange(fd_, -1);
  const bool synced = fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
  if (close(fd) != 0 || !synced)
    fail(TW_DEVICE_ERROR, name_, ": cannot write '", path_, "': ", std::strerror(errno));
}

void OutputFile::commit() {
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail(TW_DEVICE_ERROR, name_, ": cannot rename the result to '", path_, "': ", std::strerror(errno));
  forget(std::exchange(slot_, -1));
}

}  // namespace tilewise::cli
