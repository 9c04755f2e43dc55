#include "cli/unfused.h"

#include <algorithm>
#include <cmath>

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

Unfused::Unfused(const tw_attention& a, int threads, bool keep)
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
  if (keep) kept_ = Buffer(temporaries(a));
  keys_ = Buffer(size_t(B_ * a.k.size[2] * D_ * Sk_) * sizeof(float));
}

size_t Unfused::temporaries(const tw_attention& a) {
  return 2 * size_t(a.q.size[0] * a.q.size[2] * a.q.size[1] * a.k.size[1]) * sizeof(float);
}

void Unfused::run() {
  const Buffer fresh = kept_.data() ? Buffer() : Buffer(temporaries(a_));
  auto* s = reinterpret_cast<float*>(kept_.data() ? kept_.data() : fresh.data());
  float* p = s + B_ * H_ * Sq_ * Sk_;
  scores(s);
  softmax(s, p);
  values(p);
}

void Unfused::scores(float* s) const {
  auto* keys = reinterpret_cast<float*>(keys_.data());
  const int64_t heads_k = H_ / group_;
  cpu::parallel(threads_, B_ * heads_k, [&](int, int64_t task) {
    float* to = keys + task * D_ * Sk_;
    for (int64_t j = 0; j < Sk_; ++j) {
      const float* from = data(a_.k, task / heads_k, j, task % heads_k);
      for (int64_t d = 0; d < D_; ++d) to[d * Sk_ + j] = from[d];
    }
  });
  const int64_t blocks = (Sq_ + kRows - 1) / kRows;
  cpu::parallel(threads_, B_ * H_ * blocks, [&](int, int64_t task) {
    const int64_t bh = task / blocks, b = bh / H_, h = bh % H_, i = task % blocks * kRows;
    multiply({std::min(kRows, Sq_ - i), Sk_, D_, data(a_.q, b, i, h), a_.q.stride[1],
              keys + (b * heads_k + h / group_) * D_ * Sk_, Sk_, s + (bh * Sq_ + i) * Sk_, Sk_, scale_,
              false});
  });
}

void Unfused::softmax(const float* s, float* p) const {
  const int64_t blocks = (Sq_ + kRows - 1) / kRows;
  cpu::parallel(threads_, B_ * H_ * blocks, [&](int, int64_t task) {
    const int64_t bh = task / blocks, first = task % blocks * kRows;
    for (int64_t i = first; i < std::min(first + kRows, Sq_); ++i)
      softmax_row(s + (bh * Sq_ + i) * Sk_, p + (bh * Sq_ + i) * Sk_, Sk_,
                  a_.options.causal ? std::clamp<int64_t>(i + Sk_ - Sq_ + 1, 0, Sk_) : Sk_);
  });
}

void Unfused::values(const float* p) const {
  const int64_t blocks = (Sq_ + kRows - 1) / kRows;
  cpu::parallel(threads_, B_ * H_ * blocks, [&](int, int64_t task) {
    const int64_t bh = task / blocks, b = bh / H_, h = bh % H_, i = task % blocks * kRows;
    for (int64_t j = 0; j < Sk_; j += kDepth)
      multiply({std::min(kRows, Sq_ - i), Dv_, std::min(kDepth, Sk_ - j), p + (bh * Sq_ + i) * Sk_ + j, Sk_,
                data(a_.v, b, j, h / group_), a_.v.stride[1], data(a_.out, b, i, h), a_.out.stride[1], 1,
                j > 0});
  });
}

}  // namespace tilewise::cli
