// Threads that share one list of numbered tasks: a small pool of persistent ones, or the caller's own.
//
// parallel() runs f(worker, task) for every task, worker < threads, with at most `threads` threads, one of
// them the caller. Concurrent callers are allowed: one has the pool, the others run their tasks themselves.
// After a fork the child starts a pool of its own.
#pragma once

#include <atomic>
#include <functional>

#include "core/problem.h"

namespace tilewise::cpu {

struct Team {
  int threads;
  tw_run_parallel run = nullptr;  // none: the pool
  void* context = nullptr;
};

inline Team team(const Problem& p, int threads) { return {threads, p.run_parallel, p.parallel_context}; }

void parallel(Team team, i64 tasks, const std::function<void(int worker, i64 task)>& f);

// For progress displays: tasks of the latest call of this process, and how many of them were begun.
struct Progress {
  i64 begun, tasks;
};
Progress progress();

}  // namespace tilewise::cpu
