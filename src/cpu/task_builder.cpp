#include "cpu/task_builder.h"

namespace tilewise::cpu {

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
