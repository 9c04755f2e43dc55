// Ways to run one problem against the clock, and the measurement that compares them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/sample.h"

namespace tilewise::cli {

enum class Work { forward, backward, both };

class Contender {
 public:
  virtual ~Contender() = default;
  virtual double run() = 0;  // seconds of one run
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
std::unique_ptr<Contender> make_unfused(const Shape& shape, const tw_options& options, bool keep,
                                        Clock clock);

// The yardstick of one problem: what the hardware could do at best. Measured anew by every call.
class Peak {
 public:
  // Multiply-adds of the dtype, or for problems with few queries per key the reading of memory.
  Peak(const Shape& shape, const tw_options& options, Work work, DeviceName device, const std::string& isa);
  bool known() const { return !isa_.empty(); }
  bool memory_bound() const { return memory_bound_; }
  double amount() const { return amount_; }  // flops or bytes of one run
  double measure() const;                    // per second

 private:
  std::string isa_;
  bool memory_bound_ = false, pairs_ = false;
  int threads_ = 1;
  double amount_ = 0;
};

struct Measurement {
  double seconds = 0;  // median
  double rate = 0;     // amount / seconds
  double share = 0;    // median of the rate over the peak of the same moment; 0 = unknown
};

// Runs the contenders in turn, each one's peak measured before and after it, for about `budget` seconds: at
// least 3 rounds, at most 100.
std::vector<Measurement> compare(const std::vector<std::unique_ptr<Contender>>& contenders,
                                 const std::vector<Peak>& peaks, double budget);

// The instruction set that the planner chooses here.
std::string isa_of(const tw_attention& a);

}  // namespace tilewise::cli
