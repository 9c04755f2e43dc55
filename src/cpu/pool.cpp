#include "cpu/pool.h"

#include <pthread.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace tilewise::cpu {
namespace {

// Every thread computes in the same floating-point environment (round to nearest, subnormals kept), whatever
// the caller's is: else the result would depend on which thread runs a task.
class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
};

std::atomic<i64> latest_begun{0}, latest_tasks{0};

// One call of parallel(). Kernels do not throw.
struct Job {
  const std::function<void(int, i64)>& f;
  const i64 tasks;
  const int threads;
  std::atomic<i64> next{0};
  std::atomic<int> joined{0};  // of the caller's threads

  void work(int worker) {
    const DefaultFloatEnvironment environment;
    for (i64 t; (t = next.fetch_add(1, std::memory_order_relaxed)) < tasks;) {
      latest_begun.store(t + 1, std::memory_order_relaxed);
      f(worker, t);
    }
  }
};

// One of the caller's threads, of which there may be more than were asked for.
void join(void* data) {
  Job& job = *static_cast<Job*>(data);
  const int worker = job.joined.fetch_add(1, std::memory_order_relaxed);
  if (worker < job.threads) job.work(worker);
}

// Waits for `ready`, but not long: a thread that sleeps takes 20 to 60 us to wake.
template <class F>
void spin(const F& ready) {
  using Clock = std::chrono::steady_clock;
  for (const auto start = Clock::now(); !ready() && Clock::now() - start < std::chrono::microseconds(50);) {
  }
}

class Pool {
 public:
  // False when another caller has the pool.
  bool try_run(Job& job) {
    std::unique_lock owner(owner_, std::try_to_lock);
    if (!owner.owns_lock()) return false;
    {
      const std::lock_guard lock(mutex_);
      start_threads(job.threads - 1);
      job_ = &job;
      joined_ = 0;
      ++round_;
    }
    wake_.notify_all();
    job.work(0);
    {
      const std::lock_guard lock(mutex_);
      job_ = nullptr;  // whoever has not joined by now need not
    }
    spin([&] { return working_.load(std::memory_order_acquire) == 0; });
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return working_ == 0; });
    return true;
  }

 private:
  void start_threads(int wanted) {
    for (; started_ < wanted; ++started_) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error&) {
        return;  // no more threads to be had: the others do the work
      }
    }
  }

  void serve() {
    u64 seen = 0;
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return job_ && round_ != seen && joined_ < job_->threads - 1; });
      seen = round_;
      Job& job = *job_;
      const int worker = ++joined_;
      ++working_;
      lock.unlock();
      job.work(worker);
      lock.lock();
      if (--working_ == 0) done_.notify_all();
    }
  }

  std::mutex owner_;  // held by the caller that uses the pool
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  Job* job_ = nullptr;
  u64 round_ = 0;
  int joined_ = 0, started_ = 0;
  std::atomic<int> working_{0};  // changed under the mutex
};

// Never destroyed: its threads may outlive main(). The child of a fork has none of them and gets a new one.
std::atomic<Pool*> the_pool{nullptr};

Pool& pool() {
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] { the_pool.store(nullptr); });
  (void)at_fork;
  Pool* p = the_pool.load(std::memory_order_acquire);
  if (!p) {
    auto* fresh = new Pool;
    if (the_pool.compare_exchange_strong(p, fresh)) return *fresh;
    delete fresh;
  }
  return *p;
}

}  // namespace

void parallel(Team team, i64 tasks, const std::function<void(int worker, i64 task)>& f) {
  const int threads = int(std::min<i64>(team.threads, tasks));
  latest_begun.store(0, std::memory_order_relaxed);
  latest_tasks.store(tasks, std::memory_order_relaxed);
  Job job{f, tasks, threads};
  if (threads > 1 && team.run)
    team.run(team.context, threads, join, &job);
  else if (threads > 1 && pool().try_run(job))
    return;
  job.work(0);  // all of it, or what the caller's threads left
}

Progress progress() {
  return {latest_begun.load(std::memory_order_relaxed), latest_tasks.load(std::memory_order_relaxed)};
}

}  // namespace tilewise::cpu
