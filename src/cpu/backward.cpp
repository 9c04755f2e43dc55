#include "cpu/backward.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "cpu/backward_work.h"
#include "cpu/isa.h"
#include "cpu/pool.h"
#include "cpu/task_builder.h"

namespace tilewise::cpu {
namespace {

// Bytes of the query sub-blocks of a task, which share a key block and its dK and dV: they and it fit a small
// L2 cache, and the more they are, the less often a long head's K, V, dK and dV come from beyond it.
constexpr i64 kStateBytes = 400 << 10;
constexpr i64 kStoreRows = 256;  // rows of dk and dv that one task sums and rounds

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
    for (size_t n = 0;; n = (n + 1) % taken_.size())
      if (!taken_[n].exchange(true, std::memory_order_acquire)) return n;
  }
  void give_back(size_t n) { taken_[n].store(false, std::memory_order_release); }

 private:
  std::vector<std::atomic<bool>> taken_;
};

class Backward : public Execution {
 public:
  Backward(const Problem& p, const plan::CpuChoice& choice) : kernels_(*find_kernels(choice.isa)) {
    grain_ = {kernels_.queries, kernels_.width};
    const i64 floats = (3 * padded(p.D, grain_.width) + 2 * padded(p.Dv, grain_.width)) * grain_.block_q;
    group_ = std::clamp<i64>(kStateBytes / (floats * i64(sizeof(float))), 2, kMaxGroup);
    shape_ = {i32(p.D), i32(p.Dv), i32(group_), false};
    threads_ = choice.threads;
    scratch_bytes_ = aligned(kernels_.backward_scratch(shape_));
    if (p.dbias) scratch_bytes_ += aligned(size_t(kernels_.queries * kernels_.keys) * sizeof(float));
    slot_bytes_ = aligned(accumulator_bytes(p, grain_, p.Sk));
    split_bytes_ = split_budget(p, grain_);
    slots_ = split_bytes_ && !p.varlen() ? 0 : size_t(std::min<i64>(threads_, p.B * p.Hk));
    dsink_bytes_ =
        p.has_dsink ? aligned(size_t((p.B * p.Hk + kMostSplitParts) * p.group()) * sizeof(double)) : 0;
  }

  size_t workspace() const override {
    return size_t(threads_) * scratch_bytes_ + slots_ * slot_bytes_ + split_bytes_ + dsink_bytes_;
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
    Memory memory{workspace, workspace + size_t(threads_) * scratch_bytes_};
    memory.split = memory.slots + slots_ * slot_bytes_;
    memory.dsink = reinterpret_cast<double*>(memory.split + split_bytes_);
    if (p.has_dsink) std::memset(memory.dsink, 0, dsink_bytes_);

    Slots slots(slots_);  // as many as parts that can need one at a time
    parallel(team(p, threads_), i64(work.parts.size()), [&](int worker, i64 n) {
      const BackwardPart& part = work.parts[size_t(work.order[size_t(n)])];
      if (work.units[size_t(part.unit)].parts > 1)
        return run_part<T>(p, part, memory, worker, memory.split + part.split_offset);
      const size_t slot = slots.take();
      std::byte* at = memory.slots + slot * slot_bytes_;
      run_part<T>(p, part, memory, worker, at);
      store_rows<T>(p, part, {accumulators(p, part, at)}, 0, part.sequence.sk);
      slots.give_back(slot);
    });
    sum_split_units<T>(p, work, memory);
    if (p.has_dsink) sum_dsink(p, work, memory);
    if (p.dbias) sweep_dbias(p, all, memory);
  }

  struct Memory {
    std::byte *scratch, *slots, *split = nullptr;
    double* dsink = nullptr;  // [part][query head of the group]
  };

  std::byte* scratch_of(const Memory& m, int worker) const {
    return m.scratch + size_t(worker) * scratch_bytes_;
  }

  // Where a part accumulates dk and dv.
  Accumulators accumulators(const Problem& p, const BackwardPart& part, std::byte* memory) const {
    const Sequence& s = part.sequence;
    const i64 D = padded(p.D, grain_.width), Dv = padded(p.Dv, grain_.width);
    auto* floats = reinterpret_cast<float*>(memory);
    return {floats, floats + s.sk * D, D, Dv};
  }

  template <class T>
  void run_part(const Problem& p, const BackwardPart& part, const Memory& m, int worker,
                std::byte* at) const {
    const Accumulators sum = accumulators(p, part, at);
    std::memset(at, 0, accumulator_bytes(p, grain_, part.sequence.sk));
    const i64 blocks = ceil_div(part.sequence.sq, grain_.block_q);
    for (i64 item = part.begin, next; item < part.end; item = next) {
      const i64 member = item / blocks, h = part.kv_head * p.group() + member;
      next = std::min({item + group_, (member + 1) * blocks, part.end});
      BackwardTask t = make_task(p, part.sequence, h, item % blocks * grain_.block_q, next - item);
      t.dk = sum.dk, t.dk_row = sum.dk_row;
      t.dv = sum.dv, t.dv_row = sum.dv_row;
      if (p.has_dsink) t.dsink = m.dsink + part.number * p.group() + member;
      kernels_.backward[dtype_index(p.dtype)](t, scratch_of(m, worker));
    }
  }

  // dk and dv of keys [begin, end): the sums of the parts, added in order and rounded once.
  template <class T>
  void store_rows(const Problem& p, const BackwardPart& part, const std::vector<Accumulators>& sums,
                  i64 begin, i64 end) const {
    const Sequence& s = part.sequence;
    auto store = [&](const View& to, i64 width, float* Accumulators::*data, i64 Accumulators::*row) {
      for (i64 j = begin; j < end; ++j) {
        T* out = to.at<T>(s.k_b, s.k_row + j, part.kv_head);
        float* first = sums[0].*data + j * (sums[0].*row);
        for (size_t n = 1; n < sums.size(); ++n) {
          const float* next = sums[n].*data + j * (sums[n].*row);
          for (i64 d = 0; d < width; ++d) first[d] += next[d];
        }
        if (to.stride.d == 1)
          for (i64 d = 0; d < width; ++d) out[d] = from_float<T>(first[d]);
        else
          for (i64 d = 0; d < width; ++d) out[d * to.stride.d] = from_float<T>(first[d]);
      }
    };
    store(p.dk, p.D, &Accumulators::dk, &Accumulators::dk_row);
    store(p.dv, p.Dv, &Accumulators::dv, &Accumulators::dv_row);
  }

  template <class T>
  void sum_split_units(const Problem& p, const BackwardWork& work, const Memory& m) const {
    struct Rows {
      i64 unit, begin, end;
    };
    std::vector<Rows> tasks;
    for (size_t n = 0; n < work.units.size(); ++n) {
      const i64 sk = work.parts[size_t(work.units[n].first_part)].sequence.sk;
      for (i64 j = 0; work.units[n].parts > 1 && j < sk; j += kStoreRows)
        tasks.push_back({i64(n), j, std::min(j + kStoreRows, sk)});
    }
    parallel(team(p, threads_), i64(tasks.size()), [&](int, i64 n) {
      const BackwardUnit& unit = work.units[size_t(tasks[size_t(n)].unit)];
      std::vector<Accumulators> sums;
      for (i64 i = 0; i < unit.parts; ++i) {
        const BackwardPart& part = work.parts[size_t(unit.first_part + i)];
        sums.push_back(accumulators(p, part, m.split + part.split_offset));
      }
      store_rows<T>(p, work.parts[size_t(unit.first_part)], sums, tasks[size_t(n)].begin,
                    tasks[size_t(n)].end);
    });
  }

  void sum_dsink(const Problem& p, const BackwardWork& work, const Memory& m) const {
    for (i64 h = 0; h < p.H; ++h) {
      double sum = 0;
      for (const BackwardPart& part : work.parts)
        if (part.kv_head == h / p.group()) sum += m.dsink[part.number * p.group() + h % p.group()];
      p.dsink[h * p.dsink_h] = float(sum);
    }
  }

  // Each region of dbias is summed by one task over every score that was made of it: sequences, heads, then
  // blocks.
  void sweep_dbias(const Problem& p, const std::vector<Sequence>& all, const Memory& m) const {
    const std::vector<BiasRegion> regions = cut_dbias(p, kernels_.queries, kernels_.keys);
    const i64* size = p.dbias.size;
    const i64 step_i = size[2] == 1 ? 0 : 1, step_j = size[3] == 1 ? 0 : kernels_.queries;
    parallel(team(p, threads_), i64(regions.size()), [&](int worker, i64 n) {
      const BiasRegion& r = regions[size_t(n)];
      auto* sum =
          reinterpret_cast<float*>(scratch_of(m, worker) + aligned(kernels_.backward_scratch(shape_)));
      std::fill_n(sum, kernels_.queries * kernels_.keys, 0.f);
      for (const Sequence& s : all) {
        if (size[0] != 1 && s.index != r.b) continue;
        for (i64 h = size[1] == 1 ? 0 : r.h; h < (size[1] == 1 ? p.H : r.h + 1); ++h)
          for (i64 i = r.i0; i < std::min(r.i1, s.sq); i += kernels_.queries) {
            BackwardTask t = make_task(p, s, h, i, 1);
            t.dbias = sum, t.dbias_i = step_i, t.dbias_j = step_j;
            t.dbias_begin = i32(r.j0), t.dbias_end = i32(std::min(r.j1, s.sk));
            if (t.dbias_begin < t.dbias_end)
              kernels_.backward[dtype_index(p.dtype)](t, scratch_of(m, worker));
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
  i64 group_ = 1;  // sub-blocks of a task
  int threads_ = 1;
  size_t scratch_bytes_ = 0, slots_ = 0, slot_bytes_ = 0, split_bytes_ = 0, dsink_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Execution> make_backward(const Problem& p, const plan::CpuChoice& choice) {
  return std::make_unique<Backward>(p, choice);
}

}  // namespace tilewise::cpu
