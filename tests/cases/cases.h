// Shared by the tests of publicly reported faults (each named Cnn after its report): every algorithm, judged
// by the oracle.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "core/error.h"
#include "support/check.h"
#include "support/gpu.h"

namespace tilewise::test {

// Judges problems on every algorithm; skips the test where none has the feature.
class Cases : public testing::Test {
 protected:
  // Judges one line on every algorithm.
  void expect(const std::string& line) {
    const Case c = parse_case(line);
    for (const std::string& algorithm : algorithms()) judge(line, algorithm, check_case(c, algorithm));
  }
  // Builds the problem anew for each algorithm, lets `change` prepare it, and judges it.
  void expect(const std::string& line, const std::function<void(Attention&)>& change) {
    for (const std::string& algorithm : algorithms()) {
      Attention x(parse_case(line));
      change(x);
      judge(line, algorithm, check_attention(x, algorithm));
    }
  }
  void expect(const std::string& line, const std::vector<Length>& lengths,
              const std::function<void(Attention&)>& change) {
    for (const std::string& algorithm : algorithms()) {
      Attention x(parse_case(line), lengths);
      change(x);
      judge(line, algorithm, check_attention(x, algorithm));
    }
  }
  // Runs without judging; false when skipped or failed.
  bool run(Attention& x, tw_pass pass, const std::string& algorithm) {
    const tw_status status = x.run(pass, algorithm);
    const std::string sentence = tw_last_error();
    if (status == TW_UNSUPPORTED && is_gpu_algorithm(algorithm)) {
      skipped_ = sentence;
      return false;
    }
    EXPECT_EQ(status, TW_OK) << sentence;
    EXPECT_EQ(x.damage, "");
    judged_ += status == TW_OK;
    return status == TW_OK;
  }
  void judge(const std::string& line, const std::string& algorithm, const Outcome& o) {
    if (!o.skipped.empty()) skipped_ = o.skipped;
    judged_ += o.skipped.empty();
    EXPECT_EQ(o.failure, "") << line << " on " << algorithm;
  }
  void TearDown() override {
    if (judged_ == 0 && !skipped_.empty() && !HasFailure()) GTEST_SKIP() << skipped_;
  }

 private:
  std::string skipped_;  // why some algorithm did not run
  int judged_ = 0;       // runs of those that did
};

// Both passes of a line: "fp32 PASS B=1 ..." with PASS replaced.
inline std::vector<std::string> both_passes(const std::string& line) {
  std::vector<std::string> lines;
  for (const char* pass : {"fwd", "bwd"}) {
    std::string x = line;
    lines.push_back(x.replace(x.find("PASS"), 4, pass));
  }
  return lines;
}

inline void no_change(Attention&) {}

}  // namespace tilewise::test
