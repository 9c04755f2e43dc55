// The emulator's core: one thread block at a time, its threads as fibers, its warps' collectives, its
// barriers, its shared memory, and the checks on all of them. instructions.cpp builds the wrappers of
// kernels/ptx on these; further instruction sets (mbarriers, TMA, wgmma) are further files on the same
// primitives. docs/emulator.md explains.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emulator.h"
#include "fiber.h"

namespace tilewise::emulator {

inline constexpr int kWarp = 32;
inline constexpr int kMaxWarps = 32;

// What a warp knows of the others' progress: the race detector's vector clock.
using Clock = std::array<std::uint32_t, kMaxWarps>;

struct Warp {
  int index = 0;
  Clock clock{};
  // The collective that is meeting now.
  std::array<void*, kWarp> slot{};
  const char* meeting = nullptr;
  int arrived = 0;
  std::uint64_t generation = 0;
};

// A copy that cp.async has promised: done at the wait.
struct PendingCopy {
  std::uint32_t shared;
  const void* global;
  std::uint32_t bytes;
};

struct Thread {
  Fiber fiber;
  Warp* warp = nullptr;
  int index = 0, lane = 0;
  bool runnable = false, finished = false;
  std::string waiting_for;
  std::vector<PendingCopy> uncommitted;
  std::vector<std::vector<PendingCopy>> groups;
  std::shared_ptr<void> extension;  // what further instruction sets keep for a thread
};

struct NamedBarrier {
  int expected = 0, arrived = 0;
  bool any = false, result = false;  // bar.red.or
  std::uint64_t generation = 0;
  Clock clock{};
  std::vector<Thread*> waiting;
};

class Machine {
 public:
  static Machine& now();    // the machine of the launch in progress
  static Thread& thread();  // the thread that is running

  void run(const Launch& launch, const std::function<void()>& kernel);

  // All 32 lanes meet: the last to arrive runs op(slots) for everybody. `name` must agree across the warp.
  template <class Arguments, class Operation>
  void collective(const char* name, Arguments& arguments, Operation&& operation) {
    Thread& t = thread();
    Warp& w = *t.warp;
    if (w.arrived && w.meeting != name) diverged(name);
    w.meeting = name;
    w.slot[static_cast<std::size_t>(t.lane)] = &arguments;
    if (++w.arrived < kWarp) {
      const auto generation = w.generation;
      wait(name, [&w, generation] { return w.generation != generation; });
      return;
    }
    std::array<Arguments*, kWarp> all;
    for (int lane = 0; lane < kWarp; ++lane)
      all[static_cast<std::size_t>(lane)] = static_cast<Arguments*>(w.slot[static_cast<std::size_t>(lane)]);
    operation(all);
    w.arrived = 0;
    ++w.generation;
    wake(w);
  }

  // Parks the running thread until woken and `ready` (checked at every wake).
  void wait(const char* what, const std::function<bool()>& ready);
  void wake(Warp& w);
  void wake_all();

  bool barrier(int id, int threads, bool waits, bool vote = false);

  // Shared memory: bounds, alignment and races between warps are checked; the returned pointer is good for
  // `bytes`.
  std::byte* shared(std::uint32_t address, std::size_t bytes, std::size_t alignment, bool write);
  std::byte* shared_base() { return shared_; }
  std::uint32_t shared_size() const { return launch_.shared_bytes; }
  std::uint32_t shared_offset(const void* pointer) const;

  // Vector-clock edges: what `acquire` reads after another warp's `release` is ordered.
  void release(Clock& into);
  void acquire(const Clock& from);

  std::uint32_t block[3] = {}, grid[3] = {};
  std::shared_ptr<void> extension;  // what further instruction sets keep for a block
  const Launch& launch() const { return launch_; }
  [[noreturn]] void fail(const std::string& message) const;

 private:
  struct Word {  // of shared memory, 4 bytes
    std::uint32_t written = 0;
    std::int32_t writer = -1;
  };

  void run_block();
  void step_warp(Warp& w);
  [[noreturn]] void diverged(const char* name) const;
  void deadlock() const;
  void check_race(std::size_t word, bool write);

  Launch launch_;
  std::function<void()> body_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::array<NamedBarrier, 16> barriers_;
  std::unique_ptr<std::byte[]> storage_;
  std::byte* shared_ = nullptr;
  std::vector<Word> words_;
  std::vector<std::uint32_t> reads_;  // [word][warp]: the reader's clock
  std::string error_;
  std::uint64_t random_ = 1;
};

// A registered tensor's bytes or an error.
void check_global_access(const void* pointer, std::size_t bytes, bool write);

}  // namespace tilewise::emulator
