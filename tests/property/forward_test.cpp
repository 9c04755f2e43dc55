#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "core/error.h"
#include "property/property.h"

namespace tilewise::test {
namespace {

double lse_of(const Attention& x, i64 b, i64 h, i64 i) {
  return x.c.varlen ? x.lse.get(h, x.q_row(b, i)) : x.lse.get(b, h, i);
}

// Compares out and lse of two problems over the rows of x, each seen through a mapping of (b, h, i).
std::string compare_rows(Attention& x, Attention& y, const Tolerance& t,
                         const std::function<std::array<i64, 3>(i64, i64, i64)>& to_y, double lse_shift = 0) {
  for (i64 b = 0; b < x.c.B; ++b)
    for (i64 h = 0; h < x.c.H; ++h)
      for (i64 i = 0; i < x.length[size_t(b)].sq; ++i) {
        const auto [yb, yh, yi] = to_y(b, h, i);
        if (yb < 0) continue;
        const double lx = lse_of(x, b, h, i) + lse_shift, ly = lse_of(y, yb, yh, yi);
        if (!close(lx, ly, t.lse)) return cat("lse ", lx, " and ", ly, " at b ", b, ", h ", h, ", i ", i);
        for (i64 d = 0; d < x.c.Dv; ++d) {
          const double ox = x.get(x.out, b, x.q_row(b, i), h, d),
                       oy = y.get(y.out, yb, y.q_row(yb, yi), yh, d);
          if (!close(ox, oy, t.out))
            return cat("out ", ox, " and ", oy, " (allowed ", t.out, ") at b ", b, ", h ", h, ", i ", i,
                       ", d ", d);
        }
      }
  return "";
}

std::string compare_all(Attention& x, Attention& y, const Tolerance& t, double lse_shift = 0) {
  return compare_rows(
      x, y, t,
      [](i64 b, i64 h, i64 i) {
        return std::array<i64, 3>{b, h, i};
      },
      lse_shift);
}

// Bits of every output; "" when the same.
std::string compare_bits(Attention& x, Attention& y) {
  const std::vector<Attention::Named> tx = x.tensors(), ty = y.tensors();
  for (size_t n = 0; n < tx.size(); ++n)
    if (*tx[n].tensor && (tx[n].forward_output || (x.c.backward && tx[n].backward_output)) &&
        tx[n].tensor->bytes() != ty[n].tensor->bytes())
      return cat(tx[n].name, " differs in its bits");
  return "";
}

// Keys in another order, the same sum. Only where no position counts.
std::string key_permutation(Case c, const std::string& algorithm) {
  c.causal = c.top_left = false, c.left = c.right = -1, c.alibi = 0, c.dropout = 0;
  c.bias = c.mask = "";
  Attention x(c), y(c);
  for (i64 b = 0; b < c.B; ++b) {
    std::vector<i64> order(size_t(x.length[size_t(b)].sk));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(c.seed));
    for (i64 hk = 0; hk < c.Hk; ++hk)
      for (size_t j = 0; j < order.size(); ++j) {
        const i64 from = x.k_row(b, i64(j)), to = y.k_row(b, order[j]);
        for (i64 d = 0; d < c.D; ++d) y.set(y.k, x.get(x.k, b, from, hk, d), b, to, hk, d);
        for (i64 d = 0; d < c.Dv; ++d) y.set(y.v, x.get(x.v, b, from, hk, d), b, to, hk, d);
      }
  }
  run_all(x, algorithm);
  run_all(y, algorithm);
  return compare_all(x, y, tolerance(x));
}

// The same number added to all scores changes lse by it and out not at all. The bias's values are multiples
// of 1/8 and the shift is 1/2, so that the shifted bias is exact.
std::string score_shift(Case c, const std::string& algorithm) {
  c.bias = "bhij", c.bias_dtype = TW_FP32, c.sink = false;
  Attention x(c), y(c);
  for (i64 b = 0; b < c.B; ++b)
    for (i64 h = 0; h < c.H; ++h)
      for (i64 i = 0; i < c.Sq; ++i)
        for (i64 j = 0; j < c.Sk; ++j) {
          const double value = std::round(x.bias.get(b, h, i, j) * 8) / 8;
          x.bias.set(value, b, h, i, j);
          y.bias.set(value + 0.5, b, h, i, j);
        }
  run_all(x, algorithm);
  run_all(y, algorithm);
  Tolerance t = tolerance(x);
  t.lse += 1e-6;
  return compare_all(x, y, t, 0.5);
}

// Under a top-left causal mask the first rows do not know what comes after them.
std::string causal_prefix(Case c, const std::string& algorithm) {
  c.causal = c.top_left = true, c.varlen = c.used_q = c.used_k = false;
  c.alibi = 0, c.sink = false;
  c.bias = c.mask = "";
  c.Sk = c.Sq;
  Case half = c;
  half.Sq = half.Sk = std::max<i64>(c.Sq / 2, 1);
  Attention x(half), y(c);
  run_all(x, algorithm);
  run_all(y, algorithm);
  return compare_all(x, y, tolerance(x));
}

// Grouped heads are a repetition of key and value heads.
std::string gqa_is_repeated_mha(Case c, const std::string& algorithm) {
  Case full = c;
  full.Hk = c.H;
  if (c.layout == 'e') return "";
  Attention x(c), y(full);
  for (i64 b = 0; b < c.B; ++b)
    for (i64 h = 0; h < c.H; ++h)
      for (i64 j = 0; j < x.length[size_t(b)].sk; ++j) {
        const i64 row = x.k_row(b, j), hk = h / (c.H / c.Hk);
        for (i64 d = 0; d < c.D; ++d) y.set(y.k, x.get(x.k, b, row, hk, d), b, row, h, d);
        for (i64 d = 0; d < c.Dv; ++d) y.set(y.v, x.get(x.v, b, row, hk, d), b, row, h, d);
      }
  run_all(x, algorithm);
  run_all(y, algorithm);
  return compare_all(x, y, tolerance(x));
}

// Keys in two parts, merged: fp32, where tw_merge is exact.
std::string split_is_whole(Case c, const std::string& algorithm) {
  c.dtype = TW_FP32, c.backward = c.causal = c.top_left = c.varlen = c.used_q = c.used_k = c.sink = false;
  c.left = c.right = -1, c.alibi = 0, c.dropout = 0;
  c.bias = c.mask = "";
  const i64 cut = i64(c.seed % u64(c.Sk + 1));
  Case first = c, second = c;
  first.Sk = cut, second.Sk = c.Sk - cut;
  Attention whole(c), a(first), b(second), merged(c);
  for (i64 n = 0; n < c.B; ++n)
    for (i64 hk = 0; hk < c.Hk; ++hk)
      for (i64 j = cut; j < c.Sk; ++j) {
        for (i64 d = 0; d < c.D; ++d) b.set(b.k, whole.get(whole.k, n, j, hk, d), n, j - cut, hk, d);
        for (i64 d = 0; d < c.Dv; ++d) b.set(b.v, whole.get(whole.v, n, j, hk, d), n, j - cut, hk, d);
      }
  run_all(whole, algorithm);
  run_all(a, algorithm);
  run_all(b, algorithm);
  merged.out.fill_elements(std::nan(""));
  merged.lse.fill_elements(std::nan(""));
  merged.bind();
  if (tw_merge(&a.a.out, &a.a.lse, &b.a.out, &b.a.lse, &merged.a.out, &merged.a.lse, nullptr) != TW_OK)
    throw Failure{tw_last_error()};
  return compare_all(whole, merged, tolerance(whole));
}

// A sequence's rows do not depend on the sequences around it; `bitwise` is what batch_invariant promises.
std::string alone(Case c, const std::string& algorithm, bool bitwise) {
  c.batch_invariant = bitwise;
  Attention x(c);
  run_all(x, algorithm);
  const Tolerance t = bitwise ? Tolerance{} : tolerance(x);
  for (i64 b = 0; b < c.B; ++b) {
    // The sequence alone, dense and contiguous, in the smallest tensors that hold it.
    Case one = c;
    const Length& n = x.length[size_t(b)];
    one.B = 1, one.varlen = one.used_q = one.used_k = false, one.layout = 'c';
    one.Sq = n.sq, one.Sk = n.sk;
    if (c.dropout > 0 && b > 0) continue;  // dropout's b is the sequence's number
    if (c.alibi == 2) one.alibi = 1;
    Attention y(one);
    auto copy = [&](Tensor& from, Tensor& to, i64 rows, bool keys, i64 heads, i64 width) {
      for (i64 s = 0; s < rows; ++s)
        for (i64 h = 0; h < heads; ++h)
          for (i64 d = 0; d < width; ++d)
            y.set(to, x.get(from, b, keys ? x.k_row(b, s) : x.q_row(b, s), h, d), 0, s, h, d);
    };
    copy(x.q, y.q, n.sq, false, c.H, c.D);
    copy(x.k, y.k, n.sk, true, c.Hk, c.D);
    copy(x.v, y.v, n.sk, true, c.Hk, c.Dv);
    for (i64 h = 0; c.alibi && h < c.H; ++h)
      y.alibi.set(c.alibi == 2 ? x.alibi.get(b, h) : x.alibi.get(h), h);
    auto copy_scores = [&](const std::string& axes, Tensor& from, Tensor& to) {
      i64 size[4] = {1, 1, 1, 1}, at[4];
      std::copy(to.view.size, to.view.size + to.view.ndim, size);
      for (at[0] = 0; at[0] < size[0]; ++at[0])
        for (at[1] = 0; at[1] < size[1]; ++at[1])
          for (at[2] = 0; at[2] < size[2]; ++at[2])
            for (at[3] = 0; at[3] < size[3]; ++at[3]) {
              i64 in[4] = {at[0], at[1], at[2], at[3]};
              if (const size_t axis = axes.find('b'); axis != axes.npos) in[axis] = b;
              to.set(from.get(in[0], in[1], in[2], in[3]), at[0], at[1], at[2], at[3]);
            }
    };
    if (!c.bias.empty()) copy_scores(c.bias, x.bias, y.bias);
    if (!c.mask.empty()) copy_scores(c.mask, x.mask, y.mask);
    run_all(y, algorithm);
    const std::string failure = compare_rows(x, y, t, [&](i64 xb, i64 h, i64 i) {
      return std::array<i64, 3>{xb == b ? 0 : -1, h, i};
    });
    if (!failure.empty()) return cat("sequence ", b, " alone: ", failure);
  }
  return "";
}
std::string batch_concatenation(Case c, const std::string& algorithm) { return alone(c, algorithm, false); }
std::string batch_invariant(Case c, const std::string& algorithm) { return alone(c, algorithm, true); }

// The same bits from run to run and for any number of threads.
std::string determinism(Case c, const std::string& algorithm) {
  c.threads = 1;
  Attention x(c);
  run_all(x, algorithm);
  for (int threads : {1, 2, 3, 7, 0}) {
    c.threads = threads;
    Attention y(c);
    run_all(y, algorithm);
    const std::string failure = compare_bits(x, y);
    if (!failure.empty()) return cat("1 and ", threads, " threads: ", failure);
  }
  return "";
}

// p = 0 is the call without dropout, whatever the seed.
std::string no_dropout(Case c, const std::string& algorithm) {
  c.dropout = 0;
  Attention x(c), y(c);
  y.a.options.seed = x.a.options.seed + 12345;
  y.a.options.offset = 77;
  run_all(x, algorithm);
  run_all(y, algorithm);
  return compare_bits(x, y);
}

// Every layout holds the same numbers.
std::string layout(Case c, const std::string& algorithm) {
  Case plain = c;
  plain.layout = 'c', c.layout = 'm';
  Attention x(plain), y(c);
  // Expanded inputs repeat values: both must hold what y holds.
  const std::vector<Attention::Named> tx = x.tensors(), ty = y.tensors();
  for (size_t n = 0; n < tx.size(); ++n) {
    if (!*tx[n].tensor || tx[n].forward_output || tx[n].backward_output) continue;
    tx[n].tensor->copy_elements(*ty[n].tensor);
  }
  run_all(x, algorithm);
  run_all(y, algorithm);
  return compare_all(x, y, tolerance(x));
}

TEST(Property, KeyPermutation) { check_property("key permutation", key_permutation, 25); }
TEST(Property, ScoreShift) { check_property("score shift", score_shift, 25); }
TEST(Property, CausalPrefix) { check_property("causal prefix", causal_prefix, 25); }
TEST(Property, GqaIsRepeatedMha) { check_property("GQA is repeated MHA", gqa_is_repeated_mha, 25); }
TEST(Property, SplitIsWhole) { check_property("split is whole", split_is_whole, 25); }
TEST(Property, BatchConcatenation) { check_property("batch concatenation", batch_concatenation, 25); }
TEST(Property, BatchInvariant) { check_property("batch invariant", batch_invariant, 25); }
TEST(Property, Determinism) { check_property("determinism", determinism, 20); }
TEST(Property, NoDropout) { check_property("no dropout", no_dropout, 15); }
TEST(Property, Layout) { check_property("layout", layout, 25); }
TEST(PropertyBackward, Determinism) { check_property("determinism of gradients", determinism, 20, true); }
TEST(PropertyBackward, NoDropout) { check_property("no dropout, gradients", no_dropout, 15, true); }

// Random combinations against the oracle, seeds other than those of cases.txt.
std::string conforms(Case c, const std::string& algorithm) {
  const Outcome o = check_case(c, algorithm);
  if (!o.skipped.empty()) throw Skip{o.skipped};
  return o.failure;
}
TEST(Property, Conforms) { check_property("conforms", conforms, 60); }
TEST(PropertyBackward, Conforms) { check_property("gradients conform", conforms, 60, true); }

}  // namespace
}  // namespace tilewise::test
