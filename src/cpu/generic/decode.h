// Decode: few queries, many keys, so memory is read once and decides the speed. The head dim is in vector
// lanes; Rows (heads and queries that share a key/value head) are taken 4, 2 or 1 at a time with W / Rows
// keys, so that W dot products are W accumulators, and one W x W transpose sums them all. A vector of scores
// is then [Rows][W / Rows keys]: lane = row * Keys + key.
//
// A task is a chunk of keys for some key/value heads whose rows lie side by side. Block of keys by block of
// keys, head by head: scores (fetching the next block's V), softmax, values (fetching the next block's K).
// What is fetched is walked through in the order of memory, over all heads, whichever head is being computed.
// bf16 with native pair products stays bf16: pairs along the head dim for scores, along the keys for values.
#pragma once

#include "cpu/generic/fetch.h"
#include "cpu/generic/gemm.h"
#include "cpu/generic/pack.h"
#include "cpu/generic/scores.h"
#include "cpu/generic/scratch.h"

namespace tilewise::cpu {

static constexpr int kDecodeKeys = 32;  // of a block: K and V of two blocks of all heads stay in the L2 cache

template <class V>
static constexpr int kValueVectors = V::W == 16 ? 4 : 2;  // of columns that one pass over a block's V takes

template <class V>
struct DecodeScratch {
  float* q;     // [rows of all heads][padded D]; pairs: half as many
  float* s;     // scores of a block
  bf16* p;      // pairs: probabilities of a block, laid out like the scores
  void *k, *v;  // blocks of K and V whose columns do not lie side by side
  static i64 padded(i64 D) { return (D + V::W - 1) / V::W * V::W; }

  static size_t carve(DecodeScratch* f, void* memory, const ScratchShape& shape) {
    Carver c{static_cast<char*>(memory)};
    DecodeScratch unused;
    if (!f) f = &unused;
    f->q = c.floats(shape.group * padded(shape.D));
    f->s = c.floats((kDecodeKeys + V::W) * 4);
    f->p = reinterpret_cast<bf16*>(c.floats(V::kPairs ? (kDecodeKeys + V::W) * 2 : 0));
    f->k = c.floats(kDecodeKeys * i64(shape.D));
    f->v = c.floats(kDecodeKeys * i64(shape.Dv));
    return c.used;
  }
};

// What the lanes of a score vector stand for.
template <class V>
struct DecodeLanes {
  typename V::I low, high, position, key;
  typename V::F slope;
};

template <class V, int Rows>
TILEWISE_INLINE DecodeLanes<V> decode_lanes(const DecodeTask& t, int first) {
  constexpr int Keys = V::W / Rows;
  i32 low[V::W], high[V::W], position[V::W], key[V::W];
  float slope[V::W];
  for (int i = 0; i < V::W; ++i) {
    const int r = first + i / Keys;
    low[i] = t.low[r], high[i] = t.high[r], position[i] = t.position[r], key[i] = i % Keys,
    slope[i] = t.slope[r];
  }
  using I = typename V::I;
  return {V::template load<I>(low), V::template load<I>(high), V::template load<I>(position),
          V::template load<I>(key), V::load(slope)};
}

// The elements of a dot product over the head dim. kPerLane: of a 32-bit lane.
template <class V, class Type>
struct DecodeWiden {
  using T = Type;
  using Query = float;
  static constexpr int kPerLane = 1;
  TILEWISE_INLINE typename V::F load(const T* p) { return V::widen(p); }
  TILEWISE_INLINE typename V::F load_first(const T* p, int n) { return V::widen_first(p, n); }
  // Row `from` of queries, `padded` elements with the zeros behind it.
  static void pack_query(Query* to, const T* from, i64 column, int D, i64 padded) {
    if (column == 1)
      for (i64 d = 0; d < padded; d += V::W)
        V::store(to + d, d + V::W <= D ? V::widen(from + d) : V::widen_first(from + d, int(D - d)));
    else
      for (i64 d = 0; d < padded; ++d) to[d] = d < D ? V::widen1(from + d * column) : 0;
  }
  TILEWISE_INLINE typename V::F step(typename V::F acc, typename V::F x, typename V::F y) {
    return acc + x * y;
  }
};
template <class V>
struct DecodePairs {
  using T = bf16;
  using Query = bf16;
  static constexpr int kPerLane = 2;
  TILEWISE_INLINE typename V::F load(const bf16* p) { return V::load(p); }
  TILEWISE_INLINE typename V::F load_first(const bf16* p, int n) {
    bf16 x[2 * V::W] = {};
    for (int i = 0; i < n; ++i) x[i] = p[i];
    return V::load(x);
  }
  static void pack_query(bf16* to, const bf16* from, i64 column, int D, i64 padded) {
    for (i64 d = 0; d < 2 * padded; ++d) to[d] = d < D ? from[d * column] : bf16{};
  }
  TILEWISE_INLINE typename V::F step(typename V::F acc, typename V::F x, typename V::F y) {
    return V::dot_pairs(acc, x, y);
  }
};

// Raw scores of keys [0, n): W dot products at a time. k: the block's first key.
template <class V, class Path, int Rows, class T = typename Path::T>
[[gnu::noinline]] static void decode_dots(const float* q, i64 q_row, const T* k, i64 k_row, int n, int D,
                                          float* s, Fetch& ahead) {
  constexpr int Keys = V::W / Rows, W = V::W;
  Fetch fetch = ahead;
  for (int j = 0; j < n; j += Keys, s += W) {
    const T* key[Keys];
    unroll<Keys>([&]<int i>() TILEWISE_INLINED {
      const int row = j + i < n ? j + i : n - 1;  // keys past the end repeat the last; they are masked
      key[i] = k + row * k_row;
    });
    typename V::F acc[W];
    unroll<W>([&]<int i>() TILEWISE_INLINED { acc[i] = typename V::F{}; });
    int d = 0;
    for (; d + W * Path::kPerLane <= D; d += W * Path::kPerLane) {
      fetch_piece(fetch);
      typename V::F x[Keys];
      unroll<Keys>([&]<int i>() TILEWISE_INLINED { x[i] = V::pin(Path::load(key[i] + d)); });
      unroll<Rows>([&]<int r>() TILEWISE_INLINED {
        const typename V::F y = V::pin(V::load(q + r * q_row + d / Path::kPerLane));
        unroll<Keys>([&]<int i>()
                         TILEWISE_INLINED { acc[r * Keys + i] = Path::step(acc[r * Keys + i], x[i], y); });
      });
    }
    if (d < D)
      unroll<Keys>([&]<int i>() TILEWISE_INLINED {
        const typename V::F x = Path::load_first(key[i] + d, D - d);
        unroll<Rows>([&]<int r>() TILEWISE_INLINED {
          acc[r * Keys + i] = Path::step(acc[r * Keys + i], x, V::load(q + r * q_row + d / Path::kPerLane));
        });
      });
    V::store(s, sums<V>(acc));
  }
  ahead = fetch;
}

// o[r] = alpha[r] o[r] + sum over keys [0, n) of p(r, j) v[j], for NV vectors of columns. Scores' layout: see
// above.
template <class V, class T, int Rows, int NV>
[[gnu::noinline]] static void decode_values(const float* s, const T* v, i64 v_row, int n, int offset,
                                            float* o, i64 o_row, const float* alpha, Fetch& ahead) {
  constexpr int Keys = V::W / Rows, W = V::W;
  Fetch fetch = ahead;
  typename V::F acc[Rows][NV];
  unroll<Rows * NV>([&]<int i>() TILEWISE_INLINED {
    acc[i / NV][i % NV] = V::load(o + i / NV * o_row + i % NV * W) * alpha[i / NV];
  });
  for (int j = offset; j < offset + n; ++j, v += v_row) {
    const float* p = s + j / Keys * W + j % Keys;
    fetch_piece(fetch);
    typename V::F x[NV];
    unroll<NV>([&]<int i>() TILEWISE_INLINED { x[i] = V::pin(V::widen(v + i * W)); });
    unroll<Rows>([&]<int r>() TILEWISE_INLINED {
      const float y = p[r * Keys];
      unroll<NV>([&]<int i>() TILEWISE_INLINED { acc[r][i] += x[i] * y; });
    });
  }
  unroll<Rows * NV>([&]<int i>()
                        TILEWISE_INLINED { V::store(o + i / NV * o_row + i % NV * W, acc[i / NV][i % NV]); });
  ahead = fetch;
}

// The same for whole pairs of keys, p and v being bf16. Two rows are zipped within each 128 bits, and
// accumulators keep the order of columns that this leaves.
template <class V, int Rows, int NV>
[[gnu::noinline]] static void decode_pair_values(const bf16* s, const bf16* v, i64 v_row, int n, int offset,
                                                 float* o, i64 o_row, const float* alpha, Fetch& ahead) {
  constexpr int Keys = V::W / Rows, W = V::W;
  Fetch fetch = ahead;
  typename V::F acc[Rows][NV];
  unroll<Rows * NV / 2>([&]<int i>() TILEWISE_INLINED {
    constexpr int r = i / (NV / 2), c = i % (NV / 2) * 2;
    const typename V::F a = V::load(o + r * o_row + c * W) * alpha[r],
                        b = V::load(o + r * o_row + (c + 1) * W) * alpha[r];
    acc[r][c] = V::zipped_low(a, b), acc[r][c + 1] = V::zipped_high(a, b);
  });
  for (int j = offset; j < offset + n; j += 2, v += 2 * v_row) {
    const bf16* p = s + j / Keys * W + j % Keys;
    fetch_piece(fetch);
    fetch_piece(fetch);
    typename V::F x[NV];
    unroll<NV / 2>([&]<int i>() TILEWISE_INLINED {
      const typename V::F a = V::load(v + i * 2 * W), b = V::load(v + v_row + i * 2 * W);
      x[2 * i] = V::pin(V::zip_low(a, b)), x[2 * i + 1] = V::pin(V::zip_high(a, b));
    });
    unroll<Rows>([&]<int r>() TILEWISE_INLINED {
      const u32 y = V::template load<u32>(p + r * Keys);
      unroll<NV>([&]<int i>() TILEWISE_INLINED { acc[r][i] = V::dot_pairs(acc[r][i], y, x[i]); });
    });
  }
  unroll<Rows * NV / 2>([&]<int i>() TILEWISE_INLINED {
    constexpr int r = i / (NV / 2), c = i % (NV / 2) * 2;
    V::store(o + r * o_row + c * W, V::unzipped_low(acc[r][c], acc[r][c + 1]));
    V::store(o + r * o_row + (c + 1) * W, V::unzipped_high(acc[r][c], acc[r][c + 1]));
  });
  ahead = fetch;
}

// Scores to probabilities in place; per row the maximum and the sum are brought up to date, alpha rescales
// the past. rounded: where pairs want them in bf16 too.
template <class V, int Rows, int Degree>
static void decode_softmax(const DecodeTask& t, int first, i32 begin, i32 end, float* s, bf16* rounded,
                           float* alpha) {
  constexpr int W = V::W, Keys = W / Rows;
  const DecodeLanes<V> lanes = decode_lanes<V, Rows>(t, first);
  const int vectors = (end - begin + Keys - 1) / Keys;
  typename V::F top = V::set1(-kInfinity);
  for (int n = 0; n < vectors; ++n) {
    typename V::F x = V::load(s + n * W) * t.scale;
    const typename V::I key = lanes.key + (begin + n * Keys);
    if (t.softcap != 0) x = V::tanh(x / t.softcap) * t.softcap;
    if (t.has_alibi) {
      const typename V::I distance = lanes.position - key;
      x -= V::to_float(distance < 0 ? -distance : distance) * lanes.slope;
    }
    const typename V::I seen = (key >= lanes.low) & (key < lanes.high) & (key < end);
    x = V::select(seen, x, V::set1(-kInfinity));
    top = V::max(x, top);
    V::store(s + n * W, x);
  }
  float best[W], reference[W], sum[W];
  V::store(best, top);
  for (int r = 0; r < Rows; ++r) {
    float m = t.row_max[first + r];
    for (int i = r * Keys; i < (r + 1) * Keys; ++i) m = best[i] > m ? best[i] : m;
    for (int i = r * Keys; i < (r + 1) * Keys; ++i) reference[i] = m == -kInfinity ? 0 : m;
    const float past = (t.row_max[first + r] - reference[r * Keys]) * kLog2e;
    alpha[r] = V::template exp2<6>(V::set1(past))[0];
    t.row_max[first + r] = m;
  }
  const typename V::F m = V::load(reference);
  typename V::F total{};
  for (int n = 0; n < vectors; ++n) {
    const typename V::F p = V::template exp2<Degree>((V::load(s + n * W) - m) * kLog2e);
    total += p;
    V::store(s + n * W, p);
    if constexpr (V::kPairs)
      if (rounded) V::narrow(rounded + n * W, p);
  }
  V::store(sum, total);
  for (int r = 0; r < Rows; ++r) {
    float l = 0;
    for (int i = r * Keys; i < (r + 1) * Keys; ++i) l += sum[i];
    t.row_sum[first + r] = t.row_sum[first + r] * alpha[r] + l;
  }
}

// A block's keys of one head, columns side by side.
template <class T>
struct KeyRows {
  const T *k, *v;
  i64 k_row, v_row;
};

// Key rows [begin, end) of m where they lie, or copied to `block` when their columns are apart.
template <class V, class T>
static const T* unit_columns(const Matrix& m, i32 begin, i32 end, int columns, void* block, i64& row) {
  const T* from = static_cast<const T*>(m.data) + begin * m.row;
  row = m.column == 1 ? m.row : columns;
  if (m.column == 1) return from;
  T* to = static_cast<T*>(block);
  for (i64 j = 0; j < end - begin; ++j)
    for (i64 d = 0; d < columns; ++d) to[j * columns + d] = from[j * m.row + d * m.column];
  return to;
}

// Rows [first, first + Rows) of one head, their queries at q, against keys [begin, end).
template <class V, class Path, int Rows>
static void decode_block(const DecodeTask& t, const KeyRows<typename Path::T>& rows, const float* q,
                         const DecodeScratch<V>& f, int first, i32 begin, i32 end, Fetch& next_k,
                         Fetch& next_v) {
  using T = typename Path::T;
  constexpr int W = V::W, Keys = W / Rows, NV = kValueVectors<V>;
  constexpr bool pairs = Path::kPerLane == 2;
  const i64 q_row = DecodeScratch<V>::padded(t.D);
  const T* v = rows.v;
  float *s = f.s, alpha[4];
  decode_dots<V, Path, Rows>(q + first * q_row, q_row, rows.k, rows.k_row, end - begin, t.D, s, next_v);
  decode_softmax<V, Rows, sizeof(T) == 4 ? 6 : 4>(t, first, begin, end, s, pairs ? f.p : nullptr, alpha);
  // keys that every row sees, in whole pairs; the others are added row by row, to those that see them (0 *
  // NaN would reach the rest)
  i32 all_begin = begin, all_end = end;
  for (int r = first; r < first + Rows; ++r) {
    all_begin = t.low[r] > all_begin ? t.low[r] : all_begin;
    all_end = t.high[r] < all_end ? t.high[r] : all_end;
  }
  if (pairs) {
    all_begin += (all_begin - begin) & 1;
    all_end -= (all_end - begin) & 1;
  }
  if (all_end < all_begin) all_begin = all_end = end;
  float* o = t.o + first * i64(t.Dv);
  i64 d = 0;
  const T* from = v + (all_begin - begin) * rows.v_row;
  const int n = all_end - all_begin, offset = all_begin - begin;
  if constexpr (pairs)
    for (; d + NV * W <= t.Dv; d += NV * W)
      decode_pair_values<V, Rows, NV>(f.p, from + d, rows.v_row, n, offset, o + d, t.Dv, alpha, next_k);
  for (; d + NV * W <= t.Dv; d += NV * W)
    decode_values<V, T, Rows, NV>(s, from + d, rows.v_row, n, offset, o + d, t.Dv, alpha, next_k);
  for (; d + W <= t.Dv; d += W)
    decode_values<V, T, Rows, 1>(s, from + d, rows.v_row, n, offset, o + d, t.Dv, alpha, next_k);
  auto probability = [&](int r, i32 j) { return s[(j - begin) / Keys * W + r * Keys + (j - begin) % Keys]; };
  const i64 tail = d;
  for (int r = 0; r < Rows; ++r) {
    float* row = o + r * i64(t.Dv);
    auto add = [&](i32 from_key, i32 to_key, i64 column) {
      for (i32 j = from_key; j < to_key; ++j) {
        const float p = probability(r, j);
        for (d = column; d < t.Dv; ++d) row[d] += p * V::widen1(v + (j - begin) * rows.v_row + d);
      }
    };
    const i32 low = t.low[first + r] > begin ? t.low[first + r] : begin,
              high = t.high[first + r] < end ? t.high[first + r] : end;
    for (d = tail; d < t.Dv; ++d) row[d] *= alpha[r];
    add(low, high < all_begin ? high : all_begin, 0);
    if (tail < t.Dv) add(all_begin, all_end, tail);
    add(low > all_end ? low : all_end, high, 0);
  }
}

template <class V, class Path>
static void decode_path(const DecodeTask* head, int heads, void* scratch) {
  using T = typename Path::T;
  const DecodeTask& t = *head;  // heads differ in pointers, slopes and results only
  DecodeScratch<V> f;
  DecodeScratch<V>::carve(&f, scratch, {t.D, t.Dv, heads * t.rows});
  const i64 q_row = f.padded(t.D);
  for (int r = 0; r < heads * t.rows; ++r) {
    const DecodeTask& h = head[r / t.rows];
    const int row = r % t.rows;
    Path::pack_query(reinterpret_cast<typename Path::Query*>(f.q + r * q_row),
                     static_cast<const T*>(h.q[row]), t.q_column, t.D, q_row);
    for (i64 d = 0; d < t.Dv; ++d) h.o[row * i64(t.Dv) + d] = 0;
    h.row_max[row] = -kInfinity;
    h.row_sum[row] = 0;
  }
  for (i32 begin = t.begin; begin < t.end; begin += kDecodeKeys) {
    const i32 end = begin + kDecodeKeys < t.end ? begin + kDecodeKeys : t.end;
    const i32 next = end + kDecodeKeys < t.end ? end + kDecodeKeys : t.end;
    // Steps are a vector of W / 4 keys while scores are computed, and a key in each pass over V.
    constexpr i64 size = sizeof(T), step = V::W / 4 * V::W * Path::kPerLane;
    const i64 passes = t.Dv / (kValueVectors<V> * V::W);
    Fetch next_k = fetch_rows<T>(t.k, end, next, i64(t.D) * heads, t.D * size / (passes > 1 ? passes : 1)),
          next_v = fetch_rows<T>(t.v, end, next, i64(t.Dv) * heads, step * size);
    for (int h = 0; h < heads; ++h) {
      KeyRows<T> rows;
      rows.k = unit_columns<V, T>(head[h].k, begin, end, t.D, f.k, rows.k_row);
      rows.v = unit_columns<V, T>(head[h].v, begin, end, t.Dv, f.v, rows.v_row);
      row_blocks<4>(t.rows, [&]<int Rows>(i64 first) {
        decode_block<V, Path, Rows>(head[h], rows, f.q + h * t.rows * q_row, f, int(first), begin, end,
                                    next_k, next_v);
      });
    }
  }
}

template <class V, class T>
static void decode(const DecodeTask* head, int heads, void* scratch) {
  if constexpr (V::kPairs && __is_same(T, bf16))
    decode_path<V, DecodePairs<V>>(head, heads, scratch);
  else
    decode_path<V, DecodeWiden<V, T>>(head, heads, scratch);
}

template <class V>
static size_t decode_scratch(const ScratchShape& shape) {
  return DecodeScratch<V>::carve(nullptr, nullptr, shape);
}

}  // namespace tilewise::cpu
