// Launch shapes of the kernels around the backward, for the host and the kernels.
#pragma once

#include "../shared/backward_layout.h"
#include "../shared/config.h"

namespace tilewise::common {

inline constexpr int kPrepareThreads = 256;
inline constexpr int kConvertThreads = 256;
inline constexpr int kSinkThreads = 256, kSinkSmemBytes = kSinkThreads / 32 * 4;

// Blocks of so many rows of a sequence, heads, sequences: one grid dimension.
constexpr int bwd_prepare_rows(const Config& c) {
  return c.element != Element::fp32 && c.dv <= 64 ? 128 : 64;
}
// Thread blocks of a multiprocessor that registers must allow: memory is what it waits for.
constexpr int bwd_prepare_residents(const Config& c) {
  if (c.element == Element::fp32 || c.dv > 256) return 1;
  return c.dv <= 128 && !c.deterministic ? 4 : 2;
}
constexpr u64 bwd_prepare_blocks(const Config& c, i64 B, i64 H, i64 Sq) {
  return tile_blocks(bwd_prepare_rows(c), Sq, H, B);
}
constexpr int bwd_convert_rows(const Config& c) { return c.d <= 64 ? 128 : c.d <= 128 ? 64 : 32; }
constexpr u64 bwd_convert_blocks(const Config& c, i64 B, i64 H, i64 Sq) {
  return tile_blocks(bwd_convert_rows(c), Sq, H, B);
}
// Blocks of a multiprocessor that registers must allow.
constexpr int bwd_convert_residents(const Config& c) { return c.varlen || c.bias ? 2 : 4; }
constexpr int bwd_convert_smem_bytes(const Config& c) {
  return bwd_convert_rows(c) * c.d * (c.element == Element::fp32 ? 4 : 2);
}
constexpr u64 reduce_sink_blocks(i64 H) { return u64(H); }

// The fp32 sums of dbias, dense in `size`, `parts` of them one after the other, on their way to the caller's
// tensor.
struct DbiasParams {
  const float* from;
  i64 parts;
  void* to;
  i32 to_element;
  i64 size[4];  // of dbias: 1 where bias broadcasts
  ScoreStrides stride;
};

constexpr u64 convert_dbias_blocks(const DbiasParams& p) {
  return u64((p.size[0] * p.size[1] * p.size[2] * p.size[3] + kConvertThreads - 1) / kConvertThreads);
}

}  // namespace tilewise::common
