// Forward and backward in C++. The gradient of q is compared with a finite difference of the loss sum(out *
// dout).
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "tilewise/tilewise.hpp"

int main() try {
  constexpr int64_t B = 2, S = 96, H = 4, Hk = 2, D = 32;  // two query heads share a key/value head
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  auto draw = [&](int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& e : x) e = normal(random);
    return x;
  };
  std::vector<float> q = draw(B * S * H * D), k = draw(B * S * Hk * D), v = draw(B * S * Hk * D),
                     dout = draw(B * S * H * D);
  std::vector<float> out(q.size()), lse(B * H * S), dq(q.size()), dk(k.size()), dv(v.size());

  tw::Attention a;
  a.q = tw::tensor(q.data(), {B, S, H, D});
  a.k = tw::tensor(k.data(), {B, S, Hk, D});
  a.v = tw::tensor(v.data(), {B, S, Hk, D});
  a.out = tw::tensor(out.data(), {B, S, H, D});
  a.lse = tw::tensor(lse.data(), {B, H, S});
  a.options.causal = 1;
  tw::run(a);

  a.dout = tw::tensor(dout.data(), {B, S, H, D});
  a.dq = tw::tensor(dq.data(), {B, S, H, D});
  a.dk = tw::tensor(dk.data(), {B, S, Hk, D});
  a.dv = tw::tensor(dv.data(), {B, S, Hk, D});
  tw::run(a, TW_BACKWARD);

  auto loss = [&] {
    tw::run(a);
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += double(out[i]) * dout[i];
    return sum;
  };
  const size_t at = q.size() / 2;
  const float step = 0.03125f, here = q[at];
  q[at] = here + step;
  const double above = loss();
  q[at] = here - step;
  const double below = loss();
  const double difference = (above - below) / (2 * step);
  std::printf("dq[%zu] = %.5f, finite difference %.5f\n", at, dq[at], difference);
  return std::abs(dq[at] - difference) < 0.02 * (1 + std::abs(difference)) ? 0 : 1;
} catch (const tw::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
