// Runs a CUDA kernel of this project, compiled as host C++ with TILEWISE_EMULATE, on a machine without a GPU,
// and refuses what a GPU would silently do wrong: accesses outside a registered tensor or outside shared
// memory, misaligned ones, lanes of a warp that diverge at a collective, barriers that never complete, shared
// memory read before it was written (it starts as NaN) or before its cp.async was waited for, and data races
// between warps.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>

namespace tilewise::emulator {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Which warp goes on when several could: the extremes find what a friendly order hides.
enum class Order { forward, reverse, random };

struct Launch {
  std::uint32_t grid[3] = {1, 1, 1};
  std::uint32_t threads = 128;
  std::uint32_t shared_bytes = 0;
  Order order = Order::forward;
  std::uint64_t seed = 1;
};

// Runs kernel() once per thread of every block. Throws Error at the first thing that is wrong.
void launch(const Launch& launch, const std::function<void()>& kernel);

// While it lives, wrappers may read (and write) these bytes. A launch with no registered range accepts
// nothing.
class Registered {
 public:
  Registered(const void* data, std::size_t bytes, std::string name, bool writable);
  ~Registered();
  Registered(const Registered&) = delete;
  Registered& operator=(const Registered&) = delete;

 private:
  const void* data_;
};

}  // namespace tilewise::emulator
