// A small pool of persistent threads that share one list of numbered tasks.
//
// parallel() runs f(worker, task) for every task, worker < threads, with at most `threads` threads, the
// caller being worker 0. Concurrent callers are allowed: one has the pool, the others run their tasks
// themselves. After a fork the child starts a pool of its own.
#pragma once

#include <atomic>
#include <functional>

#include "kernels/shared/types.h"

namespace tilewise::cpu {

void parallel(int threads, i64 tasks, const std::function<void(int worker, i64 task)>& f);

// For progress displays: tasks of the latest call of this process, and how many of them were begun.
struct Progress {
  i64 begun, tasks;
};
Progress progress();

}  // namespace tilewise::cpu
