// Which keys a query sees by position: causal and sliding-window masks as one band around the aligned
// diagonal.
//
//   query i sees keys j with   i + shift - left <= j <= i + shift + right   and 0 <= j < sk
//
// shift = sk - sq aligns the last query with the last key (bottom-right, the default), shift = 0 is top-left.
// Causal means right = min(right, 0). Every tile loop, on every backend, takes its block ranges from here:
// a block outside `any` is skipped, a block inside `all` needs no mask, the rest is masked element by
// element.
#pragma once

#include "types.h"

namespace tilewise {

// Sequence lengths stay below 2^29, so any bound of at least that size is no bound and i + shift + right fits
// in 32 bits.
inline constexpr i64 kMaxLength = i64{1} << 29;
inline constexpr i64 kUnbounded = kMaxLength;

// -1 and anything beyond the longest sequence mean "no bound on this side".
constexpr i64 clamp_window(i64 w) { return w < 0 || w > kUnbounded ? kUnbounded : w; }

template <class Int>
struct Range {  // [begin, end); empty when end <= begin
  Int begin, end;
  constexpr bool empty() const { return end <= begin; }
  constexpr Int size() const { return empty() ? Int(0) : end - begin; }
  constexpr bool contains(Int x) const { return begin <= x && x < end; }
};

template <class Int>
struct Band {
  Int sq, sk;       // this sequence's own lengths (varlen, seqused), not the padded ones
  Int shift;        // sk - sq or 0
  Int left, right;  // clamp_window()ed; right may be negative only through causal = 0

  constexpr bool unmasked() const { return left >= Int(kUnbounded) && right >= Int(kUnbounded); }

  constexpr bool sees(Int i, Int j) const { return row(i).contains(j); }

  // Keys that query i sees.
  constexpr Range<Int> row(Int i) const { return {low(i), high(i)}; }

  // Keys that at least one of the queries [i0, i1) sees (rows shift monotonically, so the union is one range
  // that covers the gap too when rows do not overlap).
  constexpr Range<Int> any(Int i0, Int i1) const { return {low(i0), high(i1 - 1)}; }

  // Keys that every one of the queries [i0, i1) sees.
  constexpr Range<Int> all(Int i0, Int i1) const { return {low(i1 - 1), high(i0)}; }

  // Queries that see at least one of the keys [j0, j1): the backward's view of the same band.
  constexpr Range<Int> queries_any(Int j0, Int j1) const {
    return {clamp(j0 - shift - right, sq), clamp(j1 - 1 - shift + left + 1, sq)};
  }

 private:
  constexpr Int low(Int i) const { return clamp(i + shift - left, sk); }
  constexpr Int high(Int i) const { return clamp(i + shift + right + 1, sk); }
  static constexpr Int clamp(Int x, Int n) { return x < 0 ? Int(0) : x > n ? n : x; }
};

template <class Int>
constexpr Band<Int> make_band(Int sq, Int sk, bool top_left, i64 left, i64 right, bool causal) {
  i64 r = clamp_window(right);
  if (causal && r > 0) r = 0;
  return {sq, sk, top_left ? Int(0) : sk - sq, Int(clamp_window(left)), Int(r)};
}

}  // namespace tilewise
