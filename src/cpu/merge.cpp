// tw_merge: two partial results over disjoint keys become one, in fp32.
#include <cmath>
#include <limits>

#include "cpu/backend.h"

namespace tilewise::cpu {
namespace {

template <class T>
void merge_rows(const Partial& a, const Partial& b, const Partial& result, i64 B, i64 S, i64 H, i64 Dv) {
  constexpr float kEmpty = -std::numeric_limits<float>::infinity();
  for (i64 bi = 0; bi < B; ++bi)
    for (i64 s = 0; s < S; ++s)
      for (i64 h = 0; h < H; ++h) {
        const float la = *a.lse.at(bi, h, s), lb = *b.lse.at(bi, h, s);
        const T *oa = a.out.at<T>(bi, s, h), *ob = b.out.at<T>(bi, s, h);
        T* o = result.out.at<T>(bi, s, h);
        const i64 da = a.out.stride.d, db = b.out.stride.d, d_step = result.out.stride.d;
        float* lse = result.lse.at(bi, h, s);
        if (la == kEmpty || lb == kEmpty) {  // the other part, bit by bit
          const bool take_a = lb == kEmpty;
          for (i64 d = 0; d < Dv; ++d) o[d * d_step] = take_a ? oa[d * da] : ob[d * db];
          *lse = take_a ? la : lb;
          continue;
        }
        const float top = la > lb ? la : lb;
        const float wa = std::exp(la - top), wb = std::exp(lb - top), sum = wa + wb;
        for (i64 d = 0; d < Dv; ++d)
          o[d * d_step] = from_float<T>((wa * to_float(oa[d * da]) + wb * to_float(ob[d * db])) / sum);
        *lse = top + std::log(sum);
      }
}

}  // namespace

void merge(const Partial& a, const Partial& b, const Partial& result, i64 B, i64 S, i64 H, i64 Dv) {
  with_type(result.out.dtype, [&](auto t) { merge_rows<decltype(t)>(a, b, result, B, S, H, Dv); });
}

}  // namespace tilewise::cpu
