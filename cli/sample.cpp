#include "cli/sample.h"

#include <cmath>
#include <cstring>

#include "kernels/shared/ranges.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

// SplitMix64; the sum of four 16-bit uniforms is close enough to normal and costs no logarithm.
void fill_normal(HostTensor& t, uint64_t seed) {
  uint64_t state = seed * 0x9E3779B97F4A7C15u;
  with_type(t.dtype, [&](auto type) {
    using T = decltype(type);
    T* x = t.as<T>();
    for (int64_t i = 0, n = t.elements(); i < n; ++i) {
      uint64_t z = state += 0x9E3779B97F4A7C15u;
      z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
      z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
      z ^= z >> 31;
      const int sum = int(z & 0xFFFF) + int(z >> 16 & 0xFFFF) + int(z >> 32 & 0xFFFF) + int(z >> 48);
      x[i] = from_float<T>(float(sum - 131070) * (1 / 37837.2f));  // variance 4 * 65536^2 / 12
    }
  });
}

}  // namespace

Sample::Sample(const Shape& s, tw_pass pass, const tw_options& options, uint64_t seed) {
  attention = shape_only(s, pass, options, {});
  auto make = [](const char* name, tw_tensor& view, HostTensor& t) {
    t = HostTensor(name, tw_dtype(view.dtype), {view.size, view.size + view.ndim});
    std::memset(t.data.data(), 0, t.data.size());
    view.data = t.data.data();
  };
  tw_attention& a = attention;
  make("q", a.q, q);
  make("k", a.k, k);
  make("v", a.v, v);
  make("out", a.out, out);
  make("lse", a.lse, lse);
  fill_normal(q, 4 * seed);
  fill_normal(k, 4 * seed + 1);
  fill_normal(v, 4 * seed + 2);
  if (pass == TW_FORWARD) return;
  make("dout", a.dout, dout);
  make("dq", a.dq, dq);
  make("dk", a.dk, dk);
  make("dv", a.dv, dv);
  fill_normal(dout, 4 * seed + 3);
}

double visible_pairs(const Shape& s, const tw_options& o) {
  const double heads = double(s.batch) * double(s.heads), all = double(s.seqlen_q) * double(s.seqlen_k);
  const bool window = o.window_left >= 0 || o.window_right >= 0;
  if (!o.causal && !window) return heads * all;
  if (!window && s.seqlen_q == s.seqlen_k) return heads * all / 2;  // as every published figure counts
  const auto band = make_band<int64_t>(s.seqlen_q, s.seqlen_k, o.alignment == TW_TOP_LEFT, o.window_left,
                                       o.window_right, o.causal != 0);
  double pairs = 0;
  for (int64_t i = 0; i < s.seqlen_q; ++i) pairs += double(band.row(i).size());
  return heads * pairs;
}

double forward_flops(const Shape& s, const tw_options& o) {
  return 2 * visible_pairs(s, o) * double(s.dim + s.dim_v);
}

}  // namespace tilewise::cli
