#include "cli/unfused.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cli/unfused_kernels.h"
#include "core/error.h"
#include "cpu/pool.h"

namespace tilewise::cli {
namespace {

constexpr int64_t kRows = 96, kDepth = 256;  // rows of a task; keys of one pass over V

float* data(const tw_tensor& t, int64_t b, int64_t s, int64_t h) {
  return static_cast<float*>(t.data) + b * t.stride[0] + s * t.stride[1] + h * t.stride[2];
}

float default_scale(const tw_attention& a) {
  return float(std::isnan(a.options.scale) ? 1 / std::sqrt(double(a.q.size[3])) : a.options.scale);
}

}  // namespace

Unfused::Unfused(const tw_attention& a, int threads, Temporaries temporaries)
    : a_(a),
      threads_(threads),
      B_(a.q.size[0]),
      Sq_(a.q.size[1]),
      Sk_(a.k.size[1]),
      H_(a.q.size[2]),
      group_(H_ / a.k.size[2]),
      D_(a.q.size[3]),
      Dv_(a.v.size[3]),
      scale_(default_scale(a)) {
  if (a.q.dtype != TW_FP32) invalid("--against unfused: runs in fp32; choose --dtype fp32");
  if (temporaries == Temporaries::separate) return;
  s_ = Buffer(size_t(B_ * H_ * Sq_ * Sk_) * sizeof(float));
  p_ = Buffer(s_.size());
  keys_ = Buffer(size_t(B_ * H_ / group_ * D_ * Sk_) * sizeof(float));
}

void Unfused::run() {
  if (!s_.data()) return run_separate();
  auto floats = [](const Buffer& b) { return reinterpret_cast<float*>(b.data()); };
  transpose_keys(floats(keys_));
  scores(floats(keys_), floats(s_), scale_);
  softmax(floats(s_), floats(p_), a_.options.causal);
  values(floats(p_));
}

void Unfused::run_separate() {
  const size_t bytes = size_t(B_ * H_ * Sq_ * Sk_) * sizeof(float);
  Buffer last;
  auto step = [&](auto&& f) {
    Buffer next(bytes);
    f(reinterpret_cast<const float*>(last.data()), reinterpret_cast<float*>(next.data()));
    last = std::move(next);
  };
  step([&](const float*, float* to) {
    const Buffer keys(size_t(B_ * H_ / group_ * D_ * Sk_) * sizeof(float));
    transpose_keys(reinterpret_cast<float*>(keys.data()));
    scores(reinterpret_cast<const float*>(keys.data()), to, 1);
  });
  step([&](const float* s, float* to) { scaled(s, to); });
  if (a_.options.causal) step([&](const float* s, float* to) { masked(s, to); });
  step([&](const float* s, float* to) { softmax(s, to, false); });
  values(reinterpret_cast<const float*>(last.data()));
}

int64_t Unfused::visible(int64_t i) const { return std::clamp<int64_t>(i + Sk_ - Sq_ + 1, 0, Sk_); }

// f(batch and head, first query, end) for blocks of kRows queries, on all threads.
template <class F>
void Unfused::each_rows(F&& f) const {
  const int64_t blocks = (Sq_ + kRows - 1) / kRows;
  cpu::parallel({threads_}, B_ * H_ * blocks, [&](int, int64_t task) {
    const int64_t first = task % blocks * kRows;
    f(task / blocks, first, std::min(first + kRows, Sq_));
  });
}

void Unfused::transpose_keys(float* keys) const {
  const int64_t heads_k = H_ / group_;
  cpu::parallel({threads_}, B_ * heads_k, [&](int, int64_t task) {
    float* to = keys + task * D_ * Sk_;
    for (int64_t j = 0; j < Sk_; ++j) {
      const float* from = data(a_.k, task / heads_k, j, task % heads_k);
      for (int64_t d = 0; d < D_; ++d) to[d * Sk_ + j] = from[d];
    }
  });
}

void Unfused::scores(const float* keys, float* s, float scale) const {
  each_rows([&](int64_t bh, int64_t first, int64_t end) {
    const int64_t b = bh / H_, h = bh % H_;
    multiply({end - first, Sk_, D_, data(a_.q, b, first, h), a_.q.stride[1],
              keys + (b * (H_ / group_) + h / group_) * D_ * Sk_, Sk_, s + (bh * Sq_ + first) * Sk_, Sk_,
              scale, false});
  });
}

void Unfused::scaled(const float* s, float* to) const {
  each_rows([&](int64_t bh, int64_t first, int64_t end) {
    for (int64_t x = (bh * Sq_ + first) * Sk_; x < (bh * Sq_ + end) * Sk_; ++x) to[x] = s[x] * scale_;
  });
}

void Unfused::masked(const float* s, float* to) const {
  each_rows([&](int64_t bh, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t row = (bh * Sq_ + i) * Sk_, seen = visible(i);
      std::copy_n(s + row, seen, to + row);
      std::fill_n(to + row + seen, Sk_ - seen, -std::numeric_limits<float>::infinity());
    }
  });
}

void Unfused::softmax(const float* s, float* p, bool causal) const {
  each_rows([&](int64_t bh, int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i)
      softmax_row(s + (bh * Sq_ + i) * Sk_, p + (bh * Sq_ + i) * Sk_, Sk_, causal ? visible(i) : Sk_);
  });
}

void Unfused::values(const float* p) const {
  each_rows([&](int64_t bh, int64_t first, int64_t end) {
    const int64_t b = bh / H_, h = bh % H_;
    for (int64_t j = 0; j < Sk_; j += kDepth)
      multiply({end - first, Dv_, std::min(kDepth, Sk_ - j), p + (bh * Sq_ + first) * Sk_ + j, Sk_,
                data(a_.v, b, j, h / group_), a_.v.stride[1], data(a_.out, b, first, h), a_.out.stride[1], 1,
                j > 0});
  });
}

}  // namespace tilewise::cli
