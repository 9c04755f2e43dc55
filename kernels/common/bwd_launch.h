// Launch shapes of the kernels around the backward, for the host and the kernels.
#pragma once

#include "../shared/backward_layout.h"

namespace tilewise::common {

inline constexpr int kPrepareThreads = 256, kPrepareRows = 64;
inline constexpr int kConvertThreads = 256, kConvertRows = 64;
inline constexpr int kSinkThreads = 256, kSinkSmemBytes = kSinkThreads / 32 * 4;

// Blocks of so many rows of a sequence, heads, sequences: one grid dimension.
constexpr u64 bwd_prepare_blocks(i64 B, i64 H, i64 Sq) { return tile_blocks(kPrepareRows, Sq, H, B); }
constexpr u64 bwd_convert_blocks(i64 B, i64 H, i64 Sq) { return tile_blocks(kConvertRows, Sq, H, B); }
constexpr u64 reduce_sink_blocks(i64 H) { return u64(H); }

}  // namespace tilewise::common
