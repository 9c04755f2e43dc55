// The backward's operands: a sub-block of queries (Q_i, dO_i and what is known of their rows) and a key block
// (K_j, V_j) in the layouts that the products read. Path says what an element is:
//   Fp32Gradients    fp32; fp16 and bf16 are widened. K and V are packed even where they could be read in
//                    place, which is no faster
//   PairGradients    bf16 pairs, native bf16 dot products
#pragma once

#include "cpu/generic/backward_products.h"
#include "cpu/generic/scores.h"
#include "cpu/generic/scratch.h"

namespace tilewise::cpu {

template <class V>
TILEWISE_INLINE i64 padded_columns(i64 n) {
  return (n + V::W - 1) / V::W * V::W;
}

template <class V>
struct QueryBlock {
  float *qt, *dot;   // Q_i^T [D][queries], dO_i^T [Dv][queries]; pairs: half as many rows
  float *q, *dout;   // Q_i [queries][D], dO_i [queries][Dv], padded with 0; pairs: of rows
  float* reference;  // P = normalizer exp(S - reference): lse and 1, or max and 1 / sum (exact_statistics)
  float* normalizer;
  float* delta;       // rowsum(dO_i o O_i) - dlse_i
  float* sink_share;  // exp(sink - lse_i)
  float* dqt;         // dQ_i^T [D][queries]
  bool finite;        // Q_i and dO_i
  bool normalized;    // by the maximum and the sum
};

template <class V>
struct BackwardScratch {
  QueryBlock<V> query[kMaxGroup];
  float *s, *ds;  // S^T then P^T, dP^T then dS^T; these and the next: [keys][queries]
  float *bias_tile, *mask_tile, *keep_tile;
  float *p_rows, *ds_rows, *ds_pairs;  // pairs: P^T and dS^T as bf16 rows; dS^T as pairs of rows
  float *k_block, *v_block, *k_pairs;  // packed operands
  float* ot;                           // O_i^T [Dv][queries]
  float* rows;                         // one sub-block of rows on its way in or out
  bool* finite;                        // of the rows checked last

  static size_t carve(BackwardScratch* f, void* memory, const ScratchShape& shape) {
    Carver c{static_cast<char*>(memory)};
    BackwardScratch unused;
    if (!f) f = &unused;
    constexpr i64 n = V::kQueries, keys = V::kKeys;
    const i64 D = padded_columns<V>(shape.D), Dv = padded_columns<V>(shape.Dv);
    for (int g = 0; g < shape.group; ++g) {
      QueryBlock<V>& b = f->query[g];
      b.qt = c.floats(D * n);
      b.dot = c.floats(Dv * n);
      b.q = c.floats(D * n);
      b.dout = c.floats(Dv * n);
      b.reference = c.floats(n);
      b.normalizer = c.floats(n);
      b.delta = c.floats(n);
      b.sink_share = c.floats(n);
      b.dqt = c.floats(D * n);
    }
    for (float** tile : {&f->s, &f->ds, &f->bias_tile, &f->mask_tile, &f->keep_tile})
      *tile = c.floats(keys * n);
    for (float** tile : {&f->p_rows, &f->ds_rows, &f->ds_pairs})
      *tile = c.floats(V::kPairs ? keys * n / 2 : 0);
    f->k_block = c.floats(keys * D);
    f->v_block = c.floats(keys * Dv);
    f->k_pairs = c.floats(V::kPairs ? keys / 2 * D : 0);
    f->ot = c.floats(Dv * n);
    f->rows = c.floats(n * (D > Dv ? D : Dv));
    f->finite = reinterpret_cast<bool*>(c.floats((keys > n ? keys : n) / 4 + 1));
    return c.used;
  }
};

// rows[i * ld + c] = from[c * queries + i].
template <class V>
[[gnu::noinline]] static void untranspose(float* rows, i64 ld, const float* from, int n, int columns) {
  constexpr int W = V::W;
  for (int i0 = 0; i0 < n; i0 += W) {
    int c = 0;
    for (; c + W <= columns; c += W) {
      typename V::F tile[W];
      for (int r = 0; r < W; ++r) tile[r] = V::load(from + (c + r) * i64(V::kQueries) + i0);
      transpose<V>(tile);
      for (int r = 0; r < W; ++r) V::store(rows + (i0 + r) * ld + c, tile[r]);
    }
    for (; c < columns; ++c)
      for (int r = 0; r < W; ++r) rows[(i0 + r) * ld + c] = from[c * i64(V::kQueries) + i0 + r];
  }
}

// K_j and V_j of keys [begin, end) as left operands.
template <class Dot>
struct KeyOperands {
  i32 begin, end;
  Left<Dot> k_rows, v_rows;  // a[key][d]
  Left<Dot> k_columns;       // the same K, along the keys
  bool finite;               // K_j, as far as it matters
};

template <class V, class T>
TILEWISE_INLINE const T* row_of(const Matrix& m, i64 row) {
  return static_cast<const T*>(m.data) + row * m.row;
}

template <class V, class Type>
struct Fp32Gradients {
  using T = Type;
  using Dot = Fp32Dot<V>;
  static constexpr bool kPairs = false;
  static constexpr int kStep = 1, kExpDegree = sizeof(Type) == 4 ? 6 : 4;

  static constexpr int steps(int n) { return n; }

  static void transpose_rows(const Matrix& m, const SubBlock& b, int columns, BackwardScratch<V>&,
                             float* transposed) {
    pack_transposed<V>(transposed, V::kQueries, row_of<V, T>(m, b.first), m.row, m.column, b.rows, columns,
                       lanes_of(b), 1.f);
  }
  // One step of a dot product whose factors both differ from lane to lane.
  TILEWISE_INLINE typename V::F step(typename V::F acc, typename V::F a, typename V::F b) {
    return acc + a * b;
  }

  // Rows of Q_i or dO_i: row-major with the rows in `dead` as 0, and transposed.
  static void pack(const Matrix& m, const SubBlock& b, int columns, float factor, const bool* dead,
                   BackwardScratch<V>&, float* rows, float* transposed) {
    const i64 ld = padded_columns<V>(columns);
    __builtin_memset(rows, 0, size_t(ld) * V::kQueries * sizeof(float));
    pack_rows<V>(rows, ld, row_of<V, T>(m, b.first), m.row, m.column, b.rows, columns);
    for (int i = 0; i < b.rows; ++i)
      if (dead[i]) __builtin_memset(rows + i * ld, 0, size_t(ld) * sizeof(float));
    pack_transposed<V>(transposed, V::kQueries, rows, ld, 1, b.rows, columns, lanes_of(b), factor);
  }
  static bool finite(const float* rows, int n, int columns, bool* each) {
    return rows_finite<V>(rows, padded_columns<V>(columns), 1, n, columns, each);
  }
  // Element (i, d) of rows that pack() made.
  static float element(const float* rows, i64 ld, int i, int d) { return rows[i * ld + d]; }

  static KeyOperands<Dot> load(const Matrix& k, const Matrix& v, int D, int Dv, BackwardScratch<V>& f,
                               i32 begin, i32 end) {
    pack_rows<V>(f.k_block, D, row_of<V, T>(k, begin), k.row, k.column, end - begin, D);
    pack_rows<V>(f.v_block, Dv, row_of<V, T>(v, begin), v.row, v.column, end - begin, Dv);
    return {begin, end, {f.k_block, D}, {f.v_block, Dv}, {f.k_block, D}, true};
  }
  static int lanes_of(const SubBlock& b) { return (b.rows + V::W - 1) / V::W * V::W; }
};

template <class V>
struct PairGradients {
  using T = bf16;
  using Dot = PairDot<V>;
  static constexpr bool kPairs = true;
  static constexpr int kStep = 2, kExpDegree = 4;

  static constexpr int steps(int n) { return (n + 1) / 2; }

  static void transpose_rows(const Matrix& m, const SubBlock& b, int columns, BackwardScratch<V>& f,
                             float* transposed) {
    const i64 ld = padded_columns<V>(columns);
    bf16* staged = reinterpret_cast<bf16*>(f.rows);
    pack_pair_rows<V>(staged, ld, row_of<V, T>(m, b.first), m.row, m.column, b.rows, columns);
    pack_pairs_transposed<V>(transposed, V::kQueries, staged, ld, 1, b.rows, columns,
                             (b.rows + V::W - 1) / V::W * V::W, 1.f);
  }
  TILEWISE_INLINE typename V::F step(typename V::F acc, typename V::F a, typename V::F b) {
    return V::dot_pairs(acc, a, b);
  }

  static void pack(const Matrix& m, const SubBlock& b, int columns, float factor, const bool* dead,
                   BackwardScratch<V>& f, float* rows, float* transposed) {
    const i64 ld = padded_columns<V>(columns);  // pairs along the rows: one 32-bit element a column
    bf16* staged = reinterpret_cast<bf16*>(f.rows);
    pack_pair_rows<V>(staged, ld, row_of<V, T>(m, b.first), m.row, m.column, b.rows, columns);
    for (int i = 0; i < b.rows; ++i)
      if (dead[i]) __builtin_memset(staged + i * ld, 0, size_t(columns) * sizeof(bf16));
    __builtin_memset(rows, 0, size_t(ld) * V::kQueries / 2 * sizeof(float));
    interleave_rows<V>(reinterpret_cast<u32*>(rows), ld, staged, ld, 1, b.rows, columns);
    pack_pairs_transposed<V>(transposed, V::kQueries, staged, ld, 1, b.rows, columns,
                             (b.rows + V::W - 1) / V::W * V::W, factor);
  }
  static bool finite(const float* rows, int n, int columns, bool* each) {
    return rows_finite<V>(reinterpret_cast<const bf16*>(rows), 2 * padded_columns<V>(columns), 1, (n + 1) / 2,
                          2 * columns, each);
  }
  static float element(const float* rows, i64 ld, int i, int d) {
    return V::widen1(reinterpret_cast<const bf16*>(rows) + (i / 2 * ld + d) * 2 + i % 2);
  }

  static KeyOperands<Dot> load(const Matrix& k, const Matrix& v, int D, int Dv, BackwardScratch<V>& f,
                               i32 begin, i32 end) {
    interleave_rows<V>(reinterpret_cast<u32*>(f.k_pairs), D, row_of<V, T>(k, begin), k.row, k.column,
                       end - begin, D);
    return {begin,
            end,
            along_columns(k, D, f.k_block, begin, end),
            along_columns(v, Dv, f.v_block, begin, end),
            {reinterpret_cast<const u32*>(f.k_pairs), D},
            true};
  }

 private:
  // Pairs along the columns lie in memory as they are, unless columns or rows are at odd distances.
  static Left<Dot> along_columns(const Matrix& m, int columns, float* packed, i32 begin, i32 end) {
    const bf16* rows = row_of<V, T>(m, begin);
    const bool in_place = m.column == 1 && !((columns | m.row) & 1) && !(reinterpret_cast<u64>(m.data) & 3);
    if (in_place) return {reinterpret_cast<const u32*>(rows), m.row / 2};
    const i64 ld = (columns + 1) / 2 * 2;
    pack_pair_rows<V>(reinterpret_cast<bf16*>(packed), ld, rows, m.row, m.column, end - begin, columns);
    return {reinterpret_cast<const u32*>(packed), ld / 2};
  }
};

}  // namespace tilewise::cpu
