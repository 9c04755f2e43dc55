// Barriers of the thread block and of the warp. Ids 1..15 are free for kernels; 0 is sync_threads.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// bar.sync 0
TILEWISE_INSTRUCTION void sync_threads() TILEWISE_PTX({ asm volatile("bar.sync 0;" ::: "memory"); });

// bar.sync id, threads: waits until `threads` threads have arrived or waited.
TILEWISE_INSTRUCTION void bar_sync(int id, int threads) TILEWISE_PTX({
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
});

// bar.arrive id, threads: counts, does not wait.
TILEWISE_INSTRUCTION void bar_arrive(int id, int threads) TILEWISE_PTX({
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
});

// bar.warp.sync of all 32 lanes
TILEWISE_INSTRUCTION void sync_warp() TILEWISE_PTX({
  asm volatile("bar.warp.sync 0xffffffff;" ::: "memory");
});

// bar.red.or.pred: does any thread of the block say yes? A sync_threads too.
TILEWISE_INSTRUCTION bool sync_threads_or(bool yes) TILEWISE_PTX({ return __syncthreads_or(yes) != 0; });

}  // namespace tilewise::ptx
