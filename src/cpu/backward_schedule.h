// Who does which step of the backward: a thread keeps to its part until that has no step left, begins the
// next part, and when all are begun helps with the part that has most left. Any number of threads may be at
// the steps of one part: each adds to a block of keys when all steps before it have, so that the sums are the
// same whoever does what.
#pragma once

#include <atomic>
#include <limits>
#include <memory>
#include <thread>

#include "cpu/backward_work.h"

namespace tilewise::cpu {

// Returns when `done` says so; the processor goes to others meanwhile, if it takes long.
template <class F>
void wait_until(F&& done) {
  for (int spins = 0; !done(); ++spins)
    if (spins >= 1000) std::this_thread::yield();
}

class BackwardSchedule {
 public:
  BackwardSchedule(const BackwardWork& work, int threads)
      : work_(work),
        parts_(work.parts.size()),
        units_(work.units.size()),
        progress_(std::make_unique<std::atomic<i32>[]>(work.steps.size())),
        workers_(std::make_unique<Worker[]>(size_t(threads))) {
    for (const i64 n : work.order) ++units_[size_t(part(n).unit)].left;
  }

  // A step that nobody has. To be called once for each step of the work. begin(part) is called before a
  // part's first step.
  template <class F>
  i64 claim(int worker, F&& begin) {
    i64& current = workers_[size_t(worker)].part;
    for (;;) {
      if (current >= 0) {
        const i64 n = parts_[size_t(current)].claimed.fetch_add(1, std::memory_order_relaxed);
        if (n < part(current).steps) return part(current).first_step + n;
      }
      const size_t next = begun_.fetch_add(1, std::memory_order_relaxed);
      if (next < work_.order.size()) {
        current = work_.order[next];
        begin(part(current));
        parts_[size_t(current)].open.store(true, std::memory_order_release);
      } else {
        wait_until([&] { return (current = most_left()) >= 0; });
      }
    }
  }

  // The kernels' view of the steps before this one of the same part: progress[-1], progress[-2], ... of this
  // one's progress are keys that they will not add to any more, as many as are not known to be done.
  struct Turn {
    i32* progress;
    i32 before;
  };
  Turn turn(i64 step) {
    std::atomic<i32>* progress = &progress_[size_t(step)];
    i64 before = step - part(work_.steps[size_t(step)].part).first_step;
    while (before > 0 && progress[-before].load(std::memory_order_acquire) == kDone) --before;
    static_assert(sizeof(std::atomic<i32>) == sizeof(i32) && std::atomic<i32>::is_always_lock_free);
    return {reinterpret_cast<i32*>(progress), i32(before)};
  }

  static void wait(const i32* progress, i32 key) {
    wait_until([&] { return __atomic_load_n(progress, __ATOMIC_ACQUIRE) >= key; });
  }

  // True for the last step of its part.
  bool finish(i64 step) {
    const i64 n = work_.steps[size_t(step)].part;
    progress_[size_t(step)].store(kDone, std::memory_order_release);
    return parts_[size_t(n)].finished.fetch_add(1, std::memory_order_acq_rel) + 1 == part(n).steps;
  }

  void finish_part(const BackwardPart& part) {
    units_[size_t(part.unit)].left.fetch_sub(1, std::memory_order_release);
  }
  void wait_for_unit(i64 unit) const {
    wait_until([&] { return units_[size_t(unit)].left.load(std::memory_order_acquire) == 0; });
  }

 private:
  static constexpr i32 kDone = std::numeric_limits<i32>::max();
  struct Part {
    std::atomic<i64> claimed{0}, finished{0};
    std::atomic<bool> open{false};
  };
  struct Unit {
    std::atomic<i64> left{0};
  };
  struct alignas(64) Worker {
    i64 part = -1;
  };

  const BackwardPart& part(i64 n) const { return work_.parts[size_t(n)]; }

  i64 most_left() const {
    i64 best = -1, most = 0;
    for (size_t n = 0; n < parts_.size(); ++n) {
      const i64 left = part(i64(n)).steps - parts_[n].claimed.load(std::memory_order_relaxed);
      if (left > most && parts_[n].open.load(std::memory_order_acquire)) best = i64(n), most = left;
    }
    return best;
  }

  const BackwardWork& work_;
  std::vector<Part> parts_;
  std::vector<Unit> units_;
  std::unique_ptr<std::atomic<i32>[]> progress_;
  std::unique_ptr<Worker[]> workers_;
  std::atomic<size_t> begun_{0};
};

}  // namespace tilewise::cpu
