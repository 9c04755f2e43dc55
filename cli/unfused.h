// Standard attention on the CPU, as a framework computes it when nothing is fused: three passes over memory
// with S = Q K^T and P = softmax(S) written out whole, (B, H, Sq, Sk) fp32 each. What the fused kernels are
// measured against; written to be fast: blocked products with register tiles of the best instruction set,
// rows of work shared by all threads.
#pragma once

#include "cli/io/tensor.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {

class Unfused {
 public:
  // fp32 forward, dense, equal head dims, optionally causal. `keep` holds S and P from call to call; without
  // it they are allocated by every call, as temporaries are.
  Unfused(const tw_attention& a, int threads, bool keep);
  void run();
  static size_t temporaries(const tw_attention& a);  // bytes of S and P

 private:
  void scores(float* s) const;
  void softmax(const float* s, float* p) const;
  void values(const float* p) const;

  const tw_attention& a_;
  const int threads_;
  const int64_t B_, Sq_, Sk_, H_, group_, D_, Dv_;
  const float scale_;
  Buffer kept_, keys_;  // keys_: K^T of every head
};

}  // namespace tilewise::cli
