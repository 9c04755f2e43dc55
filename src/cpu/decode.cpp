#include "cpu/decode.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/isa.h"
#include "cpu/pool.h"
#include "cpu/task_builder.h"

namespace tilewise::cpu {
namespace {

static_assert(plan::kDecodeRows <= kMaxDecodeRows);

constexpr i64 kChunk = 512;  // keys of a task: fixed, so that a result depends on its sequence alone
constexpr float kEmpty = -std::numeric_limits<float>::infinity();

i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }

// The partial result of one (sequence, key/value head, chunk): rows are (query head of the group, query).
struct Partials {
  float *o, *row_max, *row_sum;
};

class Decode : public Execution {
 public:
  Decode(const Problem& p, const plan::CpuChoice& choice)
      : kernels_(*find_kernels(choice.isa)), chunks_(std::max<i64>(ceil_div(p.Sk, kChunk), 1)) {
    const i64 tasks = p.B * p.Hk * chunks_, rows = p.Sq * p.group();
    threads_ = int(std::clamp<i64>(tasks, 1, choice.threads));
    // Heads that lie side by side are read together, as long as there are tasks for all threads.
    const bool side_by_side = p.k.stride.h == p.D && p.v.stride.h == p.Dv;
    heads_ = int(std::clamp<i64>(side_by_side ? tasks / (4 * threads_) : 1, 1,
                                 std::clamp<i64>(p.Hk, 1, kMaxDecodeHeads)));
    per_thread_ = kernels_.decode_scratch({i32(p.D), i32(p.Dv), i32(heads_ * rows)});
    partial_floats_ = ceil_div(rows * (p.Dv + 2), 16) * 16;
    all_partials_ = size_t(tasks * partial_floats_) * sizeof(float);
  }

  size_t workspace() const override { return per_thread_ * size_t(threads_) + all_partials_; }

  void run(const Problem& p, void* workspace, void*) const override {
    const std::vector<Sequence> all = sequences(p);
    clear_unused_rows(p, all);
    char* memory = static_cast<char*>(workspace);
    auto* partials = reinterpret_cast<float*>(memory + per_thread_ * size_t(threads_));
    auto* kernel = kernels_.decode[dtype_index(p.dtype)];
    const i64 sets = ceil_div(p.Hk, heads_);
    parallel(team(p, threads_), p.B * chunks_ * sets, [&](int worker, i64 number) {
      const Sequence& s = all[size_t(number / (sets * chunks_))];
      const i64 first = number % sets * heads_, chunk = number / sets % chunks_;
      if (chunk_keys(p, s, chunk).empty()) return;
      DecodeTask heads[kMaxDecodeHeads];
      const int count = int(std::min<i64>(heads_, p.Hk - first));
      for (int h = 0; h < count; ++h) heads[h] = make_task(p, s, first + h, chunk, partials);
      kernel(heads, count, memory + size_t(worker) * per_thread_);
    });
    parallel(team(p, threads_), p.B * p.H, [&](int, i64 number) {
      const Sequence& s = all[size_t(number / p.H)];
      with_type(p.dtype, [&](auto zero) {
        for (i64 i = 0; i < s.sq; ++i) merge_row<decltype(zero)>(p, s, number % p.H, i, partials);
      });
    });
  }

 private:
  // Keys of a chunk that some query of the sequence sees; empty for none.
  static Range<i32> chunk_keys(const Problem& p, const Sequence& s, i64 chunk) {
    if (s.sq == 0) return {0, 0};
    const Range<i32> any = sequence_band(p, s).any(0, i32(s.sq));
    return {std::max(any.begin, i32(chunk * kChunk)), std::min(any.end, i32((chunk + 1) * kChunk))};
  }

  Partials partial(const Problem& p, const Sequence& s, i64 kv_head, i64 chunk, float* partials) const {
    float* o = partials + ((s.index * p.Hk + kv_head) * chunks_ + chunk) * partial_floats_;
    const i64 rows = s.sq * p.group();
    return {o, o + rows * p.Dv, o + rows * (p.Dv + 1)};
  }

  DecodeTask make_task(const Problem& p, const Sequence& s, i64 kv_head, i64 chunk, float* partials) const {
    DecodeTask t{};
    const Range<i32> keys = chunk_keys(p, s, chunk);
    t.begin = keys.begin, t.end = keys.end;
    t.k = head_matrix(p.k, s.k_b, s.k_row, kv_head);
    t.v = head_matrix(p.v, s.k_b, s.k_row, kv_head);
    t.q_column = p.q.stride.d;
    t.D = i32(p.D), t.Dv = i32(p.Dv);
    t.rows = i32(s.sq * p.group());
    const Band<i32> band = sequence_band(p, s);
    for (i32 r = 0; r < t.rows; ++r) {
      const i64 head = kv_head * p.group() + r / s.sq;
      const i32 i = r % i32(s.sq);
      t.q[r] = head_matrix(p.q, s.q_b, s.q_row + i, head).data;
      const Range<i32> seen = band.row(i);
      t.low[r] = seen.begin, t.high[r] = seen.end;
      if (p.has_alibi) t.slope[r] = p.alibi[s.index * p.alibi_b + head * p.alibi_h];
      t.position[r] = i + i32(s.sk - s.sq);
    }
    t.scale = p.scale;
    t.softcap = p.softcap;
    t.has_alibi = p.has_alibi;
    const Partials to = partial(p, s, kv_head, chunk, partials);
    t.o = to.o, t.row_max = to.row_max, t.row_sum = to.row_sum;
    return t;
  }

  // All chunks of one row, in order; then the sink, 1 / l and the LSE, as in the tiles' last step.
  template <class T>
  void merge_row(const Problem& p, const Sequence& s, i64 head, i64 i, float* partials) const {
    const i64 row = head % p.group() * s.sq + i;
    float top = kEmpty;
    auto each = [&](auto&& f) {
      for (i64 c = 0; c < chunks_; ++c)
        if (!chunk_keys(p, s, c).empty()) f(partial(p, s, head / p.group(), c, partials));
    };
    each([&](const Partials& x) { top = std::max(top, x.row_max[row]); });
    const float reference = top == kEmpty ? 0 : top;
    float sum = 0;
    float* o = nullptr;  // the first chunk's row collects all
    each([&](const Partials& x) {
      const float weight = std::exp(x.row_max[row] - reference);
      const float* from = x.o + row * p.Dv;
      sum += weight * x.row_sum[row];
      if (!o) {
        o = x.o + row * p.Dv;
        for (i64 d = 0; d < p.Dv; ++d) o[d] *= weight;
      } else {
        for (i64 d = 0; d < p.Dv; ++d) o[d] += weight * from[d];
      }
    });
    const bool none = top == kEmpty && sum == 0;
    float lse = none ? kEmpty : top + std::log(sum), share = none ? 0 : 1 / sum;
    if (p.has_sink && p.sink[head * p.sink_h] != kEmpty) {
      const float sink = p.sink[head * p.sink_h], highest = top > sink ? top : sink;
      const float past = std::exp(top - highest), total = sum * past + std::exp(sink - highest);
      lse = highest + std::log(total);
      share = past / total;
    }
    for (i64 d = 0; d < p.Dv; ++d)
      *p.out.at<T>(s.q_b, s.q_row + i, head, d) = none ? T{} : from_float<T>(o[d] * share);
    if (p.lse) *p.lse.at(s.q_b, head, s.q_row + i) = lse;
  }

  const Kernels& kernels_;
  i64 chunks_;
  int threads_ = 1, heads_ = 1;
  size_t per_thread_ = 0, all_partials_ = 0;
  i64 partial_floats_ = 0;
};

}  // namespace

std::unique_ptr<Execution> make_decode(const Problem& p, const plan::CpuChoice& choice) {
  return std::make_unique<Decode>(p, choice);
}

}  // namespace tilewise::cpu
