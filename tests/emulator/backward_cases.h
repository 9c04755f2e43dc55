// The problems that backward_test runs.
#pragma once

#include <cstddef>
#include <vector>

namespace tilewise {

struct BackwardCase {
  const char* name;
  std::size_t config;  // of kBackwardConfigs
  int B = 1, Sq = 1, Sk = 1, H = 1, Hk = 1, D = 1, Dv = 1;
  bool causal = false, top_left = false;
  long left = -1, right = -1;
  bool dlse = false, sink = false, packed = false, seqused = false, transposed = false;
  bool visible_nans = false;   // in a few elements that take part
  bool infinite_dout = false;  // the same: no dP of such a row is finite, and so no dS
  double low_bias = 0;         // of all keys of odd rows, and of the first 40 of the others
  double scale = 0;            // 0: the default
};

const std::vector<BackwardCase>& backward_cases();

}  // namespace tilewise
