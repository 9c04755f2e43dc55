#include "cpu/forward.h"

#include <algorithm>
#include <limits>

#include "cpu/isa.h"
#include "cpu/pool.h"
#include "cpu/task_builder.h"

namespace tilewise::cpu {
namespace {

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// Which task is which (sequence, head, group of sub-blocks): sequences with much work first, and inside a
// head the last queries first, which see most keys under a causal mask.
class TaskList {
 public:
  TaskList(const Problem& p, const std::vector<Sequence>& all, const Kernels& kernels, int group, int threads)
      : H_(p.H),
        queries_(kernels.queries),
        width_(kernels.width),
        group_(group),
        threads_(threads),
        equal_heads_(p.varlen() ? 0 : p.B * p.H),
        equal_rows_(!p.band_masked()) {
    for (const Sequence& s : all) order_.push_back(&s);
    if (p.varlen())
      std::stable_sort(order_.begin(), order_.end(),
                       [](const Sequence* a, const Sequence* b) { return a->sq * a->sk > b->sq * b->sk; });
    end_.reserve(order_.size());
    for (const Sequence* s : order_) {
      per_head_.push_back(p.varlen() || per_head_.empty() ? groups(*s) : per_head_[0]);
      end_.push_back(count() + H_ * per_head_.back());
    }
  }

  i64 count() const { return end_.empty() ? 0 : end_.back(); }

  struct Item {
    const Sequence* sequence;
    i64 head, first_block, blocks;
  };
  Item operator[](i64 task) const {
    const size_t n = size_t(std::upper_bound(end_.begin(), end_.end(), task) - end_.begin());
    const Sequence& s = *order_[n];
    const i64 local = task - (n ? end_[n - 1] : 0), per_head = per_head_[n],
              blocks = ceil_div(s.sq, queries_);
    const i64 g = per_head - 1 - local % per_head, first = g * blocks / per_head;
    return {&s, local / per_head, first, (g + 1) * blocks / per_head - first};
  }

 private:
  // Groups of a head: no more than it needs, or up to a quarter more where the tasks then go more evenly to
  // the threads.
  i64 groups(const Sequence& s) const {
    const i64 blocks = ceil_div(s.sq, queries_), least = ceil_div(blocks, group_);
    if (equal_heads_ * least > 64 * threads_) return least;
    // Counting is part of each call: where it would take many steps, as with many threads, it is enough that
    // all threads get the same number of tasks.
    constexpr i64 kMostSteps = 1 << 16;
    const bool counted = equal_rows_ && (least / 4 + 1) * equal_heads_ * least * threads_ <= kMostSteps;
    i64 best = least, least_work = std::numeric_limits<i64>::max();
    for (i64 n = least; equal_heads_ && n <= std::min(least + least / 4, blocks); ++n) {
      const i64 work = counted ? longest(s, n) : i64(n * equal_heads_ % threads_ != 0);
      if (work < least_work) best = n, least_work = work;
    }
    return best;
  }

  // Vectors of queries of the thread that gets most, when equal heads are cut into n tasks each.
  i64 longest(const Sequence& s, i64 n) const {
    const i64 blocks = ceil_div(s.sq, queries_);
    std::vector<i64> work(static_cast<size_t>(threads_));
    for (i64 h = 0; h < equal_heads_; ++h)
      for (i64 g = n - 1; g >= 0; --g) {
        const i64 end = std::min((g + 1) * blocks / n * queries_, s.sq), begin = g * blocks / n * queries_;
        *std::min_element(work.begin(), work.end()) += ceil_div(end - begin, width_);
      }
    return *std::max_element(work.begin(), work.end());
  }

  std::vector<const Sequence*> order_;
  std::vector<i64> per_head_, end_;  // tasks of a head; tasks up to and including the n-th sequence
  i64 H_, queries_, width_, group_, threads_, equal_heads_;
  bool equal_rows_;  // every query sees about as many keys
};

class Forward : public Execution {
 public:
  Forward(const Problem& p, const plan::CpuChoice& choice) : kernels_(*find_kernels(choice.isa)) {
    shape_ = {i32(p.D), i32(p.Dv), most_blocks(p)};
    const i64 most_tasks = p.total_q * p.H;  // a task has at least one query of one head
    threads_ = int(std::clamp<i64>(most_tasks, 1, choice.threads));
    per_thread_ = kernels_.forward_scratch(shape_);
  }

  size_t workspace() const override { return per_thread_ * size_t(threads_); }

  void run(const Problem& p, void* workspace, void*) const override {
    const std::vector<Sequence> all = sequences(p);
    clear_unused_rows(p, all);
    const int group = group_for(p, all);
    const TaskList tasks(p, all, kernels_, group, threads_);
    auto* kernel = kernels_.forward[dtype_index(p.dtype)];
    parallel(team(p, threads_), tasks.count(), [&](int worker, i64 number) {
      const TaskList::Item item = tasks[number];
      const ForwardTask task = make_task(p, item);
      kernel(task, static_cast<char*>(workspace) + size_t(worker) * per_thread_);
    });
  }

 private:
  // Sub-blocks that share a packed block of K and V. All their states together may exceed a small L2 cache:
  // they are read in order, once a key block, while rows of K and V, packed once a task, come from memory.
  int most_blocks(const Problem& p) const {
    constexpr i64 kStateBytes = 1100 << 10;
    return int(std::clamp<i64>(kStateBytes / ((p.D + p.Dv) * kernels_.queries * 4), 1, kMaxGroup));
  }

  // Sub-blocks per task: fewer when there are not enough tasks for all threads, or under a mask, where tasks
  // are unequal. The result does not depend on it.
  int group_for(const Problem& p, const std::vector<Sequence>& all) const {
    i64 blocks = 0;
    for (const Sequence& s : all) blocks += p.H * ceil_div(s.sq, kernels_.queries);
    const i64 group = p.band_masked() ? blocks / (5 * threads_) : ceil_div(blocks, i64{4} * threads_);
    return int(std::clamp<i64>(group, 1, shape_.group));
  }

  ForwardTask make_task(const Problem& p, const TaskList::Item& item) const {
    const Sequence& s = *item.sequence;
    const i64 h = item.head, kv_head = h / p.group();
    ForwardTask t{};
    t.q = head_matrix(p.q, s.q_b, s.q_row, h);
    t.k = head_matrix(p.k, s.k_b, s.k_row, kv_head);
    t.v = head_matrix(p.v, s.k_b, s.k_row, kv_head);
    t.out = head_matrix(p.out, s.q_b, s.q_row, h);
    t.lse = p.lse ? p.lse.at(s.q_b, h, s.q_row) : nullptr;
    t.lse_row = p.lse.s;
    t.D = i32(p.D), t.Dv = i32(p.Dv);
    t.group = i32(item.blocks);
    // Packing a block of K and V costs about as much as one sub-block's use of it gains.
    const bool contiguous = t.k.row == p.D && t.v.row == p.Dv;
    t.direct = p.dtype == TW_FP32 && t.k.column == 1 && t.v.column == 1 && (contiguous || t.group <= 2);
    const Band<i32> band = sequence_band(p, s);
    for (i32 g = 0; g < t.group; ++g) {
      const i32 first = (i32(item.first_block) + g) * kernels_.queries;
      t.block[g] = sub_block(band, first, std::min<i32>(kernels_.queries, i32(s.sq) - first));
    }
    t.score = score_options(p, s, h);
    t.has_sink = p.has_sink;
    if (p.has_sink) t.sink = p.sink[h * p.sink_h];
    return t;
  }

  const Kernels& kernels_;
  ScratchShape shape_{};
  int threads_ = 1;
  size_t per_thread_ = 0;
};

}  // namespace

std::unique_ptr<Execution> make_forward(const Problem& p, const plan::CpuChoice& choice) {
  return std::make_unique<Forward>(p, choice);
}

}  // namespace tilewise::cpu
