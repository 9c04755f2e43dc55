// From a Problem to what the kernels read: matrices of one head, score options, sub-blocks.
#pragma once

#include "core/problem.h"
#include "cpu/task.h"

namespace tilewise::cpu {

// Rows of one head of a tensor; first: its row of the sequence's first position.
Matrix head_matrix(const View& t, i64 b, i64 first, i64 head);

ScoreOptions score_options(const Problem& p, const Sequence& s, i64 head);

// Queries [first, first + rows) under the band.
SubBlock sub_block(const Band<i32>& band, i32 first, i32 rows);

// The band of one sequence, in 32 bits (lengths stay below 2^29).
Band<i32> sequence_band(const Problem& p, const Sequence& s);

// Rows of out and lse that belong to no sequence: out = 0, lse = -inf.
void clear_unused_rows(const Problem& p, const std::vector<Sequence>& all);

}  // namespace tilewise::cpu
