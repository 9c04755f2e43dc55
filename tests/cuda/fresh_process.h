// Runs a piece of a test in a child process with its own environment: the library finds the driver and NVRTC
// once per process.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <exception>
#include <map>
#include <string>

namespace tilewise::test {

using Environment = std::map<std::string, std::string>;  // "" unsets

struct Child {
  pid_t pid = 0;
  int pipe = -1;
};

// `body` returns a string, which the parent gets from join(); an exception's text comes as "error: ...".
template <class Body>
Child start(const Environment& environment, Body&& body) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    for (const auto& [name, value] : environment)
      value.empty() ? unsetenv(name.c_str()) : setenv(name.c_str(), value.c_str(), 1);
    std::string said;
    try {
      said = body();
    } catch (const std::exception& e) {
      said = std::string("error: ") + e.what();
    }
    for (size_t at = 0; at < said.size();) {
      const ssize_t n = write(ends[1], said.data() + at, said.size() - at);
      if (n <= 0) break;
      at += size_t(n);
    }
    _exit(0);
  }
  close(ends[1]);
  return {pid, ends[0]};
}

inline std::string join(const Child& child) {
  std::string said;
  char buffer[4096];
  for (ssize_t n; (n = read(child.pipe, buffer, sizeof buffer)) > 0;) said.append(buffer, size_t(n));
  close(child.pipe);
  int status = 0;
  waitpid(child.pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child process died, status " << status;
  return said;
}

template <class Body>
std::string in_fresh_process(const Environment& environment, Body&& body) {
  return join(start(environment, body));
}

inline testing::AssertionResult says(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "expected \"" << part << "\" in:\n" << text;
}

}  // namespace tilewise::test
