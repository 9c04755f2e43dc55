// peak PASS SEQLEN HEADS DIM MEGABYTES: runs a pass in fp32 and fails when the process's peak of resident
// memory exceeds what its tensors take by more than MEGABYTES. (One S x S matrix of S 16384 is 1 GB.)
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "tilewise/tilewise.hpp"

namespace {

// Small numbers, written to every page.
std::vector<float> values(int64_t n, uint32_t seed) {
  std::vector<float> x(static_cast<size_t>(n));
  for (float& e : x) e = float((seed = seed * 1664525 + 1013904223) >> 8) / float(1 << 23) - 1;
  return x;
}

int64_t resident_peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 6) return std::fprintf(stderr, "usage: peak fwd|bwd SEQLEN HEADS DIM MEGABYTES\n"), 2;
  const bool backward = std::string_view(argv[1]) == "bwd";
  const int64_t S = std::atoll(argv[2]), H = std::atoll(argv[3]), D = std::atoll(argv[4]), n = S * H * D;
  const int64_t allowed = std::atoll(argv[5]) * 1000000;
  std::vector<float> q = values(n, 1), k = values(n, 2), v = values(n, 3), out = values(n, 4),
                     lse = values(S * H, 5);
  tw::Attention a;
  a.q = tw::tensor(q.data(), {1, S, H, D});
  a.k = tw::tensor(k.data(), {1, S, H, D});
  a.v = tw::tensor(v.data(), {1, S, H, D});
  a.out = tw::tensor(out.data(), {1, S, H, D});
  a.lse = tw::tensor(lse.data(), {1, H, S});
  int64_t tensors = 4 * n + H * S;
  if (!backward) {
    tw::run(a);
  } else {  // of any forward: how much memory it takes does not depend on the numbers
    std::vector<float> dout = values(n, 6), dq = values(n, 7), dk = values(n, 8), dv = values(n, 9);
    for (float& x : lse) x = 12;
    a.dout = tw::tensor(dout.data(), {1, S, H, D});
    a.dq = tw::tensor(dq.data(), {1, S, H, D});
    a.dk = tw::tensor(dk.data(), {1, S, H, D});
    a.dv = tw::tensor(dv.data(), {1, S, H, D});
    tensors += 4 * n;
    tw::run(a, TW_BACKWARD);
  }
  const int64_t peak = resident_peak(), beside = peak - tensors * int64_t{sizeof(float)};
  std::printf("%s S %lld, H %lld, D %lld: peak %.1f MB, %.1f MB beside the tensors, allowed %.1f\n", argv[1],
              static_cast<long long>(S), static_cast<long long>(H), static_cast<long long>(D),
              double(peak) / 1e6, double(beside) / 1e6, double(allowed) / 1e6);
  return beside <= allowed ? 0 : 1;
} catch (const tw::Error& e) {
  return std::fprintf(stderr, "%s\n", e.what()), 1;
}
