// Backward attention of one task: Algorithm 2 of the paper with the loops exchanged (queries outside),
// because dK and dV of a whole head fit the cache hierarchy and dQ then needs no second home. Everything that
// has queries in columns is transposed, as in the forward. The numbered steps are those of docs/cpu.md.
#pragma once

#include "cpu/generic/backward_block.h"
#include "cpu/generic/backward_scores.h"

namespace tilewise::cpu {

// Does query i of the block see a key that bias leaves a finite score?
template <class V>
static bool sees_any(const ScoreOptions& o, const SubBlock& b, int i) {
  for (i32 j = b.low[i]; j < b.high[i]; ++j) {
    const i64 at = (b.first + i) * o.bias_i + j * o.bias_j;
    const bool seen = !o.mask || o.mask[(b.first + i) * o.mask_i + j * o.mask_j];
    const float bias = !o.bias                   ? 0
                       : o.bias_dtype == TW_FP16 ? V::widen1(static_cast<const fp16*>(o.bias) + at)
                       : o.bias_dtype == TW_BF16 ? V::widen1(static_cast<const bf16*>(o.bias) + at)
                                                 : static_cast<const float*>(o.bias)[at];
    if (seen && bias != -kInfinity) return true;
  }
  return false;
}

// Rows that saw nothing: all that they give is dlse to the sink. Their lse tells, unless there is a sink.
template <class V>
static void find_dead(const BackwardTask& t, const SubBlock& b, bool* dead) {
  for (int i = 0; i < b.rows; ++i) {
    const float lse = t.lse[(b.first + i) * t.lse_row];
    dead[i] = lse == -kInfinity || (t.has_sink && lse == t.sink && !sees_any<V>(t.score, b, i));
  }
}

// (1) delta_i = rowsum(dO_i o O_i) - dlse_i, and P's reference. The sum is taken in the order of the product
// (3), so that a row whose only key has all the weight gets a dS of exactly 0.
template <class V, class Path>
static void open_rows(const BackwardTask& t, const SubBlock& b, QueryBlock<V>& q, BackwardScratch<V>& f,
                      const bool* dead) {
  Path::transpose_rows(t.out, b, t.Dv, f, f.ot);
  for (int n = 0; n < V::kQueries; n += V::W) {
    typename V::F sum{};
    for (i64 d = 0; d < (n < b.rows ? Path::steps(t.Dv) : 0); ++d)
      sum = Path::step(sum, V::load(f.ot + d * V::kQueries + n), V::load(q.dot + d * V::kQueries + n));
    V::store(q.delta + n, sum);
    bool odd = false;
    for (int i = n; i < n + V::W; ++i) odd |= q.delta[i] - q.delta[i] != 0;
    if (!odd) continue;
    // Delta is a sum over keys of P dP. Where dO is not finite no dP is, and dS is a NaN for every key, which
    // infinities of one sign in O o dO would not show.
    typename V::F nan{};
    for (i64 d = 0; d < Path::steps(t.Dv); ++d)
      nan = Path::step(nan, typename V::F{}, V::load(q.dot + d * V::kQueries + n));
    V::store(q.delta + n, sum + nan);
  }
  const float unit = score_unit(t.score);
  q.normalized = false;
  for (int i = 0; i < V::kQueries; ++i) {
    q.reference[i] = kInfinity;  // P = 0
    q.normalizer[i] = 1;
    const float dot = q.delta[i];
    q.delta[i] = q.sink_share[i] = 0;
    if (i >= b.rows) continue;
    const float lse = t.lse[(b.first + i) * t.lse_row];
    if (lse == -kInfinity) continue;
    q.sink_share[i] = __builtin_expf(t.sink - lse);
    if (!dead[i]) q.delta[i] = dot;
    if (t.dlse) q.delta[i] -= t.dlse[(b.first + i) * t.dlse_row];
    if (dead[i]) continue;
    q.reference[i] = lse / unit;
    q.normalized |= lse > kExactBeyond || lse < -kExactBeyond;
  }
}

// Where an lse is so large that fp32 holds too little of the sum in it, the row's maximum and sum are found
// again.
template <class V, class Path, int NV>
static void exact_statistics(const BackwardTask& t, const SubBlock& b, QueryBlock<V>& q,
                             BackwardScratch<V>& f) {
  const float unit = score_unit(t.score);
  float top[V::kQueries], sum[V::kQueries] = {};
  for (float& x : top) x = -kInfinity;
  for (i32 begin = b.any_begin / Path::kStep * Path::kStep; begin < b.any_end; begin += V::kKeys) {
    const i32 end = begin + V::kKeys < b.any_end ? begin + V::kKeys : b.any_end;
    const auto kb = Path::load(t.k, t.v, t.D, t.Dv, f, begin, end);
    const Tile tile = open_tile<V>(t.score, b, f, begin, end);
    if (tile.empty) continue;
    product<V, typename Path::Dot, Along::rows, false>(end - begin, NV, Path::steps(t.D), kb.k_rows, q.qt,
                                                       V::kQueries, f.s, V::kQueries);
    add_statistics<V, NV>(t.score, b, f, tile, unit * kLog2e, top, sum);
  }
  for (int i = 0; i < V::kQueries; ++i) {
    if (q.reference[i] == kInfinity) continue;
    const double below_sink = t.has_sink ? double(top[i]) * double(unit) - double(t.sink) : kInfinity;
    q.sink_share[i] = float(1 / (1 + double(sum[i]) * __builtin_exp(below_sink)));
    q.reference[i] = top[i];
    q.normalizer[i] = float(1 / (double(sum[i]) + __builtin_exp(-below_sink)));
  }
}

// A tile in which something is masked and something is not finite: 0 * NaN must not carry it to queries and
// keys that do not see each other, so (5) to (7) go element by element. Masked elements of P^T are -0.
template <class V, class Path>
[[gnu::noinline]] static void add_visible(const BackwardTask& t, const SubBlock& b, const QueryBlock<V>& q,
                                          const BackwardScratch<V>& f, i32 begin, i32 end) {
  using T = typename Path::T;
  const i64 ld = V::kQueries, ldq = padded_columns<V>(t.D), ldo = padded_columns<V>(t.Dv);
  for (i32 j = begin; j < end; ++j)
    for (int i = 0; i < b.rows; ++i) {
      const float p = f.s[(j - begin) * ld + i], ds = f.ds[(j - begin) * ld + i];
      if (__builtin_signbit(p)) continue;
      const T* k = row_of<V, T>(t.k, j);
      for (int d = 0; d < t.D; ++d) {
        q.dqt[d * ld + i] += ds * V::widen1(k + d * t.k.column);
        t.dk[j * t.dk_row + d] += ds * Path::element(q.q, ldq, i, d);
      }
      for (int d = 0; d < t.Dv; ++d) t.dv[j * t.dv_row + d] += p * Path::element(q.dout, ldo, i, d);
    }
}

// One sub-block against one key block.
template <class V, class Path, int NV>
static void attend_backward(const BackwardTask& t, const SubBlock& b, QueryBlock<V>& q, BackwardScratch<V>& f,
                            const KeyOperands<typename Path::Dot>& kb) {
  using Dot = typename Path::Dot;
  constexpr int ld = V::kQueries;
  const i32 begin = b.any_begin > kb.begin ? b.any_begin - (b.any_begin - kb.begin) % Path::kStep : kb.begin,
            end = b.any_end < kb.end ? b.any_end : kb.end, keys = end - begin;
  if (keys <= 0) return;
  const Tile tile = open_tile<V>(t.score, b, f, begin, end);
  if (tile.empty) return;
  const i64 skipped = begin - kb.begin;
  const Left<Dot> k_rows{kb.k_rows.data + skipped * kb.k_rows.stride, kb.k_rows.stride},
      v_rows{kb.v_rows.data + skipped * kb.v_rows.stride, kb.v_rows.stride},
      k_columns{kb.k_columns.data + skipped / Path::kStep * kb.k_columns.stride, kb.k_columns.stride};
  // (2) S_ij^T = K_j Q_i^T   [keys][queries]
  product<V, Dot, Along::rows, false>(keys, NV, Path::steps(t.D), k_rows, q.qt, ld, f.s, ld);
  // (3) dP_ij^T = V_j dO_i^T   [keys][queries]
  product<V, Dot, Along::rows, false>(keys, NV, Path::steps(t.Dv), v_rows, q.dot, ld, f.ds, ld);
  // (4) P_ij = exp(S_ij - L_i), dS_ij = P_ij o (dP_ij - delta_i)
  const bool plain = !tile.edge && !modifies(t.score) && !t.score.has_dropout && !q.normalized && !t.dbias;
  if (plain)
    plain_gradients<V, Path, NV>(t.score, q, f, keys);
  else
    masked_gradients<V, Path, NV>(t.score, b, q, f, tile, t.dbias != nullptr);
  if (t.dbias) return add_dbias<V>(t, b, f, begin, end);
  if (tile.edge && !(q.finite && kb.finite)) return add_visible<V, Path>(t, b, q, f, begin, end);
  const GradientOperands<Dot> g = gradient_operands<V, Path, NV>(f, b.rows, keys);
  // (5) dQ_i^T += K_j^T dS_ij^T   [D][queries]
  product<V, Dot, Along::columns, true>(t.D, NV, Path::steps(keys), k_columns, g.ds_columns, ld, q.dqt, ld);
  // (6) dV_j += P_ij^T dO_i   [keys][Dv]
  const i64 D = padded_columns<V>(t.D), Dv = padded_columns<V>(t.Dv);
  product<V, Dot, Along::rows, true>(keys, int(Dv / V::W), Path::steps(b.rows), g.p_rows, q.dout, Dv,
                                     t.dv + begin * t.dv_row, t.dv_row);
  // (7) dK_j += dS_ij^T Q_i   [keys][D]
  product<V, Dot, Along::rows, true>(keys, int(D / V::W), Path::steps(b.rows), g.ds_rows, q.q, D,
                                     t.dk + begin * t.dk_row, t.dk_row);
}

// Calls f.template operator()<NV>() with the vectors that a sub-block fills.
template <class V, class F>
TILEWISE_INLINE void with_vectors(const SubBlock& b, F&& f) {
  switch ((b.rows + V::W - 1) / V::W) {
    case 1: return f.template operator()<1>();
    case 2: return f.template operator()<2>();
    default: return f.template operator()<V::kVectors>();
  }
}

template <class V, class Path>
static void open_block(const BackwardTask& t, const SubBlock& b, QueryBlock<V>& q, BackwardScratch<V>& f) {
  bool dead[V::kQueries] = {};
  find_dead<V>(t, b, dead);
  const float sign = t.score.scale > 0 ? 1.f : t.score.scale < 0 ? -1.f : 0.f;
  Path::pack(t.q, b, t.D, sign, dead, f, q.q, q.qt);
  Path::pack(t.dout, b, t.Dv, 1.f, dead, f, q.dout, q.dot);
  open_rows<V, Path>(t, b, q, f, dead);
  const bool q_finite = Path::finite(q.q, b.rows, t.D, f.finite);
  q.finite = Path::finite(q.dout, b.rows, t.Dv, f.finite) && q_finite;
  __builtin_memset(q.dqt, 0, size_t(t.D) * V::kQueries * sizeof(float));
  if (q.normalized) with_vectors<V>(b, [&]<int NV>() { exact_statistics<V, Path, NV>(t, b, q, f); });
  for (int i = 0; i < (t.dsink ? b.rows : 0); ++i) *t.dsink -= double(q.sink_share[i]) * double(q.delta[i]);
}

// The K rows of a block that some sub-block reads under a mask must be finite, or the tile goes element by
// element.
template <class V, class T>
static bool check_keys(const BackwardTask& t, BackwardScratch<V>& f, i32 begin, i32 end) {
  bool under_mask = t.score.mask != nullptr || t.score.bias != nullptr;
  for (int g = 0; g < t.group; ++g) {
    const SubBlock& b = t.block[g];
    under_mask |= b.any_begin < end && b.any_end > begin && (b.all_begin > begin || b.all_end < end);
  }
  return !under_mask ||
         rows_finite<V>(row_of<V, T>(t.k, begin), t.k.row, t.k.column, end - begin, t.D, f.finite);
}

// Waits until the tasks before this one have added to the keys below `end`.
TILEWISE_INLINE void take_turn(const BackwardTask& t, i32 end) {
  for (i32 n = t.before; n > 0; --n)
    if (__atomic_load_n(t.progress - n, __ATOMIC_ACQUIRE) < end) t.wait(t.progress - n, end);
}
TILEWISE_INLINE void pass_turn(const BackwardTask& t, i32 end) {
  if (t.progress) __atomic_store_n(t.progress, end, __ATOMIC_RELEASE);
}

template <class V, class Path>
static void backward_path(const BackwardTask& t, void* scratch, const ScratchShape& shape) {
  using T = typename Path::T;
  BackwardScratch<V> f;
  BackwardScratch<V>::carve(&f, scratch, shape);
  i32 first = 0x7FFFFFFF, last = 0;
  for (int g = 0; g < t.group; ++g) {
    const SubBlock& b = t.block[g];
    open_block<V, Path>(t, b, f.query[g], f);
    if (b.any_end <= b.any_begin) continue;
    first = b.any_begin < first ? b.any_begin : first;
    last = b.any_end > last ? b.any_end : last;
  }
  if (t.dbias) {
    first = first < t.dbias_begin ? t.dbias_begin : first;
    last = last > t.dbias_end ? t.dbias_end : last;
  }
  for (i32 begin = first / V::kKeys * V::kKeys; begin < last; begin += V::kKeys) {
    const i32 from = begin > first ? begin : first - (first - begin) % Path::kStep;
    const i32 end = begin + V::kKeys < last ? begin + V::kKeys : last;
    const i32 next = end + V::kKeys < last ? end + V::kKeys : last;
    auto kb = Path::load(t.k, t.v, t.D, t.Dv, f, from, end);
    kb.finite = check_keys<V, T>(t, f, from, end);
    take_turn(t, end);
    for (int g = 0; g < t.group; ++g) {
      fetch_next_rows<T>(t.k, end, next, t.D, g, t.group);
      fetch_next_rows<T>(t.v, end, next, t.Dv, g, t.group);
      with_vectors<V>(t.block[g],
                      [&]<int NV>() { attend_backward<V, Path, NV>(t, t.block[g], f.query[g], f, kb); });
    }
    pass_turn(t, end);
  }
  // (8) dQ_i
  for (int g = 0; g < (t.dbias ? 0 : t.group); ++g) {
    const SubBlock& b = t.block[g];
    untranspose<V>(f.rows, t.D, f.query[g].dqt, b.rows, t.D);
    unpack_rows<V>(static_cast<T*>(t.dq.data) + b.first * t.dq.row, t.dq.row, t.dq.column, f.rows, t.D,
                   b.rows, t.D);
  }
}

template <class V, class T>
static void backward(const BackwardTask& t, void* scratch) {
  const ScratchShape shape{t.D, t.Dv, t.group, false};
  if constexpr (V::kPairs && __is_same(T, bf16))
    backward_path<V, PairGradients<V>>(t, scratch, shape);
  else
    backward_path<V, Fp32Gradients<V, T>>(t, scratch, shape);
}

template <class V>
static size_t backward_scratch(const ScratchShape& shape) {
  return BackwardScratch<V>::carve(nullptr, nullptr, shape);
}

}  // namespace tilewise::cpu
