// A random legal problem on every instruction set, each judged by the oracle.
#include <cstdio>
#include <cstdlib>

#include "fuzz/reader.h"
#include "support/check.h"

namespace {

tilewise::test::Case decode(tilewise::fuzz::Reader& in) {
  tilewise::test::Case c;
  static const char* const kAxes[] = {"", "bhij", "11ij", "b11j", "h11", "ij", "j", "1"};
  c.dtype = tw_dtype(1 + in.upto(2));
  c.backward = in.chance(2);
  c.B = in.upto(3), c.Sq = in.upto(80), c.Sk = in.upto(150), c.Hk = in.upto(2), c.H = c.Hk * (1 + in.upto(2));
  c.D = 1 + in.upto(80), c.Dv = 1 + in.upto(80);
  c.causal = in.chance(3), c.top_left = in.chance(3);
  if (in.chance(3)) c.left = in.upto(40) - 1;
  if (in.chance(3)) c.right = in.upto(40) - 1;
  if (in.chance(3)) c.softcap = 0.5 + in.byte() / 8.0;
  c.alibi = int(in.chance(3) ? in.upto(2) : 0);
  c.bias = kAxes[in.upto(7)], c.mask = kAxes[in.upto(7)];
  c.sink = in.chance(3);
  if (in.chance(3)) c.dropout = in.byte() / 256.0;
  c.varlen = in.chance(3), c.used_q = in.chance(3), c.used_k = in.chance(3);
  c.layout = "ct2pnokem"[in.upto(8)];
  c.dlse = in.chance(2);
  c.threads = int(in.upto(3));
  c.seed = in.raw<uint16_t>();
  return c;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tilewise::fuzz::Reader in(data, size);
  const tilewise::test::Case c = decode(in);
  for (const std::string& algorithm : tilewise::test::algorithms()) {
    const tilewise::test::Outcome o = tilewise::test::check_case(c, algorithm);
    if (o.failure.empty()) continue;
    std::fprintf(stderr, "%s on %s: %s\n", to_string(c).c_str(), algorithm.c_str(), o.failure.c_str());
    std::abort();
  }
  return 0;
}
