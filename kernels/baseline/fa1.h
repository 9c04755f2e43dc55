// FlashAttention 1 as published in 2022 (fa1_fwd.cuh, fa1_bwd.cuh): sizes and launches, for the host and the
// kernels. One thread block a head of a sequence; key blocks in the outer loop, query blocks of 16 rows in
// the inner one, O (dQ in the backward) carried through global memory in between; the warps split the keys
// and add up through shared memory ("split-K"). Carries causal and window masks, scale, grouped heads, any
// strides, dlse. Refuses: lengths (cu_seqlens, seqused), softcap, bias, boolean mask, ALiBi, sink, dropout,
// fp32, head dims above 128. Grouped heads in the backward: a block a key/value head.
#pragma once

#include "../shared/backward_layout.h"
#include "../shared/config.h"
#include "../shared/params.h"

namespace tilewise::baseline {

inline constexpr int kFa1Rows = 16;

// The tile of a configuration whose element, kernel and dims (32, 64, 96 or 128) are set.
constexpr void choose_fa1_tiles(Config& c) {
  const bool narrow = c.d <= 64 && c.dv <= 64;
  c.family = Family::fa1;
  c.Br = kFa1Rows, c.stages = 1, c.min_blocks = 1;
  if (c.kernel == Kernel::forward)
    c.Bc = narrow ? 256 : 128, c.warps = 4;
  else
    c.Bc = 128, c.warps = 8;
}

constexpr int fa1_threads(const Config& c) { return c.warps * 32; }

// K, V, Q; of each warp a partial output, row maxima and row sums.
constexpr int fa1_forward_smem_bytes(const Config& c) {
  return (c.Bc + kFa1Rows) * c.d * 2 + c.Bc * c.dv * 2 + c.warps * kFa1Rows * (c.dv * 4 + 8);
}
// K, V, Q, dO, dS; of each warp a partial dQ and a word that tells of NaNs.
constexpr int fa1_backward_smem_bytes(const Config& c) {
  return (c.Bc + kFa1Rows) * (c.d + c.dv) * 2 + c.Bc * 32 * 2 + c.warps * (kFa1Rows * c.d * 4 + 4);
}

constexpr u64 fa1_forward_blocks(i64 B, i64 H) { return u64(B) * u64(H); }
constexpr u64 fa1_backward_blocks(i64 B, i64 Hk) { return u64(B) * u64(Hk); }

// Workspace in fp32 elements, passed as dq_accum. Forward: O, then l and m of every row; backward: dQ (beside
// the delta and lse_log2 of bwd_prepare, which runs first with deterministic set).
constexpr i64 fa1_forward_workspace(const Config& c, i64 B, i64 H, i64 Sq) { return B * H * Sq * (c.dv + 2); }
constexpr i64 fa1_backward_workspace(const Config& c, i64 B, i64 H, i64 Sq) { return B * H * Sq * c.d; }

}  // namespace tilewise::baseline
