#include "oracle/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/error.h"
#include "oracle/head.h"

namespace tilewise::oracle {
namespace {

// Calls f with the arithmetic of a precision.
template <class F>
auto with_arithmetic(const Problem& p, Precision precision, F&& f) {
  if (precision == Precision::exact) return f(Exact{});
  return f(Naive{p.dtype});
}

void require_host(const Problem& p) {
  if (p.device != TW_CPU) invalid("oracle: reads host memory; copy the tensors there first");
}

// The sequence that covers a row of q, or -1.
i64 sequence_of(const Problem& p, const std::vector<Sequence>& all, const Row& row) {
  if (!p.packed) return row.s < all[size_t(row.b)].sq ? row.b : -1;
  // The last sequence that begins at or before the row: empty ones in front of it begin there too.
  auto it =
      std::upper_bound(all.begin(), all.end(), row.s, [](i64 s, const Sequence& x) { return s < x.q_row; });
  if (it == all.begin()) return -1;
  --it;
  return row.s < it->q_row + it->sq ? it->index : -1;
}

size_t dense_index(const ScoreView& x, i64 b, i64 h, i64 i, i64 j) {
  auto at = [&](int axis, i64 position) { return x.size[axis] == 1 ? 0 : position; };
  return size_t(((at(0, b) * x.size[1] + at(1, h)) * x.size[2] + at(2, i)) * x.size[3] + at(3, j));
}

double rounded(tw_dtype dtype, float x) {
  return with_type(dtype, [&](auto t) { return double(to_float(from_float<decltype(t)>(x))); });
}

// Rows of one head into a dense (rows, heads, width) tensor.
template <class From, class To>
void scatter(const std::vector<From>& from, std::vector<To>& to, i64 first, i64 n, i64 h, i64 heads,
             i64 width) {
  for (i64 i = 0; i < n; ++i)
    for (i64 d = 0; d < width; ++d)
      to[size_t(((first + i) * heads + h) * width + d)] = To(from[size_t(i * width + d)]);
}

}  // namespace

std::vector<Row> all_rows(const Problem& p) {
  std::vector<Row> rows;
  const i64 B = p.packed ? 1 : p.B, S = p.packed ? p.total_q : p.Sq;
  for (i64 b = 0; b < B; ++b)
    for (i64 s = 0; s < S; ++s)
      for (i64 h = 0; h < p.H; ++h) rows.push_back({b, s, h});
  return rows;
}

std::vector<Row> some_rows(const Problem& p, size_t count, u64 seed) {
  const i64 B = p.packed ? 1 : p.B, S = p.packed ? p.total_q : p.Sq, n = B * S * p.H;
  if (n <= i64(count)) return all_rows(p);
  std::mt19937_64 random(seed);
  std::vector<i64> picks = {0, n - 1};
  while (picks.size() < count) picks.push_back(i64(random() % u64(n)));
  std::sort(picks.begin(), picks.end());
  picks.erase(std::unique(picks.begin(), picks.end()), picks.end());
  std::vector<Row> rows;
  for (i64 x : picks) rows.push_back({x / (S * p.H), x / p.H % S, x % p.H});
  return rows;
}

Forward forward(const Problem& p, Precision precision, const std::vector<Row>& rows) {
  require_host(p);
  const std::vector<Sequence> all = sequences(p);
  Forward result{std::vector<double>(rows.size() * size_t(p.Dv), 0.0),
                 std::vector<double>(rows.size(), -std::numeric_limits<double>::infinity())};
  // Rows of one head stand together, so that its keys and values are read once.
  std::vector<size_t> order(rows.size());
  std::vector<i64> owner(rows.size());
  for (size_t r = 0; r < rows.size(); ++r) order[r] = r, owner[r] = sequence_of(p, all, rows[r]);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(owner[a], rows[a].h) < std::pair(owner[b], rows[b].h);
  });
  with_arithmetic(p, precision, [&](auto arithmetic) {
    Head<decltype(arithmetic)> head(p, arithmetic);
    for (size_t r : order) {
      if (owner[r] < 0) continue;
      const Sequence& s = all[size_t(owner[r])];
      head.open(s, rows[r].h);
      head.forward(rows[r].s - s.q_row, &result.out[r * size_t(p.Dv)], &result.lse[r]);
    }
  });
  return result;
}

Forward read_forward(const Problem& p, const std::vector<Row>& rows) {
  require_host(p);
  Forward f;
  f.out.reserve(rows.size() * size_t(p.Dv));
  for (const Row& r : rows) {
    const Strides& s = p.out.stride;
    for (i64 d = 0; d < p.Dv; ++d)
      f.out.push_back(read(p.out.data, p.dtype, r.b * s.b + r.s * s.s + r.h * s.h + d * s.d));
    if (p.lse) f.lse.push_back(*p.lse.at(r.b, r.h, r.s));
  }
  return f;
}

Backward backward(const Problem& p, Precision precision, BackwardTerms* wanted) {
  require_host(p);
  Backward g;
  BackwardTerms unused, &terms = wanted ? *wanted : unused;
  auto size = [](auto& values, auto& value_terms, i64 n) {
    values.assign(size_t(n), 0);
    value_terms.assign(size_t(n), {});
  };
  size(g.dq, terms.dq, p.total_q * p.H * p.D);
  size(g.dk, terms.dk, p.total_k * p.Hk * p.D);
  size(g.dv, terms.dv, p.total_k * p.Hk * p.Dv);
  const i64* n = p.dbias.size;
  if (p.dbias) size(g.dbias, terms.dbias, n[0] * n[1] * n[2] * n[3]);
  if (p.has_dsink) size(g.dsink, terms.dsink, p.H);
  with_arithmetic(p, precision, [&](auto round) {
    using Real = typename decltype(round)::Real;
    Head<decltype(round)> head(p, round);
    std::vector<Real> dbias(g.dbias.size(), 0), dsink(size_t(p.H), 0);
    for (const Sequence& s : sequences(p))
      for (i64 hk = 0; hk < p.Hk; ++hk) {
        const i64 first_q = s.q_b * p.Sq + s.q_row, first_k = s.k_b * p.Sk + s.k_row;
        HeadGradients<Real> group(p, s);  // dk and dv over the group
        HeadGradients<Terms> group_terms(p, s);
        for (i64 h = hk * p.group(); h < (hk + 1) * p.group(); ++h) {
          head.open(s, h);
          HeadGradients<Real> of_head(p, s);
          for (i64 i = 0; i < s.sq; ++i)
            head.backward(i, of_head, group_terms, [&](i64 qi, i64 kj, Real ds, double ds_terms) {
              if (!p.dbias) return;
              dbias[dense_index(p.dbias, s.index, h, qi, kj)] += ds;
              terms.dbias[dense_index(p.dbias, s.index, h, qi, kj)] += ds_terms;
            });
          for (size_t x = 0; x < group.dk.size(); ++x) group.dk[x] += round(of_head.dk[x]);
          for (size_t x = 0; x < group.dv.size(); ++x) group.dv[x] += round(of_head.dv[x]);
          scatter(of_head.dq, g.dq, first_q, s.sq, h, p.H, p.D);
          scatter(group_terms.dq, terms.dq, first_q, s.sq, h, p.H, p.D);
          group_terms.dq.assign(group_terms.dq.size(), {});
          dsink[size_t(h)] += of_head.dsink;
          if (p.has_dsink) terms.dsink[size_t(h)] += group_terms.dsink;
          group_terms.dsink = {};
        }
        for (Real& x : group.dk) x = round(x);
        for (Real& x : group.dv) x = round(x);
        scatter(group.dk, g.dk, first_k, s.sk, hk, p.Hk, p.D);
        scatter(group.dv, g.dv, first_k, s.sk, hk, p.Hk, p.Dv);
        scatter(group_terms.dk, terms.dk, first_k, s.sk, hk, p.Hk, p.D);
        scatter(group_terms.dv, terms.dv, first_k, s.sk, hk, p.Hk, p.Dv);
      }
    for (size_t x = 0; x < dbias.size(); ++x)
      g.dbias[x] = precision == Precision::exact ? double(dbias[x]) : rounded(p.dbias.dtype, float(dbias[x]));
    for (size_t x = 0; x < g.dsink.size(); ++x) g.dsink[x] = double(dsink[x]);
  });
  return g;
}

Backward read_backward(const Problem& p) {
  require_host(p);
  auto gather = [&](const View& x, i64 S, i64 total, i64 H, i64 width) {
    std::vector<double> values;
    values.reserve(size_t(total * H * width));
    for (i64 row = 0; row < total; ++row)
      for (i64 h = 0; h < H; ++h)
        for (i64 d = 0; d < width; ++d) {
          const i64 b = p.packed ? 0 : row / S, s = p.packed ? row : row % S;
          values.push_back(
              read(x.data, x.dtype, b * x.stride.b + s * x.stride.s + h * x.stride.h + d * x.stride.d));
        }
    return values;
  };
  Backward g;
  g.dq = gather(p.dq, p.Sq, p.total_q, p.H, p.D);
  g.dk = gather(p.dk, p.Sk, p.total_k, p.Hk, p.D);
  g.dv = gather(p.dv, p.Sk, p.total_k, p.Hk, p.Dv);
  const i64* n = p.dbias.size;
  if (p.dbias)
    for (i64 b = 0; b < n[0]; ++b)
      for (i64 h = 0; h < n[1]; ++h)
        for (i64 i = 0; i < n[2]; ++i)
          for (i64 j = 0; j < n[3]; ++j)
            g.dbias.push_back(read(p.dbias.data, p.dbias.dtype, p.dbias.index(b, h, i, j)));
  for (i64 h = 0; p.has_dsink && h < p.H; ++h) g.dsink.push_back(p.dsink[h * p.dsink_h]);
  return g;
}

}  // namespace tilewise::oracle
