// Standard attention as PyTorch computes it without a fused kernel: S and P, B x H x Sq x Sk numbers of the
// tensors' type, are written to memory and read back. Three launches forward, eight backward, of the five
// kernels in unfused.cuh:
//
//   forward    S = scale Q K^T (product_nt)   P = softmax(S), lse (softmax)   O = P V (product_nn)
//   backward   S, P again (the forward's are gone: one product and one softmax more than a framework that
//   keeps P)
//              dV = P^T dO (product_tn)   dP = dO V^T (product_nt)   dS = P (dP - rowsum(P dP) + dlse)
//              (softmax_backward) dQ = scale dS K (product_nn)   dK = scale dS^T Q (product_tn)
//
// Carries causal and window masks, scale, grouped heads, any strides, dlse. Refuses: lengths (cu_seqlens,
// seqused), softcap, bias, boolean mask, ALiBi, sink, dropout. Computes every score, also the masked ones, as
// standard attention does; where a hidden NaN or infinity has reached a sum, that sum is computed again
// without it.
#pragma once

#include "../shared/backward_layout.h"
#include "../shared/config.h"
#include "../shared/params.h"
#include "../shared/ranges.h"

namespace tilewise::baseline {

struct MatrixOfHead {
  const void* data;
  i64 b, h, row, column;  // strides in elements
};

// Which terms of a sum over k take part: all, or those of a query's keys (m counts queries, k keys) or of a
// key's queries (the other way round).
enum class Terms : int { all, keys_of_query, queries_of_key };

// C[m][n] = alpha sum over k (and over `sum` heads) of A B. A is stored [m][k] (product_tn: [k][m]), B [k][n]
// (product_nt: [n][k]). The g-th term of C's head h takes A's head (h * sum + g) / a_share and B's head (h *
// sum + g) / b_share.
struct ProductParams {
  MatrixOfHead a, b, c;
  i32 m, n, k;
  i32 B, H;  // of C
  i32 sum, a_share, b_share;
  float alpha;
  Terms terms;
  Band<i32> band;
};

inline constexpr int kProductTile = 128, kProductDepth = 32, kProductThreads = 256, kSoftmaxThreads = 128;

constexpr int product_smem_bytes(const Config& c) {  // two stages of A and B; C leaves through the same space
  const int e = c.element == Element::fp32 ? 4 : 2;
  const int stages = 2 * 2 * kProductTile * kProductDepth * e, out = kProductTile * kProductTile * e;
  return stages > out ? stages : out;
}

constexpr u64 product_blocks(const ProductParams& p) {
  return u64((p.n + kProductTile - 1) / kProductTile) * tile_blocks(kProductTile, p.m, p.H, p.B);
}

// Columns of S and P in the workspace: rows start at multiples of 16 bytes.
constexpr i64 score_columns(i64 Sk) { return round_up(Sk, 8); }
constexpr i64 score_elements(i64 B, i64 H, i64 Sq, i64 Sk) { return B * H * Sq * score_columns(Sk); }

struct SoftmaxParams {
  void* scores;   // S, becomes P; backward: dP, becomes dS
  const void* p;  // backward: P
  float* lse;     // forward: or null
  i64 lse_b, lse_h, lse_s;
  const float* dlse;  // backward: or null
  i64 dlse_b, dlse_h, dlse_s;
  i32 B, H, Sq, Sk, top_left, window_left, window_right;
};

constexpr u64 softmax_blocks(const SoftmaxParams& p) { return u64(p.B) * u64(p.H) * u64(p.Sq); }
inline constexpr int kSoftmaxSmemBytes = kSoftmaxThreads / 32 * 8;

constexpr MatrixOfHead score_matrix(const void* data, const AttentionParams& p) {
  const i64 columns = score_columns(p.Sk);
  return {data, p.H * p.Sq * columns, p.Sq * columns, columns, 1};
}
constexpr Band<i32> dense_band(const AttentionParams& p) {
  return {p.Sq, p.Sk, p.top_left ? 0 : p.Sk - p.Sq, p.window_left, p.window_right};
}
constexpr MatrixOfHead head_matrix(const void* data, const Strides& s) { return {data, s.b, s.h, s.s, s.d}; }

// The launches' arguments, from the attention's and the workspace: `s` holds S, then P; `d` dP, then dS.
constexpr ProductParams scores_product(const AttentionParams& p, const void* s) {
  return {head_matrix(p.q, p.q_stride),
          head_matrix(p.k, p.k_stride),
          score_matrix(s, p),
          p.Sq,
          p.Sk,
          p.D,
          p.B,
          p.H,
          1,
          1,
          p.group,
          p.scale,
          Terms::all,
          dense_band(p)};
}
constexpr ProductParams output_product(const AttentionParams& p, const void* s) {
  return {score_matrix(s, p),
          head_matrix(p.v, p.v_stride),
          head_matrix(p.out, p.out_stride),
          p.Sq,
          p.Dv,
          p.Sk,
          p.B,
          p.H,
          1,
          1,
          p.group,
          1.0f,
          Terms::keys_of_query,
          dense_band(p)};
}
constexpr ProductParams dv_product(const AttentionParams& p, const void* s) {
  return {score_matrix(s, p),
          head_matrix(p.dout, p.dout_stride),
          head_matrix(p.dv, p.dv_stride),
          p.Sk,
          p.Dv,
          p.Sq,
          p.B,
          p.Hk,
          p.group,
          1,
          1,
          1.0f,
          Terms::queries_of_key,
          dense_band(p)};
}
constexpr ProductParams dp_product(const AttentionParams& p, const void* d) {
  return {head_matrix(p.dout, p.dout_stride),
          head_matrix(p.v, p.v_stride),
          score_matrix(d, p),
          p.Sq,
          p.Sk,
          p.Dv,
          p.B,
          p.H,
          1,
          1,
          p.group,
          1.0f,
          Terms::all,
          dense_band(p)};
}
constexpr ProductParams dq_product(const AttentionParams& p, const void* d) {
  return {score_matrix(d, p),
          head_matrix(p.k, p.k_stride),
          head_matrix(p.dq, p.dq_stride),
          p.Sq,
          p.D,
          p.Sk,
          p.B,
          p.H,
          1,
          1,
          p.group,
          p.scale,
          Terms::keys_of_query,
          dense_band(p)};
}
constexpr ProductParams dk_product(const AttentionParams& p, const void* d) {
  return {score_matrix(d, p),
          head_matrix(p.q, p.q_stride),
          head_matrix(p.dk, p.dk_stride),
          p.Sk,
          p.D,
          p.Sq,
          p.B,
          p.Hk,
          p.group,
          1,
          1,
          p.scale,
          Terms::queries_of_key,
          dense_band(p)};
}
constexpr SoftmaxParams softmax_params(const AttentionParams& p, void* scores, const void* probabilities,
                                       bool write_lse) {
  SoftmaxParams s{};
  s.scores = scores, s.p = probabilities;
  if (write_lse) s.lse = p.lse, s.lse_b = p.lse_b, s.lse_h = p.lse_h, s.lse_s = p.lse_s;
  s.dlse = p.dlse, s.dlse_b = p.dlse_b, s.dlse_h = p.dlse_h, s.dlse_s = p.dlse_s;
  s.B = p.B, s.H = p.H, s.Sq = p.Sq, s.Sk = p.Sk;
  s.top_left = p.top_left, s.window_left = p.window_left, s.window_right = p.window_right;
  return s;
}

}  // namespace tilewise::baseline
