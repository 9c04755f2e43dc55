// One batch entry as the kernels see it: where its rows lie and how many count. Dense tensors, packed ones
// (cu_seqlens) and shortened ones (seqused) look alike from here on. Bad metadata never leads outside the
// tensors: offsets are clamped.
#pragma once

#include "../ptx/memory.h"
#include "../ptx/warp.h"
#include "../shared/params.h"
#include "../shared/ranges.h"

namespace tilewise {

struct SequenceView {
  i32 b;             // its number: dropout's, bias's and alibi's b
  i64 q_row, k_row;  // first row in q and out, in k and v
  i32 sq, sk;        // rows that count
};

TILEWISE_INLINE i64 load_index(const void* data, bool is_64, i64 index) {
  return is_64 ? ptx::load_global(static_cast<const i64*>(data) + index)
               : i64{ptx::load_global(static_cast<const i32*>(data) + index)};
}

TILEWISE_INLINE i64 clamp_index(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }

struct Slot {
  i64 row;
  i32 rows;
};

TILEWISE_INLINE Slot find_slot(i32 b, const void* cu, bool cu_is_64, i64 cu_stride, i64 total, i32 longest,
                               const void* used, bool used_is_64, i64 used_stride) {
  Slot s{0, longest};
  if (cu) {
    s.row = clamp_index(load_index(cu, cu_is_64, b * cu_stride), 0, total);
    const i64 end = clamp_index(load_index(cu, cu_is_64, (b + 1) * cu_stride), s.row, total);
    s.rows = i32(clamp_index(end - s.row, 0, longest));
  }
  if (used) s.rows = i32(clamp_index(load_index(used, used_is_64, b * used_stride), 0, s.rows));
  return s;
}

// The last of B > 0 sequences that begins at or before a row of a packed tensor; its first if none does.
TILEWISE_INLINE i32 sequence_at(i64 row, i32 B, const void* cu, bool cu_is_64, i64 cu_stride) {
  i32 low = 0, high = B;
  while (high - low > 1) {
    const i32 middle = (low + high) / 2;
    (load_index(cu, cu_is_64, middle * cu_stride) <= row ? low : high) = middle;
  }
  return low;
}

template <bool kVarlen>
TILEWISE_INLINE SequenceView find_sequence(const AttentionParams& p, i32 b) {
  if constexpr (!kVarlen) {
    return {b, 0, 0, p.Sq, p.Sk};
  } else {
    const Slot q = find_slot(b, p.cu_seqlens_q, p.cu_q_is_64, p.cu_q_stride, p.total_q, p.Sq, p.seqused_q,
                             p.used_q_is_64, p.used_q_stride);
    const Slot k = find_slot(b, p.cu_seqlens_k, p.cu_k_is_64, p.cu_k_stride, p.total_k, p.Sk, p.seqused_k,
                             p.used_k_is_64, p.used_k_stride);
    return {b, q.row, k.row, q.rows, k.rows};
  }
}

// The same by whole warps, which keep it in their common registers: a loop's own are short.
template <bool kVarlen>
TILEWISE_INLINE SequenceView find_sequence_of_warp(const AttentionParams& p, i32 b) {
  const SequenceView s = find_sequence<kVarlen>(p, b);
  if constexpr (!kVarlen) return s;
  const auto low = [](i64 x) { return ptx::in_warp_register(u32(x)); };
  const auto whole = [&](i64 x) {
    const u64 high = ptx::in_warp_register(u32(u64(x) >> 32));
    return i64(high << 32 | low(x));
  };
  return {b, whole(s.q_row), whole(s.k_row), i32(low(s.sq)), i32(low(s.sk))};
}

// The band of a sequence; params carry windows clamped and causal folded in.
TILEWISE_INLINE Band<i32> band_of(const AttentionParams& p, const SequenceView& s) {
  return {s.sq, s.sk, p.top_left ? 0 : s.sk - s.sq, p.window_left, p.window_right};
}

// Byte address of row 0, head h of a (b, s, h, d) tensor.
TILEWISE_INLINE const unsigned char* head_base(const void* data, const Strides& stride, i32 b, i64 row, i32 h,
                                               int element_bytes) {
  return static_cast<const unsigned char*>(data) +
         (i64{b} * stride.b + row * stride.s + i64{h} * stride.h) * element_bytes;
}

}  // namespace tilewise
