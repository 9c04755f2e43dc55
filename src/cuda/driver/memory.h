// Device memory, streams' ends and timing for the command-line tool and the tests. The library itself
// allocates nothing on a device and never synchronises.
#pragma once

#include <cstddef>

namespace tilewise::cuda {

// Device memory that the tool owns.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(int device, size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }
  void upload(const void* from, size_t bytes, size_t at = 0) const;  // waits
  void download(void* to, size_t bytes, size_t at = 0) const;        // waits

 private:
  int device_ = 0;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

void copy_on_device(int device, void* to, const void* from, size_t bytes, void* stream);

void synchronize(int device, void* stream);  // throws what a kernel before it failed with

// A pair of events around work on a stream.
class Timer {
 public:
  explicit Timer(int device);
  ~Timer();
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  void start(void* stream);
  void stop(void* stream);
  double seconds() const;  // waits for the stop

 private:
  int device_;
  void *begin_ = nullptr, *end_ = nullptr;
};

}  // namespace tilewise::cuda
