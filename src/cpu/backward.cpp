#include "cpu/backward.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/backward_schedule.h"
#include "cpu/backward_work.h"
#include "cpu/isa.h"
#include "cpu/pool.h"
#include "cpu/task_builder.h"

namespace tilewise::cpu {
namespace {

// Bytes of the query sub-blocks of a task, which share a key block and its dK and dV: they and it fit a small
// L2 cache, and the more they are, the less often a long head's K, V, dK and dV come from beyond it.
constexpr i64 kStateBytes = 400 << 10;

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Rows [begin, end) of every head become 0.
template <class T>
void clear_rows(const View& t, i64 b, i64 begin, i64 end, i64 heads, i64 width) {
  for (i64 i = begin; i < end; ++i)
    for (i64 h = 0; h < heads; ++h)
      for (i64 d = 0; d < width; ++d) *t.at<T>(b, i, h, d) = T{};
}

// Gradient rows that belong to no sequence are 0.
template <class T>
void clear_unused_rows(const Problem& p, const std::vector<Sequence>& all) {
  auto clear_q = [&](i64 b, i64 begin, i64 end) { clear_rows<T>(p.dq, b, begin, end, p.H, p.D); };
  auto clear_k = [&](i64 b, i64 begin, i64 end) {
    clear_rows<T>(p.dk, b, begin, end, p.Hk, p.D);
    clear_rows<T>(p.dv, b, begin, end, p.Hk, p.Dv);
  };
  i64 q_done = 0, k_done = 0;  // packed: rows before these have their owner
  for (const Sequence& s : all) {
    if (p.packed) {
      clear_q(0, q_done, s.q_row);
      clear_k(0, k_done, s.k_row);
      q_done = s.q_row + s.sq, k_done = s.k_row + s.sk;
    } else {
      clear_q(s.q_b, s.sq, p.Sq);
      clear_k(s.k_b, s.sk, p.Sk);
    }
  }
  if (p.packed) {
    clear_q(0, q_done, p.total_q);
    clear_k(0, k_done, p.total_k);
  }
}

// Accumulators that parts borrow one at a time. Not one a thread: there may be more threads than whole units.
class Slots {
 public:
  explicit Slots(size_t n) : taken_(n) {}
  size_t take() {
    size_t n = 0;
    wait_until(
        [&] { return !taken_[n = (n + 1) % taken_.size()].exchange(true, std::memory_order_acquire); });
    return n;
  }
  void give_back(size_t n) { taken_[n].store(false, std::memory_order_release); }

 private:
  std::vector<std::atomic<bool>> taken_;
};

static_assert(kBackwardTasks <= kMaxGradientParts);

class Backward : public Execution {
 public:
  Backward(const Problem& p, const plan::CpuChoice& choice) : kernels_(*find_kernels(choice.isa)) {
    grain_ = {kernels_.queries, kernels_.width, 1};
    const i64 floats = (3 * padded(p.D, grain_.width) + 2 * padded(p.Dv, grain_.width)) * grain_.block_q;
    grain_.most_blocks = std::clamp<i64>(kStateBytes / (floats * i64(sizeof(float))), 2, kMaxGroup);
    shape_ = {i32(p.D), i32(p.Dv), i32(grain_.most_blocks), false};
    threads_ = choice.threads;
    scratch_bytes_ = aligned(kernels_.backward_scratch(shape_));
    if (p.dbias) scratch_bytes_ += aligned(size_t(kernels_.queries * kernels_.keys) * sizeof(float));
    slot_bytes_ = aligned(accumulator_bytes(p, grain_, p.Sk));
    split_bytes_ = split_budget(p, grain_);
    slots_ = split_bytes_ && !p.varlen() ? 0 : size_t(std::min<i64>(threads_, p.B * p.Hk));
  }

  size_t workspace() const override {
    return size_t(threads_) * scratch_bytes_ + slots_ * slot_bytes_ + split_bytes_;
  }

  void run(const Problem& p, void* workspace, void*) const override {
    with_type(p.dtype, [&](auto zero) { run_as<decltype(zero)>(p, static_cast<std::byte*>(workspace)); });
  }

 private:
  template <class T>
  void run_as(const Problem& p, std::byte* workspace) const {
    const std::vector<Sequence> all = sequences(p);
    if (p.varlen()) clear_unused_rows<T>(p, all);
    const BackwardWork work = cut_backward(p, all, grain_, split_bytes_);
    Run run(work, threads_, slots_);
    run.scratch = workspace;
    run.slots = workspace + size_t(threads_) * scratch_bytes_;
    run.split = run.slots + slots_ * slot_bytes_;
    if (p.has_dsink) run.dsink.resize(work.steps.size());

    // First all steps, then the rows of split units.
    const std::vector<Rows> rows = rows_left(work);
    const i64 steps = i64(work.steps.size());
    parallel(team(p, threads_), steps + i64(rows.size()), [&](int worker, i64 n) {
      if (n < steps) {
        run_step<T>(p, run, worker);
      } else {
        const Rows& r = rows[size_t(n - steps)];
        run.schedule.wait_for_unit(r.unit);
        store_unit(p, run, r);
      }
    });
    if (p.has_dsink) sum_dsink(p, run);
    if (p.dbias) sweep_dbias(p, all, workspace);
  }

  struct Rows {  // of dk and dv of a unit
    i64 unit, begin, end;
  };

  // What the threads of one run share.
  struct Run {
    Run(const BackwardWork& w, int threads, size_t slot_count)
        : work(w), schedule(w, threads), slot_of(w.parts.size()), free_slots(slot_count) {}
    const BackwardWork& work;
    BackwardSchedule schedule;
    std::byte *scratch, *slots, *split;
    std::vector<size_t> slot_of;  // parts of units that are not split
    Slots free_slots;
    std::vector<double> dsink;  // of each step
  };

  std::byte* scratch_of(std::byte* scratch, int worker) const {
    return scratch + size_t(worker) * scratch_bytes_;
  }

  static bool split(const Run& run, const BackwardPart& part) {
    return run.work.units[size_t(part.unit)].parts > 1;
  }

  // Where a part accumulates dk and dv.
  Accumulators accumulators(const Problem& p, const Run& run, const BackwardPart& part) const {
    const i64 D = padded(p.D, grain_.width), Dv = padded(p.Dv, grain_.width);
    auto* floats = reinterpret_cast<float*>(split(run, part)
                                                ? run.split + part.split_offset
                                                : run.slots + run.slot_of[size_t(part.number)] * slot_bytes_);
    return {floats, floats + part.sequence.sk * D, D, Dv};
  }

  void begin_part(const Problem& p, Run& run, const BackwardPart& part) const {
    if (!split(run, part)) run.slot_of[size_t(part.number)] = run.free_slots.take();
    const Accumulators sum = accumulators(p, run, part);
    const i64 keys = part.key_end - part.key_begin;
    std::fill_n(sum.dk + part.key_begin * sum.dk_row, keys * sum.dk_row, 0.f);
    std::fill_n(sum.dv + part.key_begin * sum.dv_row, keys * sum.dv_row, 0.f);
  }

  template <class T>
  void run_step(const Problem& p, Run& run, int worker) const {
    const i64 number = run.schedule.claim(worker, [&](const BackwardPart& x) { begin_part(p, run, x); });
    const BackwardStep& step = run.work.steps[size_t(number)];
    const BackwardPart& part = run.work.parts[size_t(step.part)];
    const i64 h = part.kv_head * p.group() + step.member;
    BackwardTask t = make_task(p, part.sequence, h, step.first_block * grain_.block_q, step.blocks);
    const Accumulators sum = accumulators(p, run, part);
    t.dk = sum.dk, t.dk_row = sum.dk_row;
    t.dv = sum.dv, t.dv_row = sum.dv_row;
    if (p.has_dsink) t.dsink = &run.dsink[size_t(number)];
    const BackwardSchedule::Turn turn = run.schedule.turn(number);
    t.progress = turn.progress, t.before = turn.before, t.wait = BackwardSchedule::wait;
    kernels_.backward[dtype_index(p.dtype)](t, scratch_of(run.scratch, worker));
    if (!run.schedule.finish(number)) return;
    if (split(run, part)) return run.schedule.finish_part(part);
    store_unit(p, run, {part.unit, 0, part.sequence.sk});
    run.free_slots.give_back(run.slot_of[size_t(part.number)]);
  }

  // The rows that no part's last step stores: of split units, and of units without queries.
  static std::vector<Rows> rows_left(const BackwardWork& work) {
    std::vector<Rows> rows;
    for (size_t n = 0; n < work.units.size(); ++n) {
      const BackwardPart& first = work.parts[size_t(work.units[n].first_part)];
      const i64 sk = work.units[n].parts > 1 || !first.steps ? first.sequence.sk : 0;
      for (i64 j = 0; j < sk; j += kStoreRows) rows.push_back({i64(n), j, std::min(j + kStoreRows, sk)});
    }
    return rows;
  }

  // dk and dv: the sums of the parts that have seen a key, added in order and rounded once.
  void store_unit(const Problem& p, const Run& run, const Rows& rows) const {
    const BackwardUnit& unit = run.work.units[size_t(rows.unit)];
    auto* kernel = kernels_.store_rows[dtype_index(p.dtype)];
    for (i64 j = rows.begin; j < rows.end; j += kStoreRows) {
      GradientRows dk{}, dv{};
      for (i64 i = 0; i < unit.parts; ++i) {
        const BackwardPart& part = run.work.parts[size_t(unit.first_part + i)];
        if (j < part.key_begin || j >= part.key_end) continue;
        const Accumulators sum = accumulators(p, run, part);
        dk.sum[dk.parts++] = sum.dk + j * sum.dk_row;
        dv.sum[dv.parts++] = sum.dv + j * sum.dv_row;
      }
      const BackwardPart& part = run.work.parts[size_t(unit.first_part)];
      const Sequence& s = part.sequence;
      dk.columns = i32(p.D), dk.row = padded(p.D, grain_.width);
      dv.columns = i32(p.Dv), dv.row = padded(p.Dv, grain_.width);
      dk.rows = dv.rows = std::min(kStoreRows, rows.end - j);
      dk.to = head_matrix(p.dk, s.k_b, s.k_row + j, part.kv_head);
      dv.to = head_matrix(p.dv, s.k_b, s.k_row + j, part.kv_head);
      kernel(dk);
      kernel(dv);
    }
  }

  void sum_dsink(const Problem& p, const Run& run) const {
    std::vector<double> sum(size_t(p.H));
    for (size_t n = 0; n < run.dsink.size(); ++n) {
      const BackwardStep& step = run.work.steps[n];
      sum[size_t(run.work.parts[size_t(step.part)].kv_head * p.group() + step.member)] += run.dsink[n];
    }
    for (i64 h = 0; h < p.H; ++h) p.dsink[h * p.dsink_h] = float(sum[size_t(h)]);
  }

  // Each region of dbias is summed by one task over every score that was made of it: sequences, heads, then
  // blocks.
  void sweep_dbias(const Problem& p, const std::vector<Sequence>& all, std::byte* scratch) const {
    const std::vector<BiasRegion> regions = cut_dbias(p, kernels_.queries, kernels_.keys);
    const i64* size = p.dbias.size;
    const i64 step_i = size[2] == 1 ? 0 : 1, step_j = size[3] == 1 ? 0 : kernels_.queries;
    parallel(team(p, threads_), i64(regions.size()), [&](int worker, i64 n) {
      const BiasRegion& r = regions[size_t(n)];
      auto* sum =
          reinterpret_cast<float*>(scratch_of(scratch, worker) + aligned(kernels_.backward_scratch(shape_)));
      std::fill_n(sum, kernels_.queries * kernels_.keys, 0.f);
      for (const Sequence& s : all) {
        if (size[0] != 1 && s.index != r.b) continue;
        for (i64 h = size[1] == 1 ? 0 : r.h; h < (size[1] == 1 ? p.H : r.h + 1); ++h)
          for (i64 i = r.i0; i < std::min(r.i1, s.sq); i += kernels_.queries) {
            BackwardTask t = make_task(p, s, h, i, 1);
            t.dbias = sum, t.dbias_i = step_i, t.dbias_j = step_j;
            t.dbias_begin = i32(r.j0), t.dbias_end = i32(std::min(r.j1, s.sk));
            if (t.dbias_begin < t.dbias_end)
              kernels_.backward[dtype_index(p.dtype)](t, scratch_of(scratch, worker));
          }
      }
      with_type(p.dbias.dtype, [&](auto zero) {
        using T = decltype(zero);
        auto* out = reinterpret_cast<T*>(p.dbias.data);
        for (i64 j = r.j0; j < (step_j ? r.j1 : r.j0 + 1); ++j)
          for (i64 i = r.i0; i < (step_i ? r.i1 : r.i0 + 1); ++i)
            out[p.dbias.index(r.b, r.h, i, j)] =
                from_float<T>(sum[(i - r.i0) * step_i + (j - r.j0) * step_j]);
      });
    });
  }

  BackwardTask make_task(const Problem& p, const Sequence& s, i64 h, i64 first, i64 group) const {
    const i64 kv_head = h / p.group();
    BackwardTask t{};
    t.q = head_matrix(p.q, s.q_b, s.q_row, h);
    t.k = head_matrix(p.k, s.k_b, s.k_row, kv_head);
    t.v = head_matrix(p.v, s.k_b, s.k_row, kv_head);
    t.out = head_matrix(p.out, s.q_b, s.q_row, h);
    t.dout = head_matrix(p.dout, s.q_b, s.q_row, h);
    t.dq = head_matrix(p.dq, s.q_b, s.q_row, h);
    t.lse = p.lse.at(s.q_b, h, s.q_row), t.lse_row = p.lse.s;
    t.dlse = p.dlse ? p.dlse.at(s.q_b, h, s.q_row) : nullptr, t.dlse_row = p.dlse.s;
    t.D = i32(p.D), t.Dv = i32(p.Dv);
    const Band<i32> band = sequence_band(p, s);
    for (; t.group < group && first < s.sq; first += kernels_.queries)
      t.block[t.group++] = sub_block(band, i32(first), i32(std::min<i64>(kernels_.queries, s.sq - first)));
    t.score = score_options(p, s, h);
    t.has_sink = p.has_sink;
    if (p.has_sink) t.sink = p.sink[h * p.sink_h];
    return t;
  }

  const Kernels& kernels_;
  ScratchShape shape_{};
  BackwardGrain grain_;
  int threads_ = 1;
  size_t scratch_bytes_ = 0, slots_ = 0, slot_bytes_ = 0, split_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Execution> make_backward(const Problem& p, const plan::CpuChoice& choice) {
  return std::make_unique<Backward>(p, choice);
}

}  // namespace tilewise::cpu
