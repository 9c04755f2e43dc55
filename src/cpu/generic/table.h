// The table of one instruction set's kernels.
#pragma once

#include "cpu/generic/backward.h"
#include "cpu/generic/decode.h"
#include "cpu/generic/forward.h"
#include "cpu/generic/probe.h"
#include "cpu/generic/store_rows.h"
#include "cpu/isa.h"

namespace tilewise::cpu {

template <class V>
constexpr Kernels make_table(const char* name) {
  static_assert(V::kQueries <= kMaxQueries);
  Kernels k{};
  k.name = name;
  k.queries = V::kQueries;
  k.keys = V::kKeys;
  k.width = V::W;
  k.forward[0] = forward<V, float>;
  k.forward[1] = forward<V, fp16>;
  k.forward[2] = forward<V, bf16>;
  k.forward_scratch = forward_scratch<V>;
  k.backward[0] = backward<V, float>;
  k.backward[1] = backward<V, fp16>;
  k.backward[2] = backward<V, bf16>;
  k.backward_scratch = backward_scratch<V>;
  k.store_rows[0] = store_rows<V, float>;
  k.store_rows[1] = store_rows<V, fp16>;
  k.store_rows[2] = store_rows<V, bf16>;
  k.decode[0] = decode<V, float>;
  k.decode[1] = decode<V, fp16>;
  k.decode[2] = decode<V, bf16>;
  k.decode_scratch = decode_scratch<V>;
  k.probes = make_probes<V>();
  return k;
}

}  // namespace tilewise::cpu
