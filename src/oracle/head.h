// One head of one sequence, forward and backward, in the words of the contract. The arithmetic is a policy:
// the number type and where a result is rounded to the problem's dtype.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "core/problem.h"
#include "oracle/oracle.h"

namespace tilewise::oracle {

struct Exact {
  using Real = double;
  double operator()(double x) const { return x; }
  static double tanh_slope(double x, double) { return 1 / (std::cosh(x) * std::cosh(x)); }  // no cancellation
  double to(tw_dtype, double x) const { return x; }
};

struct Naive {
  using Real = float;
  tw_dtype dtype;
  // A finite value stays finite: where fp16 overflows, a framework has to keep fp32 for a usable result.
  float operator()(float x) const { return to(dtype, x); }
  static float tanh_slope(float, float tanh) { return 1 - tanh * tanh; }
  static float to(tw_dtype type, float x) {
    const float rounded = with_type(type, [&](auto t) { return to_float(from_float<decltype(t)>(x)); });
    return std::isinf(rounded) && std::isfinite(x) ? x : rounded;
  }
};

inline double read(const std::byte* data, tw_dtype dtype, i64 index) {
  return with_type(
      dtype, [&](auto t) { return double(to_float(reinterpret_cast<const decltype(t)*>(data)[index])); });
}

// Gradients of one head of one sequence, dense.
template <class T>
struct HeadGradients {
  std::vector<T> dq, dk, dv;
  T dsink{};
  HeadGradients(const Problem& p, const Sequence& s)
      : dq(size_t(s.sq * p.D)), dk(size_t(s.sk * p.D)), dv(size_t(s.sk * p.Dv)) {}
};

template <class Arithmetic>
class Head {
 public:
  using Real = typename Arithmetic::Real;
  using Rows = std::vector<Real>;

  Head(const Problem& problem, Arithmetic rounding)
      : p(problem), round(rounding), key(dropout_stream(problem)) {}

  void open(const Sequence& sequence, i64 query_head) {
    if (opened && s.index == sequence.index && h == query_head) return;
    opened = true;
    s = sequence, h = query_head;
    const i64 hk = h / p.group();
    q = load(p.q, s.q_b, s.q_row, s.sq, h, p.D);
    k = load(p.k, s.k_b, s.k_row, s.sk, hk, p.D);
    v = load(p.v, s.k_b, s.k_row, s.sk, hk, p.Dv);
    if (p.pass == TW_BACKWARD) dout = load(p.dout, s.q_b, s.q_row, s.sq, h, p.Dv);
  }

  // out[0 .. Dv) and lse of query i.
  void forward(i64 i, double* out, double* lse) {
    attend(i);
    Rows o(size_t(p.Dv), Real(0));
    for (const Key& x : keys)
      for (i64 d = 0; d < p.Dv; ++d) o[size_t(d)] += round(x.prob * x.keep) * v[size_t(x.j * p.Dv + d)];
    for (i64 d = 0; d < p.Dv; ++d) out[d] = double(round(o[size_t(d)]));
    *lse = double(row_lse);
  }

  // Gradients of query i: dq_i whole; dk, dv, dbias and dsink are added to.
  // add_dbias(i, j, ds, terms); terms: the size of what ds is a difference of
  template <class AddDbias>
  void backward(i64 i, HeadGradients<Real>& g, HeadGradients<Terms>& terms, AddDbias&& add_dbias) {
    attend(i);
    const Real* o = &dout[size_t(i * p.Dv)];
    Real delta = 0;  // sum_j P_ij dP_ij
    for (Key& x : keys) {
      x.dprob = round(round(dot(o, &v[size_t(x.j * p.Dv)], p.Dv)) * x.keep);
      delta += x.prob * x.dprob;
    }
    const Real dlse = p.dlse && row_lse > -kInf ? Real(*p.dlse.at(s.q_b, h, s.q_row + i)) : Real(0);
    Rows dq_i(size_t(p.D), Real(0));
    const double row_terms = std::abs(double(delta)) + std::abs(double(dlse));
    for (const Key& x : keys) {
      const Real ds = round(x.prob * (x.dprob - delta + dlse));
      const double ds_terms = double(x.prob) * (std::abs(double(x.dprob)) + row_terms),
                   dqk_terms = ds_terms * std::abs(double(x.slope) * double(p.scale));
      add_dbias(i, x.j, ds, ds_terms);
      const Real dqk = round(round(ds * x.slope) * Real(p.scale));
      for (i64 d = 0; d < p.D; ++d) {
        dq_i[size_t(d)] += dqk * k[size_t(x.j * p.D + d)];
        g.dk[size_t(x.j * p.D + d)] += dqk * q[size_t(i * p.D + d)];
        terms.dq[size_t(i * p.D + d)] += dqk_terms * double(k[size_t(x.j * p.D + d)]);
        terms.dk[size_t(x.j * p.D + d)] += dqk_terms * double(q[size_t(i * p.D + d)]);
      }
      const Real dropped = round(x.prob * x.keep);
      for (i64 d = 0; d < p.Dv; ++d) {
        g.dv[size_t(x.j * p.Dv + d)] += dropped * o[d];
        terms.dv[size_t(x.j * p.Dv + d)] += double(dropped) * double(o[d]);
      }
    }
    for (i64 d = 0; d < p.D; ++d) g.dq[size_t(i * p.D + d)] = round(dq_i[size_t(d)]);
    if (!p.has_sink || row_lse == -kInf) return;
    const Real share = std::exp(sink() - row_lse);
    g.dsink += share * (dlse - delta);
    terms.dsink += double(share) * row_terms;
  }

 private:
  static constexpr Real kInf = std::numeric_limits<Real>::infinity();

  struct Key {  // a visible one
    i64 j;
    Real score;  // scaled, capped, biased
    Real slope;  // d capped / d uncapped
    Real prob;   // softmax, before dropout
    Real keep;   // dropout's factor: 0 or 1 / (1 - p)
    Real dprob;
  };

  Rows load(const View& x, i64 b, i64 row, i64 n, i64 head, i64 width) const {
    Rows r;
    r.reserve(size_t(n * width));
    for (i64 i = 0; i < n; ++i)
      for (i64 d = 0; d < width; ++d)
        r.push_back(Real(read(x.data, x.dtype,
                              b * x.stride.b + (row + i) * x.stride.s + head * x.stride.h + d * x.stride.d)));
    return r;
  }

  static Real dot(const Real* a, const Real* b, i64 n) {
    Real sum = 0;
    for (i64 d = 0; d < n; ++d) sum += a[d] * b[d];
    return sum;
  }

  Real sink() const { return Real(p.sink[h * p.sink_h]); }

  // Straight from the contract; ranges.h, which the kernels use, is judged by this.
  bool visible(i64 i, i64 j) const {
    const i64 distance = j - (p.top_left ? i : i + s.sk - s.sq);
    if (p.causal && distance > 0) return false;
    if (p.window_left >= 0 && -distance > p.window_left) return false;
    if (p.window_right >= 0 && distance > p.window_right) return false;
    return !p.mask || *(reinterpret_cast<const unsigned char*>(p.mask.data) + p.mask.index(s.index, h, i, j));
  }

  Key score(i64 i, i64 j) const {
    Key x{j, 0, 1, 0, 1, 0};
    x.score = round(round(dot(&q[size_t(i * p.D)], &k[size_t(j * p.D)], p.D)) * Real(p.scale));
    if (p.softcap > 0) {
      const Real u = round(x.score / Real(p.softcap)), t = round(std::tanh(u));
      x.score = round(Real(p.softcap) * t);
      x.slope = Arithmetic::tanh_slope(u, t);
    }
    if (p.bias)
      x.score = round(x.score + Real(read(p.bias.data, p.bias.dtype, p.bias.index(s.index, h, i, j))));
    if (p.has_alibi) {
      const Real slope = Real(p.alibi[s.index * p.alibi_b + h * p.alibi_h]);
      x.score = round(x.score - slope * Real(std::abs(i + s.sk - s.sq - j)));
    }
    if (p.dropout_p > 0) {
      const bool kept =
          dropout_bits(key, u32(s.index), u32(h), u32(i), u32(j)) >= dropout_threshold(p.dropout_p);
      x.keep = kept ? Real(1 / (1 - p.dropout_p)) : Real(0);
    }
    return x;
  }

  // The softmax of row i over its visible keys. A row without any, or with scores of -inf only, is empty.
  void attend(i64 i) {
    keys.clear();
    Real top = -kInf;
    bool nan = false;
    for (i64 j = 0; j < s.sk; ++j)
      if (visible(i, j)) {
        keys.push_back(score(i, j));
        top = std::max(top, keys.back().score);
        nan = nan || std::isnan(keys.back().score);
      }
    if (top == -kInf && !nan) keys.clear();
    if (p.has_sink) top = std::max(top, sink());
    row_lse = top;
    if (keys.empty()) return;
    Real sum = p.has_sink ? std::exp(sink() - top) : Real(0);
    for (const Key& x : keys) sum += std::exp(x.score - top);
    for (Key& x : keys) x.prob = round(std::exp(x.score - top) / sum);
    row_lse = top + std::log(sum);
  }

  const Problem& p;
  const Arithmetic round;
  const DropoutKey key;
  bool opened = false;
  Sequence s{};
  i64 h = 0;
  Rows q, k, v, dout;
  std::vector<Key> keys;
  Real row_lse = 0;
};

}  // namespace tilewise::oracle
