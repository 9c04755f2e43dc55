// What a kernel reads at run time: one plain struct, passed by value. Strides are in elements and 64-bit.
// Dimension names as in the contract: B batch, Sq/Sk lengths, H query heads, Hk key/value heads, D and Dv
// head dims.
#pragma once

#include "types.h"

namespace tilewise {

struct Strides {  // of (b, s, h, d); b = 0 for packed tensors, whose sequences are told apart by cu_seqlens
  i64 b, s, h, d;
};

struct ScoreStrides {  // of (b, h, i, j); 0 where broadcast
  i64 b, h, i, j;
};

struct AttentionParams {
  // (B, S, H, D) or packed (T, H, D)
  const void *q, *k, *v;
  void* out;
  float* lse;  // natural log
  Strides q_stride, k_stride, v_stride, out_stride;
  i64 lse_b, lse_h, lse_s;

  i32 B, Sq, Sk;     // Sq, Sk: lengths, or the longest slot when packed
  i32 H, Hk, group;  // group = H / Hk
  i32 D, Dv;

  // varlen: B + 1 offsets (int32, or int64 when cu_is_64), optional used lengths (B)
  const void *cu_seqlens_q, *cu_seqlens_k, *seqused_q, *seqused_k;
  i32 cu_q_is_64, cu_k_is_64, used_q_is_64, used_k_is_64;
  i64 cu_q_stride, cu_k_stride, used_q_stride, used_k_stride;  // in elements, usually 1
  i64 total_q, total_k;  // rows of the packed tensors: no offset may lead beyond them

  float scale;                    // on q . k
  float softcap;                  // 0 = off
  i32 window_left, window_right;  // clamp_window()ed, causal already folded in
  i32 top_left;

  const void* bias;  // dtype: bias_element
  i32 bias_element;
  ScoreStrides bias_stride;
  const unsigned char* mask;  // 1 = visible
  ScoreStrides mask_stride;
  const float* alibi;
  i64 alibi_b, alibi_h;
  const float* sink;
  i64 sink_h;

  // dropout
  u64 seed, offset;
  const u64* philox_state;  // device memory {seed, offset}; overrides the two above when not null
  u32 dropout_threshold;
  float inv_keep;  // 1 / (1 - p)

  // backward
  const void* dout;
  const float* dlse;
  void *dq, *dk, *dv;
  Strides dout_stride, dq_stride, dk_stride, dv_stride;
  i64 dlse_b, dlse_h, dlse_s;
  float* dbias_accum;  // fp32 workspace; strides of 0 where bias broadcasts
  ScoreStrides dbias_stride;
  i64 dbias_rows, dbias_columns;  // its sizes along queries and keys
  float* dsink;
  i64 dsink_h;
  // workspace; lse_log2: natural where scores are (natural_scores()), with a bias of two sums the first
  float *dq_accum, *delta, *lse_log2, *lse_rest;
  u32* spoiled;  // workspace: not 0 when a kernel has stored a NaN or infinity in dk or dv
};

}  // namespace tilewise
