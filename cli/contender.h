// Ways to run one problem against the clock, and the measurement that compares them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/sample.h"
#include "cli/unfused.h"

namespace tilewise::cli {

enum class Work { forward, backward, both };

class Contender {
 public:
  virtual ~Contender() = default;
  virtual double run() = 0;                    // seconds of one run
  virtual double host_seconds() { return 0; }  // of one run's calls, where they only put work on a stream
};

// Which time is counted on the CPU: the wall's, or what the process's threads spent computing, divided among
// them. The latter leaves out what other processes took, on a machine that is shared, and with it any wait of
// one thread for another.
enum class ClockKind { wall, cpu };
struct Clock {
  ClockKind kind = ClockKind::wall;
  int threads = 1;
  double now() const;  // seconds
};

// The library on the tensors' device. `algorithm` "" = the planner's choice.
std::unique_ptr<Contender> make_tilewise(const Shape& shape, const tw_options& options, Work work,
                                         DeviceName device, const std::string& algorithm, Clock clock);

// Standard attention on the CPU (unfused.h), forward.
std::unique_ptr<Contender> make_unfused(const Shape& shape, const tw_options& options,
                                        Temporaries temporaries, Clock clock);

// The yardstick of one problem: what the hardware could do at best.
struct Peak {
  std::string meaning;              // what `measure` measures
  bool memory_bound = false;        // bytes count, not operations
  bool costly = false;              // measured once, not around every run
  double amount = 0;                // flops or bytes of one run
  std::function<double()> measure;  // flops or bytes a second, now
};

// Multiply-adds of the dtype by the instruction set `isa`, or for problems with few queries per key the
// reading of memory.
Peak cpu_peak(const Shape& shape, const tw_options& options, Work work, const std::string& isa);

// Products of the tensor cores or a copy in device memory, whichever takes longer for the problem's
// operations and for its tensors read and written once.
class GpuPeaks {
 public:
  explicit GpuPeaks(int device) : device_(device) {}
  Peak of(const Shape& shape, const tw_options& options, Work work);

 private:
  struct Probe {
    Peak peak;
    double first;  // what it measured when it was made
  };
  const Probe& products(tw_dtype dtype);
  const Probe& copies();

  int device_;
  std::map<tw_dtype, Probe> products_;
  std::optional<Probe> copies_;
};

struct Measurement {
  double seconds = 0;  // median
  double rate = 0;     // amount / seconds
  double peak = 0;     // median
  double share = 0;    // median of the rate over the peak of the same moment
  double host = 0;     // seconds that a call keeps the host busy; on a GPU
};

// Runs the contenders in turn, each one's peak measured before and after it, for about `budget` seconds: at
// least 3 rounds, at most 100.
std::vector<Measurement> compare(const std::vector<std::unique_ptr<Contender>>& contenders,
                                 const std::vector<Peak>& peaks, double budget);

// The instruction set that the planner chooses here.
std::string isa_of(const tw_attention& a);

}  // namespace tilewise::cli
