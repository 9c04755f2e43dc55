// The tests' main: GoogleTest, plus one line for each finished test in the file that TILEWISE_TEST_LOG names
// (PASS name, FAIL name, SKIP name: reason), which tests/summary.sh counts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace {

class Log : public testing::EmptyTestEventListener {
 public:
  explicit Log(const char* path) : file_(path, std::ios::app) {}
  void OnTestEnd(const testing::TestInfo& test) override {
    const testing::TestResult& r = *test.result();
    std::string line = r.Skipped() ? "SKIP " : r.Passed() ? "PASS " : "FAIL ";
    line += std::string(test.test_suite_name()) + "." + test.name();
    if (r.Skipped() && r.total_part_count() > 0) {
      std::string reason = r.GetTestPartResult(r.total_part_count() - 1).summary();
      line +=
          ": " + reason.substr(reason.rfind("Skipped\n") == reason.npos ? 0 : reason.rfind("Skipped\n") + 8);
    }
    for (char& x : line)
      if (x == '\n') x = ' ';
    file_ << line + "\n" << std::flush;
  }

 private:
  std::ofstream file_;
};

}  // namespace

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (const char* path = std::getenv("TILEWISE_TEST_LOG"))
    testing::UnitTest::GetInstance()->listeners().Append(new Log(path));
  return RUN_ALL_TESTS();
}
