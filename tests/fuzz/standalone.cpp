// Feeds a fuzz target without libFuzzer: the corpus, then seeded random inputs and mutations of the corpus,
// for a number of seconds. With a sanitizer any fault ends the process; the input that did it is printed
// first.
//
//   fuzz_NAME [-max_total_time=SECONDS] [-seed=N] [CORPUS...]
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace {

std::vector<uint8_t> input;

void print_input() {
  std::fputs("input:", stderr);
  for (uint8_t byte : input) std::fprintf(stderr, " %02x", byte);
  std::fputs("\n", stderr);
}

void on_signal(int signal) {
  print_input();
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

int main(int argc, char** argv) {
  double seconds = 10;
  uint64_t seed = 1;
  std::vector<std::vector<uint8_t>> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.rfind("-max_total_time=", 0) == 0)
      seconds = std::stod(word.substr(16));
    else if (word.rfind("-seed=", 0) == 0)
      seed = std::stoull(word.substr(6));
    else if (word[0] != '-' && std::filesystem::is_directory(word))
      for (const auto& entry : std::filesystem::directory_iterator(word)) {
        std::ifstream file(entry.path(), std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
  }
  if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(print_input);
  for (int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, on_signal);

  for (const auto& x : corpus) LLVMFuzzerTestOneInput((input = x).data(), input.size());
  std::mt19937_64 random(seed);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  size_t runs = corpus.size();
  for (; std::chrono::steady_clock::now() < end; ++runs) {
    if (!corpus.empty() && random() % 2) {  // a mutation
      input = corpus[random() % corpus.size()];
      for (uint64_t n = 1 + random() % 6; n > 0 && !input.empty(); --n)
        input[random() % input.size()] = uint8_t(random());
      if (random() % 4 == 0) input.resize(random() % (input.size() + 1));
    } else {
      input.resize(random() % 400);
      for (uint8_t& byte : input) byte = uint8_t(random());
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs in %g s\n", runs, seconds);
  return 0;
}
