// What a GPU can do at best, measured: the yardsticks of `tilewise bench`. For the tool: they allocate and
// wait.
#pragma once

#include <string>

#include "cuda/driver/driver.h"
#include "cuda/driver/memory.h"
#include "kernels/shared/config.h"

namespace tilewise::cuda {

// The rate of the tensor cores' products of an element type, by the fastest instruction that the library has
// for this GPU (kernels/common/product_rate.cuh).
class ProductRate {
 public:
  ProductRate(int device, Element element);
  double measure();             // flops a second, over about 2 ms
  std::string meaning() const;  // "wgmma m64n256k16 bf16 from shared memory"

 private:
  double run(int steps);  // seconds

  int device_;
  Config config_;
  LaunchShape shape_;
  Function function_;
  DeviceBuffer sums_;
  Timer timer_;
  int steps_;
};

// Copying from device memory to device memory, by the driver.
class CopyRate {
 public:
  explicit CopyRate(int device);
  double measure();  // bytes read plus bytes written a second
  static std::string meaning() { return "copy in device memory"; }

 private:
  int device_;
  DeviceBuffer from_, to_;
  Timer timer_;
};

}  // namespace tilewise::cuda
