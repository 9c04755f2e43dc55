// From S^T and dP^T of a tile to P^T and dS^T: element by element, in vectors of queries.
#pragma once

#include "cpu/generic/backward_block.h"

namespace tilewise::cpu {

// An lse beyond this is rounded by fp32 to more than 1e-6, which P then is wrong by.
static constexpr float kExactBeyond = 32;

// What is masked in keys [begin, end) of a sub-block.
struct Tile {
  i32 begin, end;
  bool empty, edge;        // nothing / not everything is visible
  const float* mask_tile;  // null: no boolean mask
};

// Looks at positions, boolean mask and bias (where -inf masks too) of a tile, and packs the last two.
template <class V>
static Tile open_tile(const ScoreOptions& o, const SubBlock& b, BackwardScratch<V>& f, i32 begin, i32 end) {
  Tile tile{begin, end, false, begin < b.all_begin || end > b.all_end || o.bias != nullptr, nullptr};
  if (o.mask) {
    const MaskCount count = pack_mask<V>(f.mask_tile, o, b, begin, end);
    tile.empty = count == MaskCount::none;
    tile.edge |= count == MaskCount::some;
    tile.mask_tile = f.mask_tile;
  }
  if (o.bias && !tile.empty) pack_bias<V>(f.bias_tile, o, b, begin, end);
  return tile;
}

// The score that the softmax sees of key j and the queries of vector n, from raw q . k; slope: what softcap's
// derivative is there.
template <class V>
TILEWISE_INLINE typename V::F final_score(const ScoreOptions& o, const SubBlock& b,
                                          const BackwardScratch<V>& f, const Tile& tile, i32 j, int n,
                                          typename V::F x, typename V::F* slope) {
  const i64 at = (j - tile.begin) * i64(V::kQueries) + n * V::W;
  if (modifies(o)) x = x * (o.scale < 0 ? -o.scale : o.scale);
  if (o.softcap != 0) {
    const typename V::F scaled = x / o.softcap, e = V::template exp2<6>(V::abs(scaled) * (-2 * kLog2e));
    *slope = 4.f * e / ((1.f + e) * (1.f + e));  // 1 - tanh^2, without its cancellation
    x = V::tanh(scaled) * o.softcap;
  }
  if (o.bias) x = x + V::load(f.bias_tile + at);
  if (o.has_alibi) {
    const typename V::I distance = V::lane_numbers() + (b.first + n * V::W + o.alibi_shift) - j;
    x = x - V::to_float(distance < 0 ? -distance : distance) * o.slope;
  }
  return tile.edge ? V::select(visible<V>(b, tile.mask_tile, tile.begin, j, n), x, V::set1(-kInfinity)) : x;
}

// Adds a tile's final scores to the running maximum (in units of c) and sum of each query.
template <class V, int NV>
[[gnu::noinline]] static void add_statistics(const ScoreOptions& o, const SubBlock& b,
                                             const BackwardScratch<V>& f, const Tile& tile, float c,
                                             float* top, float* sum) {
  using F = typename V::F;
  for (int n = 0; n < NV; ++n) {
    F m = V::load(top + n * V::W), total = V::load(sum + n * V::W), slope;
    for (i32 j = tile.begin; j < tile.end; ++j) {
      const F raw = V::load(f.s + (j - tile.begin) * i64(V::kQueries) + n * V::W);
      const F x = final_score<V>(o, b, f, tile, j, n, raw, &slope);
      const F higher = V::max(x, m), reference = V::select(higher == -kInfinity, F{}, higher);
      total = total * V::template exp2<6>((m - reference) * c) + V::template exp2<6>((x - reference) * c);
      m = higher;
    }
    V::store(top + n * V::W, m);
    V::store(sum + n * V::W, total);
  }
}

// (4) with every element visible and nothing done to the scores but the scale.
template <class V, class Path, int NV>
[[gnu::noinline]] static void plain_gradients(const ScoreOptions& o, const QueryBlock<V>& q,
                                              const BackwardScratch<V>& f, int keys) {
  using F = typename V::F;
  constexpr int ld = V::kQueries;
  const F c = V::set1(score_unit(o) * kLog2e), scale = V::set1(o.scale);
  F reference[NV], delta[NV];
  for (int n = 0; n < NV; ++n) {
    reference[n] = V::load(q.reference + n * V::W);
    delta[n] = V::load(q.delta + n * V::W);
  }
  for (int j = 0; j < keys; ++j)
    for (int n = 0; n < NV; ++n) {
      float *s = f.s + j * ld + n * V::W, *ds = f.ds + j * ld + n * V::W;
      const F p = V::template exp2<Path::kExpDegree>((V::load(s) - reference[n]) * c);
      V::store(s, p);
      V::store(ds, (V::load(ds) - delta[n]) * (p * scale));
    }
}

// Which elements of the tile dropout keeps, as 0 and 1.
template <class V, int NV>
static void pack_keeps(const ScoreOptions& o, const SubBlock& b, const BackwardScratch<V>& f,
                       const Tile& tile) {
  for (int n = 0; n < NV; ++n)
    for (i32 j = tile.begin & ~1; j < tile.end; j += 2) {
      typename V::I keep[2];
      dropout_keeps<V>(o, b.first + n * V::W, j, keep);
      for (int odd = 0; odd < 2; ++odd)
        if (j + odd >= tile.begin && j + odd < tile.end)
          V::store(f.keep_tile + (j + odd - tile.begin) * i64(V::kQueries) + n * V::W,
                   V::select(keep[odd], V::set1(1.f), typename V::F{}));
    }
}

// exp(x) for x <= 0, exact to rounding even far below 0, where the product with log2(e) alone would not be:
// it matters where all of a row's keys are far below its sink.
template <class V, int Degree>
TILEWISE_INLINE typename V::F exact_exp(typename V::F x) {
  const typename V::F magic = V::set1(0x1.8p23f), n = (x * kLog2e + magic) - magic;
  const typename V::F r = (x - n * 0.693359375f) + n * 2.12194440e-4f;  // x - n ln 2
  const typename V::F p = V::template exp2_poly<Degree>(r * kLog2e) * V::template exp2<Degree>(n);
  return V::select(x < -104.f, typename V::F{}, p);  // a NaN stays
}

// (4) in general. Masked elements are excluded before the exponential: P = -0 (so that they can be told from
// a P that is 0), dS = 0. With dropout Z: P Z goes to dV, and dP = Z (V dO). raw: dS of the final score, for
// dbias.
template <class V, class Path, int NV>
[[gnu::noinline]] static void masked_gradients(const ScoreOptions& o, const SubBlock& b,
                                               const QueryBlock<V>& q, const BackwardScratch<V>& f,
                                               const Tile& tile, bool raw) {
  using F = typename V::F;
  if (o.has_dropout) pack_keeps<V, NV>(o, b, f, tile);
  const F unit = V::set1(score_unit(o));
  for (int n = 0; n < NV; ++n) {
    const F reference = V::load(q.reference + n * V::W), delta = V::load(q.delta + n * V::W),
            normalizer = V::load(q.normalizer + n * V::W);
    for (i32 j = tile.begin; j < tile.end; ++j) {
      const i64 at = (j - tile.begin) * i64(V::kQueries) + n * V::W;
      F slope = V::set1(1.f), dp = V::load(f.ds + at);
      const F x = final_score<V>(o, b, f, tile, j, n, V::load(f.s + at), &slope);
      const typename V::I masked = x == -kInfinity;
      const F p = V::select(masked, V::set1(-0.f),
                            exact_exp<V, Path::kExpDegree>((x - reference) * unit) * normalizer);
      F dropped = p;
      if (o.has_dropout) {
        const typename V::I kept = V::load(f.keep_tile + at) != 0.f;
        dropped = V::select(kept | masked, p * o.inv_keep, F{});
        dp = V::select(kept, dp * o.inv_keep, F{});
      }
      const F ds = V::select(masked, F{}, p * (dp - delta));
      V::store(f.s + at, dropped);
      V::store(f.ds + at, raw ? ds : ds * (slope * o.scale));
    }
  }
}

// P^T and dS^T in bf16: rows as they are, and dS^T in pairs of rows.
template <class V, int NV>
[[gnu::noinline]] static void round_to_pairs(const BackwardScratch<V>& f, int queries, int keys) {
  using F = typename V::F;
  constexpr int ld = V::kQueries;
  bf16 *p_rows = reinterpret_cast<bf16*>(f.p_rows), *ds_rows = reinterpret_cast<bf16*>(f.ds_rows);
  for (int j = 0; j < keys; ++j)
    for (int n = 0; n < NV; ++n) {
      const i64 at = j * ld + n * V::W;
      const F ds = V::load(f.ds + at);
      V::narrow(p_rows + at, V::load(f.s + at));
      V::narrow(ds_rows + at, ds);
      if (j % 2)
        V::store(f.ds_pairs + j / 2 * ld + n * V::W, V::to_pairs(V::load(f.ds + at - ld), ds));
      else if (j + 1 == keys)
        V::store(f.ds_pairs + j / 2 * ld + n * V::W, V::to_pairs(ds, F{}));
    }
  if (queries % 2)  // the lane beside the last query is paired with it
    for (int j = 0; j < keys; ++j) p_rows[j * ld + queries] = ds_rows[j * ld + queries] = bf16{0};
}

// P^T and dS^T as operands of the products.
template <class Dot>
struct GradientOperands {
  Left<Dot> p_rows, ds_rows;
  const float* ds_columns;
};

template <class V, class Path, int NV>
static GradientOperands<typename Path::Dot> gradient_operands(const BackwardScratch<V>& f, int queries,
                                                              int keys) {
  constexpr int ld = V::kQueries;
  if constexpr (!Path::kPairs) {
    return {{f.s, ld}, {f.ds, ld}, f.ds};
  } else {
    round_to_pairs<V, NV>(f, queries, keys);
    return {{reinterpret_cast<const u32*>(f.p_rows), ld / 2},
            {reinterpret_cast<const u32*>(f.ds_rows), ld / 2},
            f.ds_pairs};
  }
}

// The sweep for dbias: dS of keys [begin, end) to where it is summed; steps of 0 where dbias broadcasts.
template <class V>
[[gnu::noinline]] static void add_dbias(const BackwardTask& t, const SubBlock& b, const BackwardScratch<V>& f,
                                        i32 begin, i32 end) {
  for (i32 j = begin < t.dbias_begin ? t.dbias_begin : begin; j < (end < t.dbias_end ? end : t.dbias_end);
       ++j)
    for (int i = 0; i < b.rows; ++i)
      t.dbias[i * t.dbias_i + (j - t.dbias_begin) * t.dbias_j] += f.ds[(j - begin) * i64(V::kQueries) + i];
}

}  // namespace tilewise::cpu
