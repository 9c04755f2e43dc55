// Sequences of different lengths, packed end to end without padding. One of them is empty.
#include <cstdio>
#include <vector>

#include "tilewise/tilewise.hpp"

int main() try {
  constexpr int64_t T = 60, H = 2, D = 16, B = 3;
  const std::vector<int32_t> offsets = {0, 25, 25, 60};  // lengths 25, 0 and 35
  std::vector<float> q(T * H * D, 0.5f), k(T * H * D, 0.25f), v(T * H * D), out(v.size());
  for (size_t i = 0; i < v.size(); ++i) v[i] = i < size_t(25 * H * D) ? 1.0f : 2.0f;

  tw::Attention a;
  a.q = tw::tensor(q.data(), {T, H, D});
  a.k = tw::tensor(k.data(), {T, H, D});
  a.v = tw::tensor(v.data(), {T, H, D});
  a.out = tw::tensor(out.data(), {T, H, D});
  a.cu_seqlens_q = a.cu_seqlens_k = tw::tensor(offsets.data(), {B + 1});
  const tw::Plan plan(a);
  std::fputs(plan.explain().c_str(), stdout);
  tw::Workspace workspace;
  plan.execute(a, workspace);

  std::printf("the first sequence averages to %g, the last to %g\n", double(out.front()), double(out.back()));
  return out.front() == 1.0f && out.back() == 2.0f ? 0 : 1;
} catch (const tw::Error& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
