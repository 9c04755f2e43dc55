#include "cuda/driver/memory.h"

#include <utility>

#include "cuda/driver/driver.h"
#include "cuda/driver/internal.h"

namespace tilewise::cuda {

using namespace abi;

namespace {

CUdeviceptr address(const void* p) { return reinterpret_cast<CUdeviceptr>(p); }

}  // namespace

DeviceBuffer::DeviceBuffer(int ordinal, size_t bytes) : device_(ordinal), bytes_(bytes) {
  const CurrentDevice current(ordinal);
  CUdeviceptr pointer = 0;
  check(libcuda().cuMemAlloc_v2(&pointer, bytes ? bytes : 1), "allocating ", bytes, " bytes on ",
        device(ordinal).name);
  data_ = reinterpret_cast<void*>(pointer);
}

DeviceBuffer::~DeviceBuffer() {
  if (!data_) return;
  const CurrentDevice current(device_);
  libcuda().cuMemFree_v2(address(data_));
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(other.device_),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void DeviceBuffer::upload(const void* from, size_t bytes, size_t at) const {
  const CurrentDevice current(device_);
  if (bytes)
    check(libcuda().cuMemcpyHtoD_v2(address(data()) + at, from, bytes), "copying ", bytes,
          " bytes to the device");
}

void DeviceBuffer::download(void* to, size_t bytes, size_t at) const {
  const CurrentDevice current(device_);
  if (bytes)
    check(libcuda().cuMemcpyDtoH_v2(to, address(data()) + at, bytes), "copying ", bytes,
          " bytes from the device");
}

void copy_on_device(int ordinal, void* to, const void* from, size_t bytes, void* stream) {
  const CurrentDevice current(ordinal);
  check(libcuda().cuMemcpyDtoDAsync_v2(address(to), address(from), bytes, static_cast<CUstream>(stream)),
        "copying ", bytes, " bytes on ", device(ordinal).name);
}

void synchronize(int ordinal, void* stream) {
  const CurrentDevice current(ordinal);
  check(libcuda().cuStreamSynchronize(static_cast<CUstream>(stream)), "waiting for the stream");
}

Timer::Timer(int ordinal) : device_(ordinal) {
  const CurrentDevice current(ordinal);
  CUevent event = nullptr;
  check(libcuda().cuEventCreate(&event, 0), "cuEventCreate");
  begin_ = event;
  check(libcuda().cuEventCreate(&event, 0), "cuEventCreate");
  end_ = event;
}

Timer::~Timer() {
  const CurrentDevice current(device_);
  libcuda().cuEventDestroy_v2(static_cast<CUevent>(begin_));
  if (end_) libcuda().cuEventDestroy_v2(static_cast<CUevent>(end_));
}

void Timer::start(void* stream) {
  const CurrentDevice current(device_);
  check(libcuda().cuEventRecord(static_cast<CUevent>(begin_), static_cast<CUstream>(stream)),
        "cuEventRecord");
}

void Timer::stop(void* stream) {
  const CurrentDevice current(device_);
  check(libcuda().cuEventRecord(static_cast<CUevent>(end_), static_cast<CUstream>(stream)), "cuEventRecord");
}

double Timer::seconds() const {
  const CurrentDevice current(device_);
  check(libcuda().cuEventSynchronize(static_cast<CUevent>(end_)), "cuEventSynchronize");
  float milliseconds = 0;
  check(libcuda().cuEventElapsedTime(&milliseconds, static_cast<CUevent>(begin_), static_cast<CUevent>(end_)),
        "cuEventElapsedTime");
  return 1e-3 * double(milliseconds);
}

}  // namespace tilewise::cuda
