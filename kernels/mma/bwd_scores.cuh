// What lies between q . k and the probabilities, for the backward: scores of S^T fragments (rows = keys,
// columns = queries), the derivative of the softcap, visibility and dropout as one bit per
// element of a fragment.
#pragma once

#include "../ptx/math.h"
#include "../ptx/warp.h"
#include "../shared/backward_layout.h"
#include "../shared/philox.h"
#include "../tile/exponential.h"
#include "../tile/fragment.h"
#include "../tile/operand.h"
#include "../tile/sequence.h"
#include "../tile/softcap.h"

namespace tilewise::mma {

inline constexpr float kLog2e = 1.44269504088896341f;

// A mask hides pairs whose products are computed all the same, by 0, and 0 * NaN is NaN: where the block that
// owns a gradient finds a NaN in it, bwd_repair.cuh has a look.
TILEWISE_INLINE void note_spoiled(const AttentionParams& p, bool nan) {
  if (nan && p.spoiled) ptx::store_global(p.spoiled, 1u);
}

// One bit per accumulator element, in the order of the array.
template <int MT, int NT>
struct Bits {
  static constexpr int kWords = (MT * NT * 4 + 31) / 32;
  u32 word[kWords];
  static constexpr int position(int mt, int nt, int r) { return (mt * NT + nt) * 4 + r; }
  TILEWISE_INLINE void fill(u32 x) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = x;
  }
  TILEWISE_INLINE void set(int mt, int nt, int r, bool on) {
    const int at = position(mt, nt, r);
    word[at / 32] |= u32(on) << (at % 32);
  }
  // From here on one register for 32 elements, not what each bit came from.
  TILEWISE_INLINE void settle() {
#pragma unroll
    for (int i = 0; i < kWords; ++i) word[i] = ptx::opaque(word[i]);
  }
  TILEWISE_INLINE bool get(int mt, int nt, int r) const {
    const int at = position(mt, nt, r);
    return (word[at / 32] >> (at % 32)) & 1u;
  }
};

// The scores of one query head of one sequence.
template <Config C>
struct Scores {
  static constexpr bool kPlain = !C.softcap && !C.alibi && !C.bias;  // the score is scale * q . k
  // The same numbers as the forward's (tile/score.h): its lse is a sum of these.
  static constexpr bool kPrecise = C.element == Element::fp32, kExact = natural_scores(C);
  static constexpr float kUnit = kExact ? 1.0f : kLog2e;

  const AttentionParams& p;
  Band<i32> band;
  i32 b, h;
  i64 statistics0;   // bias: where the sequence's rows of a head start in the workspace
  float scale_log2;  // of q . k to log2 units; softcap: to the tanh's argument; other scores: to kUnit
  float slope;
  DropoutKey key;

  TILEWISE_INLINE Scores(const AttentionParams& params, const Band<i32>& its_band, const SequenceView& seq)
      : p(params),
        band(its_band),
        b(seq.b),
        h(0),
        statistics0(C.bias ? workspace_row(params.cu_seqlens_q != nullptr, seq.b, params.Sq, seq.q_row) : 0),
        scale_log2(C.softcap ? params.scale / params.softcap : params.scale * (kPlain ? kLog2e : kUnit)),
        slope(0.0f),
        key{0, 0} {
    if constexpr (C.dropout) {
      const u64 seed = p.philox_state ? ptx::load_global(p.philox_state) : p.seed;
      const u64 offset = p.philox_state ? ptx::load_global(p.philox_state + 1) : p.offset;
      key = dropout_key(seed, offset);
    }
  }

  TILEWISE_INLINE void select_head(i32 head) {
    h = head;
    if constexpr (C.alibi) slope = ptx::load_global(p.alibi + b * p.alibi_b + h * p.alibi_h);
  }

  // What follows from the sequence, the head and dropout's key is computed anew from here on, not kept from
  // before: a loop's registers are short.
  TILEWISE_INLINE void forget() {
    b = i32(ptx::opaque(u32(b))), h = i32(ptx::opaque(u32(h)));
    band.shift = i32(ptx::opaque(u32(band.shift)));
    if constexpr (C.dropout) key = {ptx::opaque(key.k0), ptx::opaque(key.k1)};
  }

  // Are all scores of queries [i0, i0 + rows) and keys [j0, j0 + columns) there and visible?
  TILEWISE_INLINE bool complete(i32 i0, i32 rows, i32 j0, i32 columns) const {
    if (C.boolean_mask || i0 + rows > band.sq || j0 + columns > band.sk) return false;
    if constexpr (!C.masked) return true;
    const Range<i32> all = band.all(i0, i0 + rows);
    return all.begin <= j0 && j0 + columns <= all.end;
  }

  // Keys that query i sees by position; none when there is no such query.
  TILEWISE_INLINE Range<i32> keys(i32 i) const {
    if (i >= band.sq) return {0, 0};
    return C.masked ? band.row(i) : Range<i32>{0, band.sk};
  }

  TILEWISE_INLINE bool unhidden(i32 i, i32 j) const {
    if constexpr (!C.boolean_mask) return true;
    const ScoreStrides& s = p.mask_stride;
    return ptx::load_global(p.mask + (b * s.b + h * s.h + i * s.i + j * s.j)) != 0;
  }

  // Which elements of a fragment take part whose first one of this lane is (key j, query i).
  template <int MT, int NT>
  TILEWISE_INLINE void look(Bits<MT, NT>& seen, i32 i, i32 j) const {
    seen.fill(0);
#pragma unroll(C.boolean_mask ? 2 : NT)  // loads in flight take registers
    for (int n = 0; n < NT; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const i32 query = i + n * 8 + e;
        const Range<i32> keys_seen = keys(query);
        const u32 count = u32(keys_seen.size());
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const i32 column = j + mt * 16 + half * 8;
            bool on = u32(column - keys_seen.begin) < count;
            if (C.boolean_mask && on) on = unhidden(query, column);
            seen.set(mt, n, half * 2 + e, on);
          }
      }
    seen.settle();
  }

  // Zeros what takes no part, an infinity or a NaN too, of column blocks nt.. of such a fragment.
  template <int kBlocks, int MT, int NT>
  static TILEWISE_INLINE void hide(float (&x)[MT][NT][4], int nt, const Bits<MT, NT>& seen) {
#pragma unroll
    for (int n = nt; n < nt + kBlocks; ++n)
#pragma unroll
      for (int mt = 0; mt < MT; ++mt)
#pragma unroll
        for (int r = 0; r < 4; ++r)
          if (!seen.get(mt, n, r)) x[mt][n][r] = 0.0f;
  }

  // The same by the band alone, looked up on the way.
  template <int kBlocks, int MT, int NT>
  TILEWISE_INLINE void hide(float (&x)[MT][NT][4], int nt, i32 i, i32 j) const {
#pragma unroll
    for (int n = nt; n < nt + kBlocks; ++n)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const i32 query = i + n * 8 + e;
        const Range<i32> seen = keys(query);
        const u32 count = u32(seen.size());
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const i32 column = j + mt * 16 + half * 8;
            if (u32(column - seen.begin) >= count) x[mt][n][half * 2 + e] = 0.0f;
          }
      }
  }

  // The same for a fragment with queries in its rows and keys in its columns.
  template <int NT>
  TILEWISE_INLINE void hide_row(float (&x)[NT][4], i32 i, i32 j) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const i32 query = i + half * 8;
      const Range<i32> seen = keys(query);
      const u32 count = u32(seen.size());
#pragma unroll
      for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const i32 column = j + nt * 8 + e;
          bool on = u32(column - seen.begin) < count;
          if (C.boolean_mask && on) on = unhidden(query, column);
          if (!on) x[nt][half * 2 + e] = 0.0f;
        }
    }
  }

  // P of a score, and d score / d (scale q . k). Rows and keys past the end read the bias of the last one.
  // lse: in log2 units, or natural where scores are; a bias may be so large that an lse has a rest
  // (bwd_statistics.cuh).
  TILEWISE_INLINE float probability(float qk, i32 i, i32 j, float lse, float& derivative) const {
    const float s = value(qk, i, j, derivative);
    if constexpr (kExact) {
      float below = kPlain ? ptx::fma(s, p.scale, -lse) : s - lse;
      if constexpr (C.bias)
        below -= ptx::load_global(p.lse_rest + (h * workspace_rows(p) + statistics0 + last_row(i)));
      return kPrecise ? exp_of(below) : ptx::ex2(below * kLog2e);
    }
    return ptx::ex2(kPlain ? ptx::fma(s, scale_log2, -lse) : s - lse);
  }

  TILEWISE_INLINE i32 last_row(i32 i) const { return i < band.sq ? i : band.sq - 1; }

  // The score: raw, or times kUnit.
  TILEWISE_INLINE float value(float qk, i32 i, i32 j, float& derivative) const {
    derivative = 1.0f;
    if constexpr (kPlain) return qk;
    float s = qk * scale_log2;
    if constexpr (C.softcap) {
      const Capped t = softcapped<kPrecise>(p.softcap * kUnit, s);
      s = t.value, derivative = t.slope;
    }
    if constexpr (C.bias) {
      const ScoreStrides& t = p.bias_stride;
      const i32 row = last_row(i), column = j < band.sk ? j : band.sk - 1;
      s += load_element(p.bias, b * t.b + h * t.h + row * t.i + column * t.j, Element(p.bias_element));
    }
    if constexpr (C.alibi) {
      const float distance = float(i + band.sk - band.sq - j);
      s = ptx::fma(-slope * kUnit, distance < 0 ? -distance : distance, s);
    }
    return s;
  }

  TILEWISE_INLINE void add_dbias(i64 i, i64 j, float ds) const {
    const ScoreStrides& t = p.dbias_stride;
    if (i < band.sq && j < band.sk && ds != 0.0f)
      ptx::red_add(p.dbias_accum + (b * t.b + h * t.h + i * t.i + j * t.j), ds);
  }

  // Which elements of an S^T fragment dropout keeps; its rows start at key j0, its columns at query i0, both
  // multiples of 16. Four elements share one Philox call: rows of lanes g and g ^ 1, columns of blocks nt and
  // nt ^ 1. A lane computes the call of one of its two rows (g if g is even, g + 8 if odd) and swaps words
  // with the lane that holds the other half.
  template <int MT, int NT>
  TILEWISE_INLINE void kept(Bits<MT, NT>& keep, i32 i0, i32 j0, const tile::Lane& lane) const {
    const u32 odd = lane.g & 1;
    const DropoutKey anew{ptx::opaque(key.k0),
                          ptx::opaque(key.k1)};  // ten rounds' keys are no loop's to keep
    keep.fill(0);
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
      for (int nt = 0; nt < NT; nt += 2)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const u32 i = i0 + nt * 8 + 2 * lane.q + e, j = j0 + mt * 16 + lane.g + 8 * odd;
          const PhiloxWords x = dropout_words(anew, b, h, i, j);
          const u32 mine[2] = {odd ? x.w[1] : x.w[0], odd ? x.w[3] : x.w[2]};
          const u32 given[2] = {odd ? x.w[0] : x.w[1], odd ? x.w[2] : x.w[3]};
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const u32 taken = ptx::bits_of(ptx::shfl_xor(ptx::float_of(given[half]), 4));
            // mine belongs to row g + 8 odd, taken to the other row
            keep.set(mt, nt + half, e, (odd ? taken : mine[half]) >= p.dropout_threshold);
            keep.set(mt, nt + half, e + 2, (odd ? mine[half] : taken) >= p.dropout_threshold);
          }
        }
    keep.settle();
  }
};

}  // namespace tilewise::mma
