// What a backend hands to the C interface: something that runs one planned problem. The problem passed to
// run() has the planned shapes, strides and options; only its data pointers may differ.
#pragma once

#include <cstddef>
#include <string>

#include "core/problem.h"

namespace tilewise {

class Execution {
 public:
  virtual ~Execution() = default;
  virtual size_t workspace() const = 0;  // bytes; a pure function of the problem
  virtual void prepare() const {}
  virtual std::string details() const { return {}; }  // lines for explain
  virtual void run(const Problem& p, void* workspace, void* stream) const = 0;
};

}  // namespace tilewise
