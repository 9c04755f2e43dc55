// From q . k to the softmax's argument, as the contract orders it: scale, softcap, bias, ALiBi, mask.
// Family-neutral: it acts on an accumulator fragment (fragment.h) given the sequence positions of the lane's
// first row and first column.
//
// Scores leave in log2 units (times log2 e), so that the softmax is exp2. Without softcap, bias and ALiBi
// they stay raw and the multiplier turns them into log2 units inside the softmax's one FMA. Not so for fp32,
// and where there is a bias (-1e30 and the lowest number of the dtype are numbers like others): the rounding
// of a large score times log2 e would show, so scores stay in natural units and only their differences are
// multiplied. A masked score is -inf whatever was there before, a NaN too.
#pragma once

#include "../ptx/math.h"
#include "../ptx/special.h"
#include "../shared/philox.h"
#include "fragment.h"
#include "sequence.h"
#include "softcap.h"

namespace tilewise {

inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
TILEWISE_INLINE float infinity() { return ptx::float_of(0x7F800000u); }

// The functor's parts, switched by the Config.
template <class S>
concept ScoreFunctor = requires(const S s, float (&tile)[2][4], float x, i32 i, i32 j) {
  {S::kRaw};                             // scores keep their units; multiply by s.multiplier
  {s.multiplier};                        // to log2 units
  {s.template apply<true>(tile, i, j)};  // a fragment whose first element of this lane is (i, j)
  {s.value(x, i, j)};                    // one score, unmasked
  {s.visible(i, j)};                     // the mask alone
};

template <Config c>
struct Scores {
  static constexpr bool kRaw = !(c.softcap || c.alibi || c.bias);
  static constexpr bool kPrecise = c.element == Element::fp32;
  static constexpr bool kExact = kPrecise || c.bias;     // differences of scores are taken, then multiplied
  static constexpr float kUnit = kExact ? 1.f : kLog2e;  // of scores that are not raw

  Band<i32> band;
  float multiplier;  // scores to log2 units: positive (see query_sign)
  float natural;     // and to what exp takes
  float scale;       // not raw: of q . k; with softcap: scale / cap
  float cap;         // these two times kUnit
  float slope;
  i32 alibi_shift;
  const void* bias;
  Element bias_element;
  i64 bias_i, bias_j;
  const unsigned char* mask;
  i64 mask_i, mask_j;

  TILEWISE_INLINE Scores(const AttentionParams& p, const SequenceView& s, i32 h) : band(band_of(p, s)) {
    const float magnitude = p.scale < 0 ? -p.scale : p.scale == 0 ? 1.f : p.scale;
    multiplier = kRaw ? magnitude * kLog2e : kExact ? kLog2e : 1.f;
    natural = kRaw ? magnitude : kExact ? 1.f : kLn2;
    if constexpr (!kRaw) scale = c.softcap ? p.scale / p.softcap : p.scale * kUnit;
    if constexpr (c.softcap) cap = p.softcap * kUnit;
    if constexpr (c.alibi) {
      slope = ptx::load_global(p.alibi + i64{s.b} * p.alibi_b + i64{h} * p.alibi_h) * kUnit;
      alibi_shift = s.sk - s.sq;
    }
    if constexpr (c.bias) {
      bias_element = Element(p.bias_element);
      const i64 start = i64{s.b} * p.bias_stride.b + i64{h} * p.bias_stride.h;
      bias = static_cast<const unsigned char*>(p.bias) + start * bytes_of(bias_element);
      bias_i = p.bias_stride.i, bias_j = p.bias_stride.j;
    }
    if constexpr (c.boolean_mask) {
      mask = p.mask + i64{s.b} * p.mask_stride.b + i64{h} * p.mask_stride.h;
      mask_i = p.mask_stride.i, mask_j = p.mask_stride.j;
    }
  }

  TILEWISE_INLINE float value(float s, i32 i, i32 j) const {
    if constexpr (kRaw) return s;
    float x = s * scale;
    if constexpr (c.softcap) x = softcapped<kPrecise>(cap, x).value;
    if constexpr (c.bias) x += load_element(bias, i * bias_i + j * bias_j, bias_element);
    if constexpr (c.alibi) {
      const float distance = float(i + alibi_shift - j);
      x = ptx::fma(-slope, distance < 0 ? -distance : distance, x);
    }
    return x;
  }

  TILEWISE_INLINE bool unhidden(i32 i, i32 j) const {  // by the boolean mask
    if constexpr (c.boolean_mask) return ptx::load_global(mask + i * mask_i + j * mask_j) != 0;
    return true;
  }

  TILEWISE_INLINE bool visible(i32 i, i32 j) const { return band.sees(i, j) && unhidden(i, j); }

  // kMasked: some of the tile's elements are outside the band or the sequence. Rows beyond the sequence are
  // computed from its last row and thrown away by the caller.
  template <bool kMasked, int n>
  TILEWISE_INLINE void apply(float (&s)[n][4], i32 i, i32 j) const {
    if constexpr (kRaw && !kMasked && !c.boolean_mask) return;
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      const i32 row = min_of(i + 4 * r, band.sq - 1);
      const Range<i32> keys = band.row(row);
#pragma unroll
      for (int x = 0; x < n; ++x) {
#pragma unroll
        for (int y = 0; y < 2; ++y) {
          const i32 column = j + 8 * x + y;
          const i32 inside = kMasked && (c.bias || c.boolean_mask) ? min_of(column, band.sk - 1) : column;
          float& score = s[x][r + y];
          score = value(score, row, inside);
          const bool in_band = !kMasked || u32(column - keys.begin) < u32(keys.end - keys.begin);
          if (!(in_band && unhidden(row, inside))) score = -infinity();
        }
      }
    }
  }

 private:
  static TILEWISE_INLINE i32 min_of(i32 a, i32 b) { return a < b ? a : b; }
};

// Raw scores need a positive multiplier (-inf must stay -inf): a scale of 0 or below goes into Q.
template <Config c>
TILEWISE_INLINE float query_sign(const AttentionParams& p) {
  if (!Scores<c>::kRaw || p.scale > 0) return 1.f;
  return p.scale < 0 ? -1.f : p.scale == 0 ? 0.f : 1.f;
}

// Dropout of one fragment of probabilities; the kept ones are scaled once, by inv_keep, in the epilogue.
struct Dropout {
  DropoutKey key;
  u32 threshold, b, h;

  TILEWISE_INLINE Dropout(const AttentionParams& p, i32 sequence, i32 head)
      : key(dropout_key(p.philox_state ? ptx::load_global(p.philox_state) : p.seed,
                        p.philox_state ? ptx::load_global(p.philox_state + 1) : p.offset)),
        threshold(p.dropout_threshold),
        b(u32(sequence)),
        h(u32(head)) {}

  // The same, of which nothing is kept that follows from it: ten rounds' keys are no loop's to hold.
  TILEWISE_INLINE Dropout anew() const {
    Dropout x = *this;
    x.key = {ptx::opaque(key.k0), ptx::opaque(key.k1)}, x.b = ptx::opaque(b), x.h = ptx::opaque(h);
    return x;
  }

  template <int n>
  TILEWISE_INLINE void apply(float (&probability)[n][4], i32 i, i32 j) const {
#pragma unroll
    for (int x = 0; x < n; ++x) {
      const PhiloxWords bits = dropout_words(key, b, h, u32(i), u32(j + 8 * x));
#pragma unroll
      for (int r = 0; r < 4; ++r)
        if (bits.w[r] < threshold) probability[x][r] = 0.f;
    }
  }

  TILEWISE_INLINE bool keeps(i32 i, i32 j) const {
    return dropout_bits(key, b, h, u32(i), u32(j)) >= threshold;
  }
};

}  // namespace tilewise
