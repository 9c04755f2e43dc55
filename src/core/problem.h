// A checked attention problem: what tw_attention says, in one normal form, after every shape, dtype, stride,
// range and device mistake has been refused. Backends, the planner and the oracle read this and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/dtype.h"
#include "kernels/shared/params.h"
#include "kernels/shared/philox.h"
#include "kernels/shared/ranges.h"
#include "tilewise/tilewise.h"

namespace tilewise {

// A (b, s, h, d) view. Packed tensors have stride.b = 0 and are addressed by row = offset of the sequence +
// s.
struct View {
  std::byte* data = nullptr;
  tw_dtype dtype = TW_DTYPE_NONE;
  Strides stride{};
  explicit operator bool() const { return dtype != TW_DTYPE_NONE; }
  template <class T>
  T* at(i64 b, i64 s, i64 h, i64 d = 0) const {
    return reinterpret_cast<T*>(data) + (b * stride.b + s * stride.s + h * stride.h + d * stride.d);
  }
};

// lse and dlse, as (b, h, s).
struct RowView {
  float* data = nullptr;
  i64 b = 0, h = 0, s = 0;
  explicit operator bool() const { return data != nullptr || given; }
  bool given = false;
  float* at(i64 bi, i64 hi, i64 si) const { return data + (bi * b + hi * h + si * s); }
};

// bias, mask, dbias: (b, h, i, j) with stride 0 where broadcast. size: of the tensor itself (1 where
// broadcast).
struct ScoreView {
  std::byte* data = nullptr;
  tw_dtype dtype = TW_DTYPE_NONE;
  ScoreStrides stride{};
  i64 size[4] = {1, 1, 1, 1};
  explicit operator bool() const { return dtype != TW_DTYPE_NONE; }
  i64 index(i64 b, i64 h, i64 i, i64 j) const {
    return b * stride.b + h * stride.h + i * stride.i + j * stride.j;
  }
};

// An index vector of int32 or int64 (cu_seqlens, seqused).
struct IndexView {
  const void* data = nullptr;
  tw_dtype dtype = TW_DTYPE_NONE;
  i64 stride = 1;
  explicit operator bool() const { return dtype != TW_DTYPE_NONE; }
  i64 operator[](i64 i) const {  // host memory only
    return dtype == TW_INT64 ? static_cast<const int64_t*>(data)[i * stride]
                             : static_cast<const int32_t*>(data)[i * stride];
  }
};

// Where one sequence lives: rows [q_row, q_row + sq) of batch entry b of q (b = 0 when packed), likewise k.
struct Sequence {
  i64 index;  // its number: dropout's and bias's b
  i64 q_b, q_row, sq;
  i64 k_b, k_row, sk;
};

struct Problem {
  tw_pass pass = TW_FORWARD;
  tw_device_type device = TW_CPU;
  int device_index = 0;
  tw_dtype dtype = TW_FP32;

  i64 B = 0, Sq = 0, Sk = 0;  // Sq, Sk: lengths, or when packed the longest that a sequence can be
  i64 H = 0, Hk = 0, D = 0, Dv = 0;
  i64 total_q = 0, total_k = 0;  // rows of q and k over all sequences (packed: T)
  bool packed = false;
  i64 group() const { return Hk ? H / Hk : 1; }

  View q, k, v, out;
  RowView lse;
  ScoreView bias, mask;
  const float* alibi = nullptr;
  bool has_alibi = false;
  i64 alibi_b = 0, alibi_h = 0;
  const float* sink = nullptr;
  bool has_sink = false;
  i64 sink_h = 0;
  IndexView cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k;

  View dout, dq, dk, dv;
  RowView dlse;
  ScoreView dbias;
  float* dsink = nullptr;
  bool has_dsink = false;
  i64 dsink_h = 0;
  i64* rng_state = nullptr;
  bool has_rng_state = false;
  i64 rng_state_step = 0;

  float scale = 1;
  float softcap = 0;
  bool causal = false, top_left = false;
  i64 window_left = -1, window_right = -1;
  double dropout_p = 0;
  u64 seed = 0, offset = 0;
  const u64* philox_state = nullptr;
  bool deterministic = false, batch_invariant = false;
  bool check_metadata = false;
  int threads = 0;
  const char* algorithm = nullptr;
  tw_run_parallel run_parallel = nullptr;
  void* parallel_context = nullptr;

  bool varlen() const { return packed || seqused_q || seqused_k; }
  Band<i64> band(i64 sq, i64 sk) const {
    return make_band<i64>(sq, sk, top_left, window_left, window_right, causal);
  }
  bool band_masked() const { return !band(1, 1).unmasked(); }
};

// Reads, checks and normalises. Throws Error(TW_INVALID_ARGUMENT) with the sentence for the user.
Problem make_problem(const tw_attention& a, tw_pass pass);

// The planned problem in the memory of `now`, where that is the call that the plan was made for but for data
// pointers, the random numbers' stream, the algorithm's name and the caller's threads: only the pointers need
// checking then. None where anything else differs.
std::optional<Problem> repeated(const Problem& planned, const tw_attention& planned_call,
                                const tw_attention& now);

// Refuses a missing data pointer: a plan may be made without data, a run needs it.
void require_data(const tw_attention& a, tw_pass pass);

// Refuses a problem other than the planned one (data pointers aside).
void check_same(const Problem& planned, const Problem& now);

// The sequences of a problem whose metadata lies in host memory; checks cu_seqlens and seqused (monotone,
// inside the tensors).
std::vector<Sequence> sequences(const Problem& p);

// Dropout stream of a problem in host memory.
DropoutKey dropout_stream(const Problem& p);

// rng_state, where given: the forward records the dropout that it drew, the backward refuses to draw another.
void record_rng_state(const Problem& p);
void check_rng_state(const Problem& p);

}  // namespace tilewise
