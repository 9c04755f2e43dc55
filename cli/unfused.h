// Standard attention on the CPU, what the fused kernels are measured against.
//
// `separate` is attention as one writes it in an array language, softmax(mask(scale * (Q K^T))) V: every step
// reads a (B, H, Sq, Sk) tensor and writes a new one, which is freed when the next step has read it.
// `kept` is the most that can be done without fusing: scale inside the product, mask inside the softmax, S
// and P allocated once. Both are written to be fast: blocked products with register tiles of the best
// instruction set, rows of work shared by all threads.
#pragma once

#include "cli/io/tensor.h"
#include "tilewise/tilewise.h"

namespace tilewise::cli {

enum class Temporaries { separate, kept };

class Unfused {
 public:
  // fp32 forward, dense, equal head dims, optionally causal.
  Unfused(const tw_attention& a, int threads, Temporaries temporaries);
  void run();

 private:
  void run_separate();
  void transpose_keys(float* keys) const;
  void scores(const float* keys, float* s, float scale) const;
  void scaled(const float* s, float* to) const;
  void masked(const float* s, float* to) const;
  void softmax(const float* s, float* p, bool causal) const;
  void values(const float* p) const;
  template <class F>
  void each_rows(F&& f) const;
  int64_t visible(int64_t i) const;  // keys that query i sees

  const tw_attention& a_;
  const int threads_;
  const int64_t B_, Sq_, Sk_, H_, group_, D_, Dv_;
  const float scale_;
  Buffer s_, p_, keys_;  // kept; keys_: K^T of every head
};

}  // namespace tilewise::cli
