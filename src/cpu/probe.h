// Yardsticks, measured in the same moment as what they judge: on shared or virtual machines the clock and the
// share of a core that a process gets change by the second, so only ratios of interleaved short windows mean
// anything.
#pragma once

#include <functional>
#include <string>

#include "kernels/shared/types.h"

namespace tilewise::cpu {

enum class Peak {
  fp32,   // fused multiply-adds
  pairs,  // bf16 pair dot products; instruction sets without them: fp32
};

// Flop/s that `threads` threads reach together now, in one window of about 100 us each.
double probe_flops(const std::string& isa, Peak peak, int threads);

// The instruction set's peak for a dtype's matrix products: pairs for bf16 where they are native, else fp32.
bool has_pairs(const std::string& isa);

// Bytes/s of reading `bytes` of memory (larger than the caches: 256 MiB or more) with `threads` threads,
// median of `repeats`. Allocates.
double probe_read(const std::string& isa, int threads, i64 bytes, int repeats);

struct Share {
  double seconds;  // median run
  double peak;     // median of the probes, flop/s
  double share;    // median of (flops / seconds) / probe of the same moment
};

// Runs f `repeats` times with a probe before and after each run.
Share measure_share(const std::string& isa, Peak peak, int threads, double flops, int repeats,
                    const std::function<void()>& f);

}  // namespace tilewise::cpu
