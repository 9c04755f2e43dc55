// The dropout that a forward drew, as three integers that travel from it to its backward.
#include <bit>

#include "core/error.h"
#include "core/problem.h"

namespace tilewise {
namespace {

struct Drawn {
  u64 seed, offset;
  double p;
};

Drawn drawn(const Problem& p) {
  return p.philox_state ? Drawn{p.philox_state[0], p.philox_state[1], p.dropout_p}
                        : Drawn{p.seed, p.offset, p.dropout_p};
}

}  // namespace

void record_rng_state(const Problem& p) {
  if (!p.has_rng_state) return;
  const Drawn d = drawn(p);
  p.rng_state[0] = i64(d.seed);
  p.rng_state[p.rng_state_step] = i64(d.offset);
  p.rng_state[2 * p.rng_state_step] = std::bit_cast<i64>(d.p);
}

void check_rng_state(const Problem& p) {
  if (!p.has_rng_state) return;
  const Drawn now = drawn(p), then = {u64(p.rng_state[0]), u64(p.rng_state[p.rng_state_step]),
                                      std::bit_cast<double>(p.rng_state[2 * p.rng_state_step])};
  const bool same_stream = now.seed == then.seed && now.offset == then.offset;
  if (now.p == then.p && (same_stream || now.p == 0)) return;
  invalid("rng_state: the forward dropped with seed ", then.seed, ", offset ", then.offset, ", dropout_p ",
          then.p, "; this backward says seed ", now.seed, ", offset ", now.offset, ", dropout_p ", now.p,
          "; pass the forward's three values");
}

}  // namespace tilewise
