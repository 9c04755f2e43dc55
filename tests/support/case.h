// One attention problem as one line of text, and that line made real: tensors with values that depend on the
// element alone (not on layout or packing), everything that takes no part filled with NaN or infinities.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "support/tensor.h"

namespace tilewise::test {

struct Case {
  tw_dtype dtype = TW_FP32;
  bool backward = false;
  i64 B = 1, Sq = 1, Sk = 1, H = 1, Hk = 1, D = 1, Dv = 1;
  bool causal = false, top_left = false;
  i64 left = -1, right = -1;
  double scale = 0;  // 0 = the default
  double softcap = 0;
  int alibi = 0;           // 1: slopes (H), 2: slopes (B, H)
  std::string bias, mask;  // axes: "bhij", 1 where broadcast ("11ij"), fewer letters for fewer dims
  tw_dtype bias_dtype = TW_FP32;
  bool sink = false;
  double dropout = 0;
  bool varlen = false;  // packed, lengths drawn from the seed, two uncovered rows at the end
  bool used_q = false, used_k = false;
  char layout = 'c';     // Tensor's letters; m = a different one for each tensor
  double shift = 0;      // added to all scores through q and k
  double amplitude = 1;  // of q and k
  bool dlse = false;
  int threads = 0;
  bool batch_invariant = false;
  u64 seed = 1;
};

// "fp32 fwd B=2 Sq=17 Sk=33 H=4 Hk=2 D=40 Dv=40 causal window=3,-1 bias=11ij seed=7"; what is at its default
// is left out.
std::string to_string(const Case& c);
Case parse_case(const std::string& line);

// A hash-based normal deviate.
double noise(u64 seed, u64 stream, i64 a, i64 b, i64 c, i64 d);

// Lengths of sequence b under the case's seed.
struct Length {
  i64 slot_q, slot_k, sq, sk;
};
std::vector<Length> lengths(const Case& c);

struct Attention {
  explicit Attention(const Case& given) : Attention(given, lengths(given)) {}
  Attention(const Case& given, const std::vector<Length>& given_lengths);
  Attention(const Attention&) = delete;  // `a` points into the tensors

  Case c;
  std::vector<Length> length;
  Tensor q, k, v, out, lse, bias, mask, alibi, sink, cu_q, cu_k, used_q, used_k;
  Tensor dout, dlse, dq, dk, dv, dbias, dsink;
  tw_attention a;

  // Copies the views into `a`: after a tensor was replaced.
  void bind();
  // Poisons the inputs and sets the values of all that takes part: after the mask was changed.
  void fill();
  // Where row (sequence b, position i) of q or k lives.
  i64 batch_index(i64 b) const { return c.varlen ? 0 : b; }
  i64 q_row(i64 b, i64 i) const { return c.varlen ? q_start[size_t(b)] + i : i; }
  i64 k_row(i64 b, i64 j) const { return c.varlen ? k_start[size_t(b)] + j : j; }
  bool visible(i64 b, i64 h, i64 i, i64 j) const;
  std::vector<i64> q_start, k_start;

  struct Named {
    const char* name;
    Tensor* tensor;
    tw_tensor tw_attention::*view;
    bool forward_output, backward_output;
  };
  std::vector<Named> tensors();

  // Element of a (b, s, h, d) tensor by sequence, position in it, head and dim.
  double get(const Tensor& t, i64 b, i64 row, i64 h, i64 d) const {
    return c.varlen ? t.get(row, h, d) : t.get(b, row, h, d);
  }
  void set(Tensor& t, double x, i64 b, i64 row, i64 h, i64 d) {
    c.varlen ? t.set(x, row, h, d) : t.set(x, b, row, h, d);
  }

  // Runs a pass with an algorithm ("" = the planner's choice) in a guarded, poisoned workspace. Afterwards
  // `damage` tells of stray writes.
  tw_status run(tw_pass pass, const std::string& algorithm);
  std::string damage;

 private:
  void make_inputs();
  void make_scores();
  void make_gradients();
  char layout_of(u64 stream, bool output) const;
  Tensor rows_tensor(i64 S, i64 total, i64 heads, i64 width, u64 stream, bool output) const;
};

}  // namespace tilewise::test
