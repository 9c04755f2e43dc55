// Forward attention of one task, queries in vector lanes: S^T [keys][queries] = K Q^T, O^T [Dv][queries] +=
// V^T P^T. K's and V's elements are broadcast from where they lie; Q is transposed once; maximum, sum and
// rescaling are vertical. The numbered steps are those of docs/cpu.md.
//
// Per task: for each key block, for each sub-block of queries, attend(). Path says how K and V become
// A-operands:
//   DirectPath   fp32 in place        WidenPath  any dtype and stride, widened into scratch
//   PairPath     bf16 pairs, native bf16 dot products
#pragma once

#include "cpu/generic/gemm.h"
#include "cpu/generic/pack.h"
#include "cpu/generic/scores.h"
#include "cpu/generic/scratch.h"

namespace tilewise::cpu {

// One sub-block's state across key blocks.
template <class V>
struct QueryState {
  float *qt, *ot;  // Q^T [D or D / 2][queries], O^T [Dv][queries]
  float *row_max, *row_sum;
};

template <class V>
struct ForwardScratch {
  QueryState<V> state[kMaxGroup];
  float *s, *alpha, *next_max;
  float *bias_tile, *mask_tile;  // [keys][queries]
  void *k_block, *v_block;       // packed
  float* rows;                   // O, [queries][Dv]
  bool* finite;                  // of the V rows of a block

  static size_t carve(ForwardScratch* f, void* memory, const ScratchShape& shape) {
    Carver c{static_cast<char*>(memory)};
    ForwardScratch unused;
    if (!f) f = &unused;
    constexpr i64 n = V::kQueries, keys = V::kForwardKeys;
    for (int g = 0; g < shape.group; ++g) {
      QueryState<V>& b = f->state[g];
      b.qt = c.floats(shape.D * n);
      b.ot = c.floats(shape.Dv * n);
      b.row_max = c.floats(n);
      b.row_sum = c.floats(n);
    }
    f->s = c.floats(keys * n);
    f->alpha = c.floats(n);
    f->next_max = c.floats(n);
    f->bias_tile = c.floats(keys * n);
    f->mask_tile = c.floats(keys * n);
    f->k_block = c.floats(keys * i64(shape.D + 1));
    f->v_block = c.floats(keys * i64(shape.Dv));
    f->rows = c.floats(n * shape.Dv);
    f->finite = reinterpret_cast<bool*>(c.floats(keys / 4 + 1));
    return c.used;
  }
};

// K and V of keys [begin, end) as A-operands.
template <class Element>
struct KeyBlock {
  i32 begin, end;
  const Element *k, *v;
  i64 k_stride, v_stride;
  bool finite;  // false: some V rows are not, are 0 in v, and are added one by one (scratch.finite)
};

template <class V>
struct DirectPath {
  using T = float;
  using Dot = Fp32Dot<V>;
  static constexpr int kExpDegree = 6, kStep = 1;  // keys per step of the value kernel
  static void pack_q(const ForwardTask& t, const SubBlock& b, int lanes, float sign, float* qt) {
    pack_transposed<V>(qt, V::kQueries, static_cast<const float*>(t.q.data) + b.first * t.q.row, t.q.row,
                       t.q.column, b.rows, t.D, lanes, sign);
  }
  static KeyBlock<float> load(const ForwardTask& t, ForwardScratch<V>& f, i32 begin, i32 end, bool finite) {
    KeyBlock<float> kb{begin,
                       end,
                       static_cast<const float*>(t.k.data) + begin * t.k.row,
                       static_cast<const float*>(t.v.data) + begin * t.v.row,
                       t.k.row,
                       t.v.row,
                       finite};
    if (!finite) {
      float* v = static_cast<float*>(f.v_block);
      pack_rows<V>(v, t.Dv, kb.v, t.v.row, t.v.column, end - begin, t.Dv);
      clear_rows(v, t.Dv, end - begin, f.finite);
      kb.v = v, kb.v_stride = t.Dv;
    }
    return kb;
  }
  static void clear_rows(float* v, i64 ld, int rows, const bool* keep) {
    for (int r = 0; r < rows; ++r)
      for (i64 d = 0; d < (keep[r] ? 0 : ld); ++d) v[r * ld + d] = 0;
  }
  static constexpr int columns(int D) { return D; }
  static constexpr int steps(int keys) { return keys; }
  TILEWISE_INLINE typename V::F probability(const float* s, int j, int v) {
    return V::load(s + j * V::kQueries + v * V::W);
  }
};

template <class V, class Type>
struct WidenPath : DirectPath<V> {
  using T = Type;
  static constexpr int kExpDegree = sizeof(Type) == 4 ? 6 : 4;
  static void pack_q(const ForwardTask& t, const SubBlock& b, int lanes, float sign, float* qt) {
    pack_transposed<V>(qt, V::kQueries, static_cast<const T*>(t.q.data) + b.first * t.q.row, t.q.row,
                       t.q.column, b.rows, t.D, lanes, sign);
  }
  static KeyBlock<float> load(const ForwardTask& t, ForwardScratch<V>& f, i32 begin, i32 end, bool finite) {
    float *k = static_cast<float*>(f.k_block), *v = static_cast<float*>(f.v_block);
    pack_rows<V>(k, t.D, static_cast<const T*>(t.k.data) + begin * t.k.row, t.k.row, t.k.column, end - begin,
                 t.D);
    pack_rows<V>(v, t.Dv, static_cast<const T*>(t.v.data) + begin * t.v.row, t.v.row, t.v.column, end - begin,
                 t.Dv);
    if (!finite) DirectPath<V>::clear_rows(v, t.Dv, end - begin, f.finite);
    return {begin, end, k, v, t.D, t.Dv, finite};
  }
};

template <class V>
struct PairPath {
  using T = bf16;
  using Dot = PairDot<V>;
  static constexpr int kExpDegree = 4, kStep = 2;
  static void pack_q(const ForwardTask& t, const SubBlock& b, int lanes, float sign, float* qt) {
    pack_pairs_transposed<V>(qt, V::kQueries, static_cast<const bf16*>(t.q.data) + b.first * t.q.row, t.q.row,
                             t.q.column, b.rows, t.D, lanes, sign);
  }
  static KeyBlock<u32> load(const ForwardTask& t, ForwardScratch<V>& f, i32 begin, i32 end, bool finite) {
    const bf16* k = static_cast<const bf16*>(t.k.data) + begin * t.k.row;
    i64 k_row = t.k.row;
    if (t.k.column != 1 || (t.D | t.k.row) & 1) {
      pack_pair_rows<V>(static_cast<bf16*>(f.k_block), columns(t.D) * 2, k, t.k.row, t.k.column, end - begin,
                        t.D);
      k = static_cast<const bf16*>(f.k_block);
      k_row = columns(t.D) * 2;
    }
    u32* v = static_cast<u32*>(f.v_block);
    interleave_rows<V>(v, t.Dv, static_cast<const bf16*>(t.v.data) + begin * t.v.row, t.v.row, t.v.column,
                       end - begin, t.Dv);
    for (int r = 0; r < (finite ? 0 : end - begin); ++r)
      for (i64 d = 0; d < (f.finite[r] ? 0 : t.Dv); ++d) v[r / 2 * t.Dv + d] &= r & 1 ? 0xFFFFu : 0xFFFF0000u;
    return {begin, end, reinterpret_cast<const u32*>(k), v, k_row / 2, t.Dv, finite};
  }
  static constexpr int columns(int D) { return (D + 1) / 2; }
  static constexpr int steps(int keys) { return (keys + 1) / 2; }
  TILEWISE_INLINE typename V::F probability(const float* s, int j, int v) {
    const typename V::U pair = V::template load<typename V::U>(s + j / 2 * V::kQueries + v * V::W);
    return typename V::F(j & 1 ? pair & 0xFFFF0000u : pair << 16);
  }
};

// (4) P^T = exp2((S^T - max) * c) in place, and its sum over the keys. Pairs: rows j, j + 1 become one row of
// bf16.
template <class V, class Path, int NV>
[[gnu::noinline]] static void exponentiate(float* s, int keys, const float* row_max, float c, float* sum) {
  constexpr int ld = V::kQueries;
  typename V::F m[NV], total[NV] = {};
  const typename V::F factor = V::set1(c);
  for (int v = 0; v < NV; ++v) m[v] = V::load(row_max + v * V::W);
  int j = 0;
  for (; j + Path::kStep <= keys; j += Path::kStep)
    for (int v = 0; v < NV; ++v) {
      float* at = s + j * ld + v * V::W;
      const typename V::F p = V::template exp2<Path::kExpDegree>((V::load(at) - m[v]) * factor);
      total[v] += p;
      if constexpr (Path::kStep == 1) {
        V::store(at, p);
      } else {
        const typename V::F p1 = V::template exp2<Path::kExpDegree>((V::load(at + ld) - m[v]) * factor);
        total[v] += p1;
        V::store(s + j / 2 * ld + v * V::W, V::to_pairs(p, p1));
      }
    }
  if constexpr (Path::kStep == 2)
    for (int v = 0; v < (j < keys ? NV : 0); ++v) {
      const typename V::F p =
          V::template exp2<Path::kExpDegree>((V::load(s + j * ld + v * V::W) - m[v]) * factor);
      total[v] += p;
      V::store(s + j / 2 * ld + v * V::W, V::to_pairs(p, typename V::F{}));
    }
  for (int v = 0; v < NV; ++v) V::store(sum + v * V::W, total[v]);
}

// V rows that are not finite: added key by key, only to the queries that see the key (0 * NaN would reach the
// rest).
template <class V, class Path, int NV>
[[gnu::noinline]] static void add_rows_one_by_one(const ForwardTask& t, const SubBlock& b,
                                                  const ForwardScratch<V>& f, float* ot,
                                                  const typename Path::T* v, i32 block_begin, i32 begin,
                                                  i32 end, bool masked) {
  for (i32 j = begin; j < end; ++j) {
    if (f.finite[j - block_begin]) continue;
    for (int n = 0; n < NV; ++n) {
      const typename V::I seen = visible<V>(b, masked ? f.mask_tile : nullptr, begin, j, n);
      const typename V::F p = Path::probability(f.s, j - begin, n);
      for (i64 d = 0; d < t.Dv; ++d) {
        float* at = ot + d * V::kQueries + n * V::W;
        const typename V::F o = V::load(at), x = V::set1(V::widen1(v + j * t.v.row + d * t.v.column));
        V::store(at, V::select(seen, o + p * x, o));
      }
    }
  }
}

// One sub-block against one key block.
template <class V, class Path, int NV>
static void attend(const ForwardTask& t, const SubBlock& b, QueryState<V>& q, ForwardScratch<V>& f,
                   const KeyBlock<typename Path::Dot::Element>& kb) {
  using Dot = typename Path::Dot;
  constexpr int ld = V::kQueries;
  // (1) the keys of this block that some query sees, whole steps of the value kernel
  const i32 seen_begin =
      b.any_begin > kb.begin ? b.any_begin - (b.any_begin - kb.begin) % Path::kStep : kb.begin;
  const i32 begin = seen_begin, end = b.any_end < kb.end ? b.any_end : kb.end, keys = end - begin;
  if (keys <= 0) return;
  bool edge = begin < b.all_begin || end > b.all_end;
  const bool masked = t.score.mask != nullptr;
  if (masked) {
    const MaskCount count = pack_mask<V>(f.mask_tile, t.score, b, begin, end);
    if (count == MaskCount::none) return;
    edge |= count == MaskCount::some;
  }
  // (2) S^T = K Q^T and its running maximum, of the keys that all queries see: [all_begin, all_end) of the
  // block
  const i32 all_begin = b.all_begin < begin ? 0 : b.all_begin < end ? b.all_begin - begin : keys;
  const i32 all_end = b.all_end > end ? keys : b.all_end > begin ? b.all_end - begin : 0;
  float* unused = f.alpha;  // until (4)
  for (int v = 0; v < NV; ++v) V::store(f.next_max + v * V::W, V::load(q.row_max + v * V::W));
  const auto* k = kb.k + (begin - kb.begin) * kb.k_stride;
  row_blocks<V::kRows>(keys, [&]<int R>(i64 r) {
    scores_kernel<V, Dot, R, NV>(k + r * kb.k_stride, kb.k_stride, q.qt, Path::columns(t.D), f.s + r * ld,
                                 r < all_begin || r + R > all_end ? unused : f.next_max);
  });
  // (3) softcap, ALiBi, bias, mask; the maximum again, over visible keys only. With nothing but positions to
  // mask, only the keys that not all queries see.
  const float unit = score_unit(t.score);
  const auto modify = [&](i32 from, i32 to) {
    if (from < to)
      modify_scores<V, NV>(t.score, b, f.s + (from - begin) * ld, from, to, edge, f.bias_tile,
                           masked ? f.mask_tile : nullptr, f.next_max);
  };
  if (masked || modifies(t.score)) {
    if (t.score.bias) pack_bias<V>(f.bias_tile, t.score, b, begin, end);
    for (int v = 0; v < NV; ++v) V::store(f.next_max + v * V::W, V::load(q.row_max + v * V::W));
    modify(begin, end);
  } else if (edge) {
    const i32 left = (all_begin + V::kRows - 1) / V::kRows * V::kRows, right = all_end / V::kRows * V::kRows;
    modify(begin, left < right ? begin + left : end);
    if (left < right) modify(begin + right, end);
  }
  // (4) P^T = exp2((S^T - max) * c), row sums, and what rescales the past
  const float c = unit * kLog2e;
  float sum[V::kQueries], reference[V::kQueries];
  for (int v = 0; v < NV; ++v) {
    const typename V::F old = V::load(q.row_max + v * V::W), now = V::load(f.next_max + v * V::W);
    const typename V::F m =
        V::select(now == -kInfinity, typename V::F{}, now);  // nothing seen yet: any reference does
    V::store(reference + v * V::W, m);
    V::store(f.alpha + v * V::W, V::template exp2<6>((old - m) * c));
    V::store(q.row_max + v * V::W, now);
  }
  exponentiate<V, Path, NV>(f.s, keys, reference, c, sum);
  for (int v = 0; v < NV; ++v)
    V::store(q.row_sum + v * V::W,
             V::load(q.row_sum + v * V::W) * V::load(f.alpha + v * V::W) + V::load(sum + v * V::W));
  if (t.score.has_dropout) drop<V, Path, NV>(t.score, b, f.s, begin, end);
  // (5) O^T = alpha O^T + V^T P^T
  const auto* v = kb.v + (begin - kb.begin) / Path::kStep * kb.v_stride;
  row_blocks<V::kRows>(t.Dv, [&]<int R>(i64 r) {
    values_kernel<V, Dot, R, NV>(v + r, kb.v_stride, f.s, Path::steps(keys), q.ot + r * ld, f.alpha);
  });
  if (!kb.finite)
    add_rows_one_by_one<V, Path, NV>(t, b, f, q.ot, static_cast<const typename Path::T*>(t.v.data), kb.begin,
                                     begin, end, masked);
}

// (6) sink, O / l, LSE; a row that saw no key is 0 with an LSE of -inf.
template <class V, class T>
static void finish(const ForwardTask& t, const SubBlock& b, const QueryState<V>& q, ForwardScratch<V>& f) {
  constexpr int W = V::W, ld = V::kQueries;
  const float unit = score_unit(t.score);
  const int vectors = (b.rows + W - 1) / W;
  for (int v = 0; v < vectors; ++v) {
    float lse[W], inverse[W];
    i32 empty_row[W];
    for (int i = 0; i < W; ++i) {
      const float m = q.row_max[v * W + i], l = q.row_sum[v * W + i];
      const bool none = m == -kInfinity && l == 0;
      empty_row[i] = none ? -1 : 0;
      const float top = m * unit;  // none: -inf
      float log_sum = none ? -kInfinity : top + __builtin_logf(l), share = none ? 0 : 1 / l;
      if (t.has_sink && t.sink != -kInfinity) {
        const double reference = top > t.sink ? top : t.sink;  // double: a difference of large numbers
        const float past = float(__builtin_exp(top - reference));
        const float total = l * past + float(__builtin_exp(t.sink - reference));
        log_sum = float(reference) + __builtin_logf(total);
        share = past / total;
      }
      lse[i] = log_sum;
      inverse[i] = t.score.has_dropout ? share * t.score.inv_keep : share;
    }
    const int rows = b.rows - v * W < W ? b.rows - v * W : W;
    for (int i = 0; t.lse && i < rows; ++i) t.lse[(b.first + v * W + i) * t.lse_row] = lse[i];
    const typename V::F scale = V::load(inverse);
    const typename V::I empty = V::template load<typename V::I>(empty_row);
    i64 d = 0;
    for (; d + W <= t.Dv; d += W) {
      typename V::F tile[W];
      for (int r = 0; r < W; ++r)
        tile[r] = V::select(empty, typename V::F{}, V::load(q.ot + (d + r) * ld + v * W) * scale);
      transpose<V>(tile);
      for (int r = 0; r < W; ++r) V::store(f.rows + (v * W + r) * i64(t.Dv) + d, tile[r]);
    }
    for (; d < t.Dv; ++d)
      for (int r = 0; r < W; ++r)
        f.rows[(v * W + r) * i64(t.Dv) + d] = empty_row[r] ? 0 : q.ot[d * ld + v * W + r] * inverse[r];
  }
  unpack_rows<V>(static_cast<T*>(t.out.data) + b.first * t.out.row, t.out.row, t.out.column, f.rows, t.Dv,
                 b.rows, t.Dv);
}

// The V rows of a block that some sub-block reads under a mask must be finite, or be treated one by one.
template <class V, class T>
static bool check_values(const ForwardTask& t, ForwardScratch<V>& f, i32 begin, i32 end) {
  bool under_mask = t.score.mask != nullptr;
  for (int g = 0; g < t.group; ++g) {
    const SubBlock& b = t.block[g];
    under_mask |= b.any_begin < end && b.any_end > begin && (b.all_begin > begin || b.all_end < end);
  }
  return !under_mask || rows_finite<V>(static_cast<const T*>(t.v.data) + begin * t.v.row, t.v.row, t.v.column,
                                       end - begin, t.Dv, f.finite);
}

template <class V, class Path>
static void forward_path(const ForwardTask& t, void* scratch, const ScratchShape& shape) {
  ForwardScratch<V> f;
  ForwardScratch<V>::carve(&f, scratch, shape);
  const float sign = t.score.scale > 0 ? 1.f : t.score.scale < 0 ? -1.f : 0.f;
  i32 first = 0x7FFFFFFF, last = 0;
  for (int g = 0; g < t.group; ++g) {
    const SubBlock& b = t.block[g];
    const int lanes = (b.rows + V::W - 1) / V::W * V::W;
    Path::pack_q(t, b, lanes, sign, f.state[g].qt);
    for (i64 x = 0; x < i64(t.Dv) * V::kQueries; x += V::W) V::store(f.state[g].ot + x, typename V::F{});
    for (int x = 0; x < V::kQueries; ++x) f.state[g].row_max[x] = -kInfinity, f.state[g].row_sum[x] = 0;
    if (b.any_end <= b.any_begin) continue;
    if (b.any_begin < first) first = b.any_begin;
    if (b.any_end > last) last = b.any_end;
  }
  for (i32 begin = first / V::kForwardKeys * V::kForwardKeys; begin < last; begin += V::kForwardKeys) {
    const i32 from = begin > first ? begin : first - (first - begin) % Path::kStep;
    const i32 end = begin + V::kForwardKeys < last ? begin + V::kForwardKeys : last;
    const auto kb = Path::load(t, f, from, end, check_values<V, typename Path::T>(t, f, from, end));
    for (int g = 0; g < t.group; ++g) {
      const SubBlock& b = t.block[g];
      switch ((b.rows + V::W - 1) / V::W) {
        case 1: attend<V, Path, 1>(t, b, f.state[g], f, kb); break;
        case 2: attend<V, Path, 2>(t, b, f.state[g], f, kb); break;
        default: attend<V, Path, V::kVectors>(t, b, f.state[g], f, kb);
      }
    }
  }
  for (int g = 0; g < t.group; ++g) finish<V, typename Path::T>(t, t.block[g], f.state[g], f);
}

template <class V, class T>
static void forward(const ForwardTask& t, void* scratch) {
  const ScratchShape shape{t.D, t.Dv, t.group};
  if constexpr (sizeof(T) == 4)
    if (t.direct) return forward_path<V, DirectPath<V>>(t, scratch, shape);
  if constexpr (V::kPairs && __is_same(T, bf16))
    forward_path<V, PairPath<V>>(t, scratch, shape);
  else
    forward_path<V, WidenPath<V, T>>(t, scratch, shape);
}

template <class V>
static size_t forward_scratch(const ScratchShape& shape) {
  return ForwardScratch<V>::carve(nullptr, nullptr, shape);
}

}  // namespace tilewise::cpu
