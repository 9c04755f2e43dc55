#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "property/property.h"
#include "support/gpu.h"

namespace tilewise::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Compares a gradient element by element: f(x's value) with y's.
template <class F>
std::string compare_gradient(const char* name, const Tensor& x, const Tensor& y, double allowed, F&& f) {
  const std::vector<double> a = x.values(), b = y.values();
  for (size_t n = 0; n < a.size(); ++n)
    if (!close(f(a[n]), b[n], allowed))
      return cat(name, "[", n, "]: ", f(a[n]), " and ", b[n], ", allowed ", allowed);
  return "";
}

// Twice the dout (and dlse) is twice the gradient, to the bit as long as nothing is subnormal.
std::string linearity_by_two(Case c, const std::string& algorithm) {
  c.dtype = c.dtype == TW_FP16 ? TW_BF16 : c.dtype;  // fp16's subnormals are too near
  c.layout = 'c';
  Attention x(c), y(c);
  auto twice = [](Tensor& t) {
    i64 n[4] = {1, 1, 1, 1};
    std::copy(t.view.size, t.view.size + t.view.ndim, n);
    for (i64 a = 0; t && a < n[0]; ++a)
      for (i64 b = 0; b < n[1]; ++b)
        for (i64 e = 0; e < n[2]; ++e)
          for (i64 d = 0; d < n[3]; ++d) t.set(2 * t.get(a, b, e, d), a, b, e, d);
  };
  twice(y.dout);
  twice(y.dlse);
  run_all(x, algorithm);
  run_all(y, algorithm);
  auto same = [&](const char* name, const Tensor& a, const Tensor& b) {
    const std::vector<double> u = a.values(), v = b.values();
    for (size_t n = 0; n < u.size(); ++n)
      if (2 * u[n] != v[n] && std::abs(v[n]) > 1e-30 && !std::isnan(u[n]))
        return cat(name, "[", n, "]: twice ", u[n], " is not ", v[n]);
    return std::string();
  };
  for (auto [name, a, b] :
       {std::tuple("dq", &x.dq, &y.dq), std::tuple("dk", &x.dk, &y.dk), std::tuple("dv", &x.dv, &y.dv)})
    if (const std::string failure = same(name, *a, *b); !failure.empty()) return failure;
  return "";
}

// The gradient of dout_1 + dout_2 is the sum of both, in fp32 and within rounding.
std::string linearity_of_sums(Case c, const std::string& algorithm) {
  c.dtype = TW_FP32, c.layout = 'c', c.dlse = false;
  Attention x(c), y(c), z(c);
  for (i64 b = 0; b < c.B; ++b)
    for (i64 i = 0; i < x.length[size_t(b)].sq; ++i)
      for (i64 h = 0; h < c.H; ++h)
        for (i64 d = 0; d < c.Dv; ++d) {
          const i64 row = x.q_row(b, i);
          const double one = x.get(x.dout, b, row, h, d);
          if (!std::isfinite(one)) continue;
          const double other = float(noise(c.seed + 1, 99, b, i, h, d));
          y.set(y.dout, other, b, row, h, d);
          z.set(z.dout, one + other, b, row, h, d);
        }
  for (Attention* a : {&x, &y, &z}) run_all(*a, algorithm);
  const Tolerance tx = tolerance(x), ty = tolerance(y), tz = tolerance(z);
  auto sums = [&](const char* name, const Tensor& a, const Tensor& b, const Tensor& sum, double allowed) {
    const std::vector<double> u = a.values(), v = b.values(), w = sum.values();
    for (size_t n = 0; n < u.size(); ++n)
      if (!close(u[n] + v[n], w[n], allowed))
        return cat(name, "[", n, "]: ", u[n], " + ", v[n], " is not ", w[n]);
    return std::string();
  };
  std::string failure = sums("dq", x.dq, y.dq, z.dq, tx.dq + ty.dq + tz.dq);
  if (failure.empty()) failure = sums("dk", x.dk, y.dk, z.dk, tx.dk + ty.dk + tz.dk);
  if (failure.empty()) failure = sums("dv", x.dv, y.dv, z.dv, tx.dv + ty.dv + tz.dv);
  return failure;
}

// Grouped heads: the gradient of a key head is the sum over its query heads.
std::string gqa_gradients(Case c, const std::string& algorithm) {
  if (c.H == c.Hk) return "";
  c.layout = 'c', c.dtype = TW_FP32;
  Case full = c;
  full.Hk = c.H;
  Attention x(c), y(full);
  const i64 group = c.H / c.Hk;
  for (i64 b = 0; b < c.B; ++b)
    for (i64 h = 0; h < c.H; ++h)
      for (i64 j = 0; j < x.length[size_t(b)].sk; ++j) {
        const i64 row = x.k_row(b, j);
        for (i64 d = 0; d < c.D; ++d) y.set(y.k, x.get(x.k, b, row, h / group, d), b, row, h, d);
        for (i64 d = 0; d < c.Dv; ++d) y.set(y.v, x.get(x.v, b, row, h / group, d), b, row, h, d);
      }
  run_all(x, algorithm);
  run_all(y, algorithm);
  const Tolerance t = tolerance(x);
  for (i64 b = 0; b < c.B; ++b)
    for (i64 hk = 0; hk < c.Hk; ++hk)
      for (i64 j = 0; j < x.length[size_t(b)].sk; ++j)
        for (i64 d = 0; d < c.D; ++d) {
          double sum = 0;
          for (i64 g = 0; g < group; ++g) sum += y.get(y.dk, b, y.k_row(b, j), hk * group + g, d);
          const double dk = x.get(x.dk, b, x.k_row(b, j), hk, d);
          if (!close(dk, sum, t.dk))
            return cat("dk ", dk, " is not the group's sum ", sum, " at b ", b, ", j ", j, ", hk ", hk);
        }
  return compare_gradient("dq", x.dq, y.dq, t.dq, [](double g) { return g; });
}

// The gradient through a merge of two parts is the gradient of the whole:
//   dout_p = w dout, dlse_p = w (dout . (out_p - out) + dlse) with w = exp(lse_p - lse).
std::string merged_parts(Case c, const std::string& algorithm) {
  c.dtype = TW_FP32, c.layout = 'c', c.dlse = true;
  c.causal = c.top_left = c.varlen = c.used_q = c.used_k = c.sink = false;
  c.left = c.right = -1, c.alibi = 0, c.dropout = 0;
  c.bias = c.mask = "";
  if (c.Sk < 2) return "";
  const i64 cut = 1 + i64(c.seed % u64(c.Sk - 1));
  Case first = c, second = c;
  first.Sk = cut, second.Sk = c.Sk - cut;
  Attention whole(c), parts[2] = {Attention(first), Attention(second)};
  run_all(whole, algorithm);
  const Tolerance t = tolerance(whole);
  std::vector<double> dq(whole.dq.values().size(), 0);
  for (int n : {0, 1}) {
    Attention& part = parts[n];
    const i64 offset = n ? cut : 0;
    for (i64 b = 0; b < c.B; ++b)
      for (i64 hk = 0; hk < c.Hk; ++hk)
        for (i64 j = 0; j < part.c.Sk; ++j) {
          for (i64 d = 0; d < c.D; ++d) part.k.set(whole.k.get(b, offset + j, hk, d), b, j, hk, d);
          for (i64 d = 0; d < c.Dv; ++d) part.v.set(whole.v.get(b, offset + j, hk, d), b, j, hk, d);
        }
    run_or_throw(part, TW_FORWARD, algorithm);
    for (i64 b = 0; b < c.B; ++b)
      for (i64 h = 0; h < c.H; ++h)
        for (i64 i = 0; i < c.Sq; ++i) {
          const double w = std::exp(part.lse.get(b, h, i) - whole.lse.get(b, h, i));
          double dot = whole.dlse.get(b, h, i);
          for (i64 d = 0; d < c.Dv; ++d) {
            const double g = whole.dout.get(b, i, h, d);
            dot += g * (part.out.get(b, i, h, d) - whole.out.get(b, i, h, d));
            part.dout.set(w * g, b, i, h, d);
          }
          part.dlse.set(w * dot, b, h, i);
        }
    run_or_throw(part, TW_BACKWARD, algorithm);
    const std::vector<double> part_dq = part.dq.values();
    for (size_t x = 0; x < dq.size(); ++x) dq[x] += part_dq[x];
    for (i64 b = 0; b < c.B; ++b)
      for (i64 hk = 0; hk < c.Hk; ++hk)
        for (i64 j = 0; j < part.c.Sk; ++j)
          for (i64 d = 0; d < c.D; ++d)
            if (!close(part.dk.get(b, j, hk, d), whole.dk.get(b, offset + j, hk, d), 4 * t.dk))
              return cat("dk ", part.dk.get(b, j, hk, d), " in a part, ", whole.dk.get(b, offset + j, hk, d),
                         " in the whole");
  }
  const std::vector<double> whole_dq = whole.dq.values();
  for (size_t x = 0; x < dq.size(); ++x)
    if (!close(dq[x], whole_dq[x], 4 * t.dq))
      return cat("dq[", x, "]: parts give ", dq[x], ", the whole ", whole_dq[x]);
  return "";
}

// Rows that see nothing give zeros to the bit, keys that nobody sees get zeros.
std::string unseen_is_zero(Case c, const std::string& algorithm) {
  c.causal = true, c.top_left = false;
  c.Sq = c.Sk + 5;
  Attention x(c);
  run_all(x, algorithm);
  for (i64 b = 0; b < c.B; ++b)
    for (i64 h = 0; h < c.H; ++h)
      for (i64 i = 0; i < x.length[size_t(b)].sq; ++i) {
        bool sees = false;
        for (i64 j = 0; j < x.length[size_t(b)].sk; ++j) sees = sees || x.visible(b, h, i, j);
        for (i64 d = 0; !sees && d < c.D; ++d) {
          const double dq = x.get(x.dq, b, x.q_row(b, i), h, d);
          if (dq != 0) return cat("dq ", dq, " in a row without keys, b ", b, ", h ", h, ", i ", i);
        }
        const double lse = c.varlen ? x.lse.get(h, x.q_row(b, i)) : x.lse.get(b, h, i);
        if (!sees && !c.sink && lse != -kInf) return cat("lse ", lse, " in a row without keys");
      }
  return "";
}

// The same bits for any number of threads, dbias and dsink included; with rows enough that the CPU cuts a
// head into parts, whose sums it must add in an order of their own.
std::string any_threads(Case c, const std::string& algorithm) {
  if (is_gpu_algorithm(algorithm)) return "";
  c.Sq += 520;
  c.sink = c.seed % 3 != 0;
  if (c.seed % 2) c.bias = c.seed % 4 == 1 ? "11ij" : "bh1j";
  c.threads = 1;
  Attention x(c);
  run_all(x, algorithm);
  for (int threads : {2, 3, 7, 16}) {
    c.threads = threads;
    Attention y(c);
    run_all(y, algorithm);
    const auto other = y.tensors();
    for (size_t n = 0; const Attention::Named& t : x.tensors()) {
      const Attention::Named& u = other[n++];
      if (t.backward_output && t.tensor->bytes() != u.tensor->bytes())
        return cat("1 and ", threads, " threads differ in ", t.name);
    }
  }
  return "";
}

TEST(PropertyBackward, AnyThreads) { check_property("any number of threads", any_threads, 6, true); }
TEST(PropertyBackward, LinearityByTwo) { check_property("linearity by two", linearity_by_two, 20, true); }
TEST(PropertyBackward, LinearityOfSums) { check_property("linearity of sums", linearity_of_sums, 20, true); }
TEST(PropertyBackward, GqaGradients) { check_property("GQA gradients", gqa_gradients, 20, true); }
TEST(PropertyBackward, MergedParts) { check_property("merged parts", merged_parts, 20, true); }
TEST(PropertyBackward, UnseenIsZero) { check_property("unseen is zero", unseen_is_zero, 20, true); }

}  // namespace
}  // namespace tilewise::test
