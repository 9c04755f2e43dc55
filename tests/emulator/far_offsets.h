// Emulated kernels on tensors whose offsets exceed 32 bits (support/spread.h).
#pragma once

#include <list>

#include "emulator.h"
#include "support/spread.h"

namespace tilewise::test {

// Memory for a Spread, of which kernels may touch the windows.
class FarMemory {
 public:
  using Spread = test::Spread<HostBuffer>;
  FarMemory() {
    for (i64 n = 0; n < Spread::kPeriods; ++n)
      windows_.emplace_back(memory.data() + n * Spread::kPeriod, size_t(Spread::kWindow), "window", true);
  }
  const HostBuffer memory{size_t(Spread::kBytes)};

 private:
  std::list<emulator::Registered> windows_;
};

}  // namespace tilewise::test
