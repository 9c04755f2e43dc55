// Between S^T = K Q^T and the softmax: units, softcap, ALiBi, bias, masks; and dropout after it.
#pragma once

#include "cpu/generic/pack.h"
#include "cpu/generic/philox.h"
#include "cpu/task.h"

namespace tilewise::cpu {

static constexpr float kInfinity = __builtin_inff();
static constexpr float kLog2e = 1.44269504088896340736f;

// Softcap, ALiBi and bias act on scaled scores; without them the scale is part of the exponent's factor.
TILEWISE_INLINE bool modifies(const ScoreOptions& o) { return o.softcap != 0 || o.has_alibi || o.bias; }

// What one unit of a stored score is worth. Q was multiplied by the scale's sign, so it is positive (for a
// scale of 0 any value does: the scores are 0).
TILEWISE_INLINE float score_unit(const ScoreOptions& o) {
  const float magnitude = o.scale < 0 ? -o.scale : o.scale;
  return modifies(o) || magnitude == 0 ? 1.f : magnitude;
}

enum class MaskCount { none, some, all };

// The boolean mask of the sub-block's queries and keys [begin, end), as mask_tile [keys][queries] of 0 and 1.
template <class V>
[[gnu::noinline]] static MaskCount pack_mask(float* tile, const ScoreOptions& o, const SubBlock& b, i32 begin,
                                             i32 end) {
  bool some = false, all = true;
  for (i32 j = begin; j < end; ++j) {
    float* row = tile + (j - begin) * i64(V::kQueries);
    const unsigned char* m = o.mask + j * o.mask_j;
    for (int i = 0; i < b.rows; ++i) {
      const bool seen = m[(b.first + i) * o.mask_i] != 0;
      row[i] = seen ? 1.f : 0.f;
      some |= seen;
      all &= seen;
    }
    for (int i = b.rows; i < V::kQueries; ++i) row[i] = 0;
  }
  return !some ? MaskCount::none : all ? MaskCount::all : MaskCount::some;
}

// The bias of the same tile, widened; lanes without a query get 0.
template <class V>
static void pack_bias(float* tile, const ScoreOptions& o, const SubBlock& b, i32 begin, i32 end) {
  const i64 offset = b.first * o.bias_i + begin * o.bias_j;
  const int lanes = (b.rows + V::W - 1) / V::W * V::W;
  switch (o.bias_dtype) {
    case TW_FP16:
      return pack_transposed<V>(tile, V::kQueries, static_cast<const fp16*>(o.bias) + offset, o.bias_i,
                                o.bias_j, b.rows, end - begin, lanes, 1.f);
    case TW_BF16:
      return pack_transposed<V>(tile, V::kQueries, static_cast<const bf16*>(o.bias) + offset, o.bias_i,
                                o.bias_j, b.rows, end - begin, lanes, 1.f);
    default:
      return pack_transposed<V>(tile, V::kQueries, static_cast<const float*>(o.bias) + offset, o.bias_i,
                                o.bias_j, b.rows, end - begin, lanes, 1.f);
  }
}

// Which of vector n's queries see key j. mask_tile starts at key `begin`; null: no boolean mask.
template <class V>
TILEWISE_INLINE typename V::I visible(const SubBlock& b, const float* mask_tile, i32 begin, i32 j, int n) {
  const typename V::I low = V::template load<typename V::I>(b.low + n * V::W),
                      high = V::template load<typename V::I>(b.high + n * V::W);
  const typename V::I seen = (low <= j) & (high > j);
  if (!mask_tile) return seen;
  return seen & (V::load(mask_tile + (j - begin) * i64(V::kQueries) + n * V::W) != 0.f);
}

// (3) of the forward: scores of keys [begin, end) from raw q . k to what the softmax sees, masked ones to
// -inf, and their running maximum. `edge`: positions or the boolean mask hide some of the tile.
template <class V, int NV>
[[gnu::noinline]] static void modify_scores(const ScoreOptions& o, const SubBlock& b, float* s, i32 begin,
                                            i32 end, bool edge, const float* bias_tile,
                                            const float* mask_tile, float* running_max) {
  constexpr int ld = V::kQueries;
  const bool modified = modifies(o);
  const float scale = o.scale < 0 ? -o.scale : o.scale;
  for (int n = 0; n < NV; ++n) {
    const typename V::I position = V::lane_numbers() + (b.first + n * V::W + o.alibi_shift);
    typename V::F m = V::load(running_max + n * V::W);
    for (i32 j = begin; j < end; ++j) {
      float* at = s + (j - begin) * ld + n * V::W;
      typename V::F x = V::load(at);
      if (modified) x = x * scale;
      if (o.softcap != 0) x = V::tanh(x / o.softcap) * o.softcap;
      if (o.bias) x = x + V::load(bias_tile + (j - begin) * ld + n * V::W);
      if (o.has_alibi) {
        const typename V::I distance = position - j;
        x = x - V::to_float(distance < 0 ? -distance : distance) * o.slope;
      }
      if (edge) x = V::select(visible<V>(b, mask_tile, begin, j, n), x, V::set1(-kInfinity));
      m = V::max(x, m);
      V::store(at, x);
    }
    V::store(running_max + n * V::W, m);
  }
}

// Dropout: probabilities that the random mask drops become 0 (1 / (1 - p) is applied with 1 / l).
template <class V, class Path, int NV>
[[gnu::noinline]] static void drop(const ScoreOptions& o, const SubBlock& b, float* s, i32 begin, i32 end) {
  constexpr int ld = V::kQueries;
  for (int n = 0; n < NV; ++n)
    for (i32 j = begin & ~1; j < end; j += 2) {
      typename V::I keep[2];
      dropout_keeps<V>(o, b.first + n * V::W, j, keep);
      if constexpr (Path::kStep == 1) {
        for (int odd = 0; odd < 2; ++odd) {
          if (j + odd < begin || j + odd >= end) continue;
          float* at = s + (j + odd - begin) * ld + n * V::W;
          V::store(at, V::select(keep[odd], V::load(at), typename V::F{}));
        }
      } else {  // begin is even
        float* at = s + (j - begin) / 2 * ld + n * V::W;
        const typename V::I pair = V::template load<typename V::I>(at);
        V::store(at, pair & ((keep[0] & 0xFFFF) | (keep[1] & i32(0xFFFF0000))));
      }
    }
}

}  // namespace tilewise::cpu
