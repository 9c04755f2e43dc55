// What the drivers hand to the kernels: plain data without member functions, because the kernels are compiled
// once per instruction set and share no inline code with the rest of the library. All strides count elements.
#pragma once

#include "core/dtype.h"
#include "kernels/shared/types.h"

namespace tilewise::cpu {

inline constexpr int kMaxQueries = 48;  // most queries of a sub-block, on any instruction set
inline constexpr int kMaxGroup = 48;    // most sub-blocks of a task

// A matrix of one head: rows are positions of the sequence.
struct Matrix {
  void* data;
  i64 row, column;
};

// Queries [first, first + rows) of the sequence and the keys that they see by position
// (kernels/shared/ranges.h).
struct SubBlock {
  i32 first, rows;
  i32 any_begin, any_end;                   // keys that some query sees
  i32 all_begin, all_end;                   // keys that every query sees
  i32 low[kMaxQueries], high[kMaxQueries];  // query first + i sees [low[i], high[i]); unused lanes see none
};

// What is done to the scores of one head between q . k and the softmax, and the random mask after it.
struct ScoreOptions {
  float scale;
  float softcap;  // 0 = off
  bool has_alibi, has_dropout;
  float slope;
  i32 alibi_shift;   // sk - sq
  const void* bias;  // of (sequence, head); null = none
  tw_dtype bias_dtype;
  i64 bias_i, bias_j;
  const unsigned char* mask;  // of (sequence, head); null = none
  i64 mask_i, mask_j;
  u32 dropout_k0, dropout_k1, dropout_b, dropout_h, dropout_threshold;
  float inv_keep;  // 1 / (1 - p)
};

// One forward task: a few sub-blocks of queries of one (sequence, head) against all the keys that they see.
struct ForwardTask {
  Matrix q, k, v, out;  // row 0 is the sequence's first
  float* lse;           // null = not wanted
  i64 lse_row;
  i32 D, Dv;
  i32 group;    // sub-blocks used
  bool direct;  // read fp32 K and V in place instead of packing them block by block
  SubBlock block[kMaxGroup];
  ScoreOptions score;
  bool has_sink;
  float sink;
};

// One backward task: a few sub-blocks of queries of one (sequence, head) against all the keys that they see.
struct BackwardTask {
  Matrix q, k, v, out, dout, dq;
  const float *lse, *dlse;  // dlse: null = zero
  i64 lse_row, dlse_row;
  i32 D, Dv;
  i32 group;
  SubBlock block[kMaxGroup];
  ScoreOptions score;
  bool has_sink;
  float sink;
  double* dsink;   // added to; null = not wanted
  float *dk, *dv;  // added to: fp32, one row a key, columns padded to whole vectors
  i64 dk_row, dv_row;
  // Tasks that add to the same dk and dv take turns, key block by key block. progress[0], kept by this task,
  // says which keys it is done with; progress[-1] ... progress[-before] are those of the tasks before it, and
  // wait(p, key) returns when *p is `key` at least.
  i32* progress;
  i32 before;
  void (*wait)(const i32* progress, i32 key);
  // The sweep for dbias writes none of the above: it adds dS of keys [dbias_begin, dbias_end) here. Null =
  // the others.
  float* dbias;  // (first query of the block, dbias_begin)
  i64 dbias_i, dbias_j;
  i32 dbias_begin, dbias_end;
};

// Rows of dk or dv that are the sums of some accumulators, of rows `row` floats apart.
inline constexpr int kMaxGradientParts = 16;
struct GradientRows {
  const float* sum[kMaxGradientParts];
  i32 parts;  // accumulators; none: the rows are 0
  i32 columns;
  i64 rows, row;
  Matrix to;  // row 0 is the first
};

inline constexpr int kMaxDecodeRows = 64;
inline constexpr int kMaxDecodeHeads = 8;  // key/value heads of a task

// One decode task: a chunk of keys of one (sequence, key/value head) for all queries of all query heads that
// share it. Row r is one (head, query). Scores get scale, softcap and ALiBi only.
struct DecodeTask {
  const void* q[kMaxDecodeRows];
  i64 q_column;
  Matrix k, v;     // row 0 is the sequence's first key
  i32 begin, end;  // keys of this chunk
  i32 D, Dv, rows;
  i32 low[kMaxDecodeRows], high[kMaxDecodeRows];  // row r sees [low[r], high[r])
  float scale, softcap;
  bool has_alibi;
  float slope[kMaxDecodeRows];
  i32 position[kMaxDecodeRows];  // ALiBi's distance is |position - j|
  // Partial result: sum_j exp(s_j - max) v_j [rows][Dv], max and sum_j exp(s_j - max) per row.
  float *o, *row_max, *row_sum;
};

// What a kernel's scratch memory depends on.
struct ScratchShape {
  i32 D, Dv, group;
  bool direct = false;  // the backward reads fp32 k and v where they lie
};

}  // namespace tilewise::cpu
