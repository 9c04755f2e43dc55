#include "cpu/task_builder.h"

#include <limits>

namespace tilewise::cpu {
namespace {

// Query rows that belong to no sequence: out = 0, lse = -inf.
template <class T>
void clear_rows(const Problem& p, i64 b, i64 begin, i64 end) {
  for (i64 i = begin; i < end; ++i)
    for (i64 h = 0; h < p.H; ++h) {
      for (i64 d = 0; d < p.Dv; ++d) *p.out.at<T>(b, i, h, d) = T{};
      if (p.lse) *p.lse.at(b, h, i) = -std::numeric_limits<float>::infinity();
    }
}

}  // namespace

void clear_unused_rows(const Problem& p, const std::vector<Sequence>& all) {
  if (!p.varlen()) return;
  with_type(p.dtype, [&](auto zero) {
    using T = decltype(zero);
    i64 covered = 0;  // packed: rows before this one are done
    for (const Sequence& s : all) {
      if (p.packed) clear_rows<T>(p, 0, covered, s.q_row);
      covered = s.q_row + s.sq;
      if (!p.packed) clear_rows<T>(p, s.q_b, covered, p.Sq);
    }
    if (p.packed) clear_rows<T>(p, 0, covered, p.total_q);
  });
}

Matrix head_matrix(const View& t, i64 b, i64 first, i64 head) {
  const i64 offset = b * t.stride.b + first * t.stride.s + head * t.stride.h;
  return {t.data + offset * i64(size_of(t.dtype)), t.stride.s, t.stride.d};
}

ScoreOptions score_options(const Problem& p, const Sequence& s, i64 head) {
  ScoreOptions o{};
  o.scale = p.scale;
  o.softcap = p.softcap;
  o.has_alibi = p.has_alibi;
  if (p.has_alibi) o.slope = p.alibi[s.index * p.alibi_b + head * p.alibi_h];
  o.alibi_shift = i32(s.sk - s.sq);
  if (p.bias) {
    o.bias = p.bias.data + p.bias.index(s.index, head, 0, 0) * i64(size_of(p.bias.dtype));
    o.bias_dtype = p.bias.dtype;
    o.bias_i = p.bias.stride.i;
    o.bias_j = p.bias.stride.j;
  }
  if (p.mask) {
    o.mask = reinterpret_cast<const unsigned char*>(p.mask.data) + p.mask.index(s.index, head, 0, 0);
    o.mask_i = p.mask.stride.i;
    o.mask_j = p.mask.stride.j;
  }
  o.has_dropout = p.dropout_p > 0;
  if (o.has_dropout) {
    const DropoutKey key = dropout_stream(p);
    o.dropout_k0 = key.k0;
    o.dropout_k1 = key.k1;
    o.dropout_b = u32(s.index);
    o.dropout_h = u32(head);
    o.dropout_threshold = dropout_threshold(p.dropout_p);
    o.inv_keep = float(1 / (1 - p.dropout_p));
  }
  return o;
}

SubBlock sub_block(const Band<i32>& band, i32 first, i32 rows) {
  SubBlock b{};
  b.first = first;
  b.rows = rows;
  const Range<i32> any = band.any(first, first + rows), all = band.all(first, first + rows);
  b.any_begin = any.begin, b.any_end = any.end;
  b.all_begin = all.begin, b.all_end = all.end;
  for (i32 i = 0; i < rows; ++i) {
    const Range<i32> seen = band.row(first + i);
    b.low[i] = seen.begin, b.high[i] = seen.end;
  }
  return b;
}

Band<i32> sequence_band(const Problem& p, const Sequence& s) {
  return make_band<i32>(i32(s.sq), i32(s.sk), p.top_left, p.window_left, p.window_right, p.causal);
}

}  // namespace tilewise::cpu
