// The judge: attention written straight from the contract, one row after the other, with nothing that a fast
// kernel does. `exact` is fp64 throughout. `naive` is what a plain framework implementation does in the
// problem's own dtype (S, P, O and their gradients rounded to it, dot products accumulated in fp32); its
// error is the yardstick of accuracy.h. Host memory only.
#pragma once

#include <vector>

#include "core/problem.h"

namespace tilewise::oracle {

enum class Precision { exact, naive };

// A row of out and lse: batch entry (0 when packed), row of the tensor, query head.
struct Row {
  i64 b, s, h;
};

std::vector<Row> all_rows(const Problem& p);
std::vector<Row> some_rows(const Problem& p, size_t count, u64 seed);

struct Forward {
  std::vector<double> out;  // [row * Dv + d]
  std::vector<double> lse;  // [row]
};

// Rows that no sequence covers are 0 with an lse of -inf, like rows that see no key.
Forward forward(const Problem& p, Precision precision, const std::vector<Row>& rows);

// What out and lse hold now (lse is empty when it was not given).
Forward read_forward(const Problem& p, const std::vector<Row>& rows);

// Gradients, dense in the shapes of q, k, v, bias and sink; dbias and dsink only where the problem asks for
// them.
struct Backward {
  std::vector<double> dq, dk, dv, dbias, dsink;
};

// The size of a sum's terms, and of what each of them is a difference of: a gradient may cancel to nothing,
// its rounding errors do not.
struct Terms {
  double sum = 0, squares = 0;
  Terms& operator+=(double x) {
    sum += x < 0 ? -x : x;
    squares += x * x;
    return *this;
  }
  void operator+=(const Terms& x) { sum += x.sum, squares += x.squares; }
};

struct BackwardTerms {
  std::vector<Terms> dq, dk, dv, dbias, dsink;
};

// Computed from q, k, v, dout and dlse alone: out and lse are not read.
Backward backward(const Problem& p, Precision precision, BackwardTerms* terms = nullptr);

Backward read_backward(const Problem& p);

}  // namespace tilewise::oracle
