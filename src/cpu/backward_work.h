// The backward's work, cut from the shape alone, so that the sums are the same for any number of threads.
//
// A unit is one key/value head of one sequence: it owns a slice of dk and dv, and the rows of dq of its query
// heads. A unit's items are the query blocks of its query heads, in order; a part is a run of them with an
// fp32 accumulator of dk and dv of its own. Most problems have one part a unit; where units are few, the
// items of a unit are cut into parts of equal work, and their accumulators are added in order. A step is some
// neighbouring blocks of one query head, what one call of a kernel does; the steps of a part add to its
// accumulator in order, the last blocks first, because under a causal mask they see most.
#pragma once

#include <cstddef>
#include <vector>

#include "core/problem.h"

namespace tilewise::cpu {

struct Accumulators {  // fp32 rows of dk and dv, one for each key of the sequence
  float *dk = nullptr, *dv = nullptr;
  i64 dk_row = 0, dv_row = 0;  // distance between rows
};

struct BackwardStep {
  i64 part = 0;
  i64 member = 0;  // query head of the group
  i64 first_block = 0, blocks = 0;
};

struct BackwardPart {
  i64 number = 0, unit = 0;
  Sequence sequence{};
  i64 kv_head = 0;
  i64 begin = 0, end = 0;  // items: (query head of the group) * blocks + block
  i64 cost = 0;
  i64 first_step = 0, steps = 0;
  i64 key_begin = 0, key_end = 0;  // rows of its accumulators that are used, whole chunks of kStoreRows
  size_t split_offset = 0;         // of its accumulators among those of split units, in bytes
};

struct BackwardUnit {
  i64 first_part = 0, parts = 1;
};

struct BackwardWork {
  std::vector<BackwardUnit> units;
  std::vector<BackwardPart> parts;  // of unit 0, then of unit 1, ...
  std::vector<BackwardStep> steps;  // of part 0, then of part 1, ...
  std::vector<i64> order;           // in which parts that have steps are begun: most work first
};

constexpr i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
constexpr i64 padded(i64 n, i64 width) { return ceil_div(n, width) * width; }

constexpr i64 kBackwardTasks = 4;  // parts that a problem is cut into at least, if it can be

constexpr i64 kStoreRows = 64;  // rows of dk and dv that are summed and rounded at once

// What an instruction set's kernels ask of the work: rows of a query block, and the multiple of floats that
// an accumulator's row is padded to.
struct BackwardGrain {
  i64 block_q = 1, width = 1;
  i64 most_blocks = 1;  // of a step
};

// Fills `split_bytes` of accumulators at most with the parts of split units.
BackwardWork cut_backward(const Problem& p, const std::vector<Sequence>& sequences, BackwardGrain grain,
                          size_t split_bytes);

// Bytes of the accumulators of one part over a sequence of sk keys.
size_t accumulator_bytes(const Problem& p, BackwardGrain grain, i64 sk);

// The split_bytes of a problem, from its shape alone. Sequences of one length are all split, or none is (0).
size_t split_budget(const Problem& p, BackwardGrain grain);

// dbias is summed in a sweep of its own: a region is a block of dbias (all of an axis where that is
// broadcast), owned by one task that adds up every score that was made of it, in order.
struct BiasRegion {
  i64 b, h;            // of dbias: 0 where broadcast
  i64 i0, i1, j0, j1;  // positions of the scores that it sums
};

std::vector<BiasRegion> cut_dbias(const Problem& p, i64 block_q, i64 block_k);

}  // namespace tilewise::cpu
