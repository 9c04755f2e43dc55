// Every line of cases.txt on every algorithm that this machine can run, through the C interface.
#include <gtest/gtest.h>

#include <fstream>

#include "support/check.h"
#include "support/gpu.h"

namespace tilewise::test {
namespace {

class Conformance : public testing::Test {
 public:
  Conformance(Case c, std::string algorithm) : case_(std::move(c)), algorithm_(std::move(algorithm)) {}
  void TestBody() override {
    const Outcome o = check_case(case_, algorithm_);
    if (!o.skipped.empty()) GTEST_SKIP() << o.skipped;
    if (o.failure.empty()) return;
    if (is_gpu_algorithm(algorithm_)) FAIL() << o.failure;  // every step of shrinking would compile kernels
    const Case smallest =
        shrink(case_, [&](const Case& x) { return !check_case(x, algorithm_).failure.empty(); });
    ADD_FAILURE() << o.failure << "\nsmallest failing case: " << to_string(smallest) << "\n"
                  << check_case(smallest, algorithm_).failure;
  }

 private:
  Case case_;
  std::string algorithm_;
};

// Which line failed must be seen from the name.
std::string name_of_case(const std::string& line) {
  std::string name;
  for (char x : line) name += std::isalnum(static_cast<unsigned char>(x)) || x == '.' ? x : '_';
  return name;
}

const bool registered = [] {
  std::ifstream file(TILEWISE_CASES);
  std::string line;
  int n = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    if (TILEWISE_SANITIZED && n++ % 4) continue;
    for (const std::string& algorithm : algorithms())
      testing::RegisterTest(("Conformance/" + algorithm).c_str(), name_of_case(line).c_str(), nullptr,
                            nullptr, __FILE__, __LINE__, [line, algorithm]() -> testing::Test* {
                              return new Conformance(parse_case(line), algorithm);
                            });
  }
  return true;
}();

TEST(ConformanceList, IsNotEmpty) { EXPECT_GT(testing::UnitTest::GetInstance()->total_test_count(), 100); }

}  // namespace
}  // namespace tilewise::test
