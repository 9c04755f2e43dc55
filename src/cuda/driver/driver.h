// The CUDA driver, found at run time: devices, contexts, modules, launches. The same library runs where there
// is no driver; driver_state() then says why. Everything here may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/shared/tensor_map.h"

namespace tilewise::cuda {

struct DriverState {
  bool usable = false;  // the driver is there and initialised
  std::string why_not;  // a sentence, when it is not
  std::string path;
  int version = 0;  // the newest CUDA it supports, as 1000 * major + 10 * minor
};

// Loads the driver on first use. TILEWISE_CUDA_DRIVER_PATH names another file than libcuda.so.1.
const DriverState& driver_state();

struct Device {
  int ordinal = 0;
  std::string name;
  int major = 0, minor = 0;  // compute capability
  int multiprocessors = 0;
  int shared_memory_per_block = 0;  // with opt-in
  int shared_memory_per_multiprocessor = 0;
  int l2_bytes = 0;
  size_t memory = 0;
  int capability() const { return 10 * major + minor; }
};

// Empty without a usable driver.
const std::vector<Device>& devices();

// Throws a sentence that says what is missing when there is no such device.
const Device& device(int ordinal);

// While it lives, a context of the device is current on this thread: the one that already is, if it is the
// device's, else the device's primary context. The destructor restores what was current before.
class CurrentDevice {
 public:
  explicit CurrentDevice(int ordinal);
  ~CurrentDevice();
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  uint64_t context() const { return context_; }  // never the same for two contexts of this process

 private:
  uint64_t context_ = 0;
  bool pushed_ = false;
};

// A kernel loaded into the context that was current. Stays loaded as long as the context.
struct Function {
  void* handle = nullptr;
  int registers = 0, local_bytes = 0;
};

// `what` names the kernel in error messages. Allows `shared_bytes` of dynamic shared memory.
Function load_function(std::string_view cubin, const std::string& symbol, int shared_bytes,
                       const std::string& what);

// Thread blocks of the function that fit on one multiprocessor.
int resident_blocks(const Function& f, int threads, int shared_bytes);

struct LaunchShape {
  unsigned grid[3] = {1, 1, 1};
  unsigned threads = 1;
  unsigned shared_bytes = 0;
  unsigned cluster = 1;  // thread blocks of a cluster along x
  bool empty() const { return grid[0] == 0 || grid[1] == 0 || grid[2] == 0; }
  bool operator==(const LaunchShape&) const = default;
};

// Throws when the driver refuses. An empty grid, which it does not take, launches nothing.
// `arguments` point to the kernel's parameters.
void launch(const Function& f, const LaunchShape& shape, void** arguments, void* stream, const char* what);

void fill_zero(void* pointer, size_t bytes, void* stream);

// The ordinal of the device that owns the memory; `reader` for managed memory, which every device reads.
// Throws for anything that a kernel cannot read, with `what` naming the tensor.
int device_of_pointer(const void* pointer, int reader, const char* what);

enum class MapElement { fp32, fp16, bf16 };

struct TensorMapShape {
  MapElement element = MapElement::bf16;
  int rank = 0;
  const void* address = nullptr;
  uint64_t size[5] = {};         // innermost first
  uint64_t byte_stride[4] = {};  // of dimensions 1 and up
  uint32_t box[5] = {};
  int swizzle_bytes = 128;  // 0, 32, 64 or 128
};

TensorMap encode_tensor_map(const TensorMapShape& shape, const char* what);

// The same map of other memory, which costs a tenth of encoding it; false where the driver refuses or does
// not know how.
bool move_tensor_map(TensorMap& map, const void* address);

}  // namespace tilewise::cuda
