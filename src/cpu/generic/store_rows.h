// Rows of dk and dv: the sums of a unit's parts, added in order and rounded once.
#pragma once

#include "cpu/generic/vec.h"
#include "cpu/task.h"

namespace tilewise::cpu {

template <class V, class T>
static void store_rows(const GradientRows& g) {
  for (i64 r = 0; r < g.rows; ++r) {
    T* to = static_cast<T*>(g.to.data) + r * g.to.row;
    for (i64 c = 0; c < g.columns; c += V::W) {
      typename V::F x = g.parts ? V::load(g.sum[0] + r * g.row + c) : typename V::F{};
      for (int n = 1; n < g.parts; ++n) x += V::load(g.sum[n] + r * g.row + c);
      if (g.to.column == 1 && c + V::W <= g.columns) {
        V::narrow(to + c, x);
      } else {
        for (i64 i = c; i < (c + V::W < g.columns ? c + V::W : g.columns); ++i)
          V::narrow1(to + i * g.to.column, x[i - c]);
      }
    }
  }
}

}  // namespace tilewise::cpu
