// The inner loops of the unfused baseline, in the best instruction set here. Row-major with free row strides.
#pragma once

#include <cstdint>

namespace tilewise::cli {

// C[m, n] = scale * sum_k A[m, k] B[k, n], added to C when `add`.
struct Product {
  int64_t rows, columns, depth;
  const float* a;
  int64_t a_row;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  float scale;
  bool add;
};
void multiply(const Product& p);

// p[0 .. n) = softmax of the first `visible` elements of s, 0 for the rest. Nothing visible: all 0.
void softmax_row(const float* s, float* p, int64_t n, int64_t visible);

}  // namespace tilewise::cli
