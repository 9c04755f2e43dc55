// FlashAttention 1 forward (Dao et al. 2022, Algorithm 1; sizes and limits in fa1.h). One thread block owns a
// head of a sequence. For each key block K_j, V_j it walks over the query blocks Q_i, whose output O_i, row
// sums l_i and row maxima m_i it reads from and writes to global memory every time. The warps split the keys
// of a block: each computes S and a partial P V over its own, and they agree on row maxima, row sums and O_i
// through shared memory, with a barrier each time.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/math.h"
#include "../ptx/warp.h"
#include "../tile/element.h"
#include "../tile/rows.h"
#include "../tile/sequence.h"
#include "fa1.h"

namespace tilewise::baseline {

TILEWISE_INLINE bool is_finite(float x) { return x - x == 0.0f; }

// Scores stay q . k, or its negative under a negative scale, until their maximum is subtracted: of large ones
// that difference is exact, while each times the scale would be rounded.
struct ScoreScale {
  float sign, size;
  TILEWISE_INLINE explicit ScoreScale(float scale) : sign(scale < 0.0f ? -1.0f : 1.0f), size(scale * sign) {}
  // exp of the size times a difference; never 0 times the -inf of a hidden score.
  TILEWISE_INLINE float power(float x) const {
    constexpr float kLog2OfE = 1.44269504088896341f, kLeast = 1.17549435e-38f;
    return ptx::ex2(x * ptx::max(size * kLog2OfE, kLeast));
  }
};

// An output element again, before its division, from the keys that its row sees and no others. For rows of
// finite l whose O is not finite: P V has multiplied a NaN or infinity in the V of a key that other rows see
// by a P of 0.
template <Config C>
TILEWISE_INLINE float fa1_output_again(const AttentionParams& p, const Band<i32>& band, i32 b, i32 h, i32 i,
                                       i32 column, float row_max) {
  const ScoreScale scale(p.scale);
  const auto at = [&](const Strides& t, i32 row, i32 head) { return b * t.b + row * t.s + head * t.h; };
  const i64 q = at(p.q_stride, i, h);
  const Range<i32> keys = band.row(i);
  float o = 0.0f;
#pragma unroll 1
  for (i32 j = keys.begin; j < keys.end; ++j) {
    const i64 k = at(p.k_stride, j, h / p.group), v = at(p.v_stride, j, h / p.group);
    float s = 0.0f;
#pragma unroll 1
    for (i32 d = 0; d < p.D; ++d)
      s = ptx::fma(tile::load_float<C.element>(p.q, q + d * p.q_stride.d),
                   tile::load_float<C.element>(p.k, k + d * p.k_stride.d), s);
    o = ptx::fma(scale.power(s * scale.sign - row_max),
                 tile::load_float<C.element>(p.v, v + column * p.v_stride.d), o);
  }
  return o;
}

template <Config C>
TILEWISE_KERNEL(fa1_threads(C), 1)
fa1_forward(const TILEWISE_GRID_CONSTANT AttentionParams p) {
  using M = tile::Mma<C.element>;
  using KTile = tile::SmemTile<C.element, C.Bc, C.d>;
  using VTile = tile::SmemTile<C.element, C.Bc, C.dv>;
  using QTile = tile::SmemTile<C.element, kFa1Rows, C.d>;
  constexpr int kThreads = fa1_threads(C), kKeys = C.Bc / C.warps, NT = kKeys / 8;
  constexpr float kLnOf2 = 0.693147180559945309f;
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
  const int thread = int(ptx::thread_index());
  const int warp = int(ptx::shfl_idx(u32(thread / 32), 0));
  const tile::Lane lane = tile::lane_of(thread);

  const KTile k_smem{ptx::shared_address(ptx::dynamic_shared())};
  const VTile v_smem{k_smem.base + KTile::kBytes};
  const QTile q_smem{v_smem.base + VTile::kBytes};
  const u32 part_smem = q_smem.base + QTile::kBytes;  // [warp][row][column]
  const u32 max_smem = part_smem + C.warps * kFa1Rows * C.dv * 4,
            sum_smem = max_smem + C.warps * kFa1Rows * 4;
  const auto part_at = [&](int w, int row, int column) {
    return part_smem + u32(((w * kFa1Rows + row) * C.dv + column) * 4);
  };

  const u64 block = ptx::block_number();
  if (block >= fa1_forward_blocks(p.B, p.H)) return;
  const i32 h = i32(block % u64(p.H)), b = i32(block / u64(p.H));
  const SequenceView seq = find_sequence<false>(p, b);
  const Band<i32> band = band_of(p, seq);
  const ScoreScale scale(p.scale);

  const i64 rows = i64(p.B) * p.H * p.Sq, row0 = (i64(b) * p.H + h) * p.Sq;
  float* const o_rows = p.dq_accum + row0 * C.dv;
  float* const l_rows = p.dq_accum + rows * C.dv + row0;
  float* const m_rows = l_rows + rows;  // before the scale
  for (i64 x = thread; x < i64(p.Sq) * C.dv; x += kThreads) ptx::store_global(o_rows + x, 0.0f);
  for (i32 i = thread; i < p.Sq; i += kThreads)
    ptx::store_global(l_rows + i, 0.0f), ptx::store_global(m_rows + i, -kInfinity);

  const tile::Rows k = tile::rows(p.k, 2, p.k_stride, b, 0, h / p.group, p.D);
  const tile::Rows v = tile::rows(p.v, 2, p.v_stride, b, 0, h / p.group, p.Dv);
  const tile::Rows q = tile::rows(p.q, 2, p.q_stride, b, 0, h, p.D);
  const Range<i32> keys = band.any(0, p.Sq);  // the others are never read: a NaN in V times a P of 0 is a NaN
#pragma unroll 1
  for (i32 j0 = keys.begin; j0 < keys.end; j0 += C.Bc) {
    const i32 j1 = j0 + C.Bc < keys.end ? j0 + C.Bc : keys.end;
    const Range<i32> queries = band.queries_any(j0, j1);
    ptx::sync_threads();
    tile::load_rows<kThreads, true>(k_smem, k, j0, keys.end, thread);
    tile::load_rows<kThreads, true>(v_smem, v, j0, keys.end, thread);
#pragma unroll 1
    for (i32 i0 = queries.begin / kFa1Rows * kFa1Rows; i0 < queries.end; i0 += kFa1Rows) {
      tile::load_rows<kThreads, true>(q_smem, q, i0, p.Sq, thread);
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
      ptx::sync_threads();

      // S = Q_i K_w^T over this warp's keys, before the scale   [16, Bc / warps]
      float s_frag[1][NT][4];
      tile::clear(s_frag);
      tile::multiply_add<M, C.d>(
          s_frag, [&](int, int depth) { return M::a_along(q_smem, lane.lane, 0, depth); },
          [&](int nt, int depth) { return M::b_along(k_smem, lane.lane, warp * kKeys + nt * 16, depth); });
      float row_max[2] = {-kInfinity, -kInfinity};
      const auto row_of = [&](int half) { return lane.g + half * 8; };
#pragma unroll
      for (int nt = 0; nt < NT; ++nt)
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const i32 i = i0 + row_of(r >> 1), j = j0 + warp * kKeys + nt * 8 + 2 * lane.q + (r & 1);
          float& s = s_frag[0][nt][r];
          s = i < p.Sq && band.sees(i, j) ? s * scale.sign : -kInfinity;
          row_max[r >> 1] = ptx::max(row_max[r >> 1], s);
        }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int mask = 1; mask <= 2; mask *= 2)
          row_max[half] = ptx::max(row_max[half], ptx::shfl_xor(row_max[half], mask));
        if (lane.q == 0)
          ptx::st_shared(max_smem + u32((warp * kFa1Rows + row_of(half)) * 4), ptx::bits_of(row_max[half]));
      }
      ptx::sync_threads();

      // m_new = max(m_i, the warps' maxima); P = exp(scale (S - m_new)); this warp's row sums
      const auto new_max = [&](int row) {
        float m = i0 + row < p.Sq ? ptx::load_global(m_rows + i0 + row) : -kInfinity;
#pragma unroll
        for (int w = 0; w < C.warps; ++w)
          m = ptx::max(m, ptx::float_of(ptx::ld_shared(max_smem + u32((w * kFa1Rows + row) * 4))));
        return m;
      };
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float m = new_max(row_of(half)), from = m == -kInfinity ? 0.0f : m;
        float sum = 0.0f;
#pragma unroll
        for (int nt = 0; nt < NT; ++nt)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            float& s = s_frag[0][nt][half * 2 + e];
            s = scale.power(s - from);
            sum += s;
          }
#pragma unroll
        for (int mask = 1; mask <= 2; mask *= 2) sum += ptx::shfl_xor(sum, mask);
        if (lane.q == 0)
          ptx::st_shared(sum_smem + u32((warp * kFa1Rows + row_of(half)) * 4), ptx::bits_of(sum));
      }

      // This warp's part of P V   [16, dv]
      float o_frag[1][C.dv / 8][4];
      tile::clear(o_frag);
      tile::multiply_add<M, kKeys>(
          o_frag, [&](int, int depth) { return M::a_of_row(s_frag[0], depth); },
          [&](int nt, int depth) { return M::b_across(v_smem, lane.lane, nt * 16, warp * kKeys + depth); });
#pragma unroll
      for (int nt = 0; nt < C.dv / 8; ++nt)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          ptx::st_shared_v2(
              part_at(warp, row_of(half), nt * 8 + 2 * lane.q),
              {{ptx::bits_of(o_frag[0][nt][half * 2]), ptx::bits_of(o_frag[0][nt][half * 2 + 1])}});
      ptx::sync_threads();

      // O_i = (l_i exp(scale (m_i - m_new)) O_i + the parts) / l_new. l is 0 where no key has been visible; m
      // says less, since scores that are NaN leave it at -inf.
      const auto new_sum = [&](int row, float m, float& kept) {
        const float old = ptx::load_global(m_rows + i0 + row);
        kept = ptx::load_global(l_rows + i0 + row) * scale.power(old - (m == -kInfinity ? 0.0f : m));
        float sum = kept;
#pragma unroll
        for (int w = 0; w < C.warps; ++w)
          sum += ptx::float_of(ptx::ld_shared(sum_smem + u32((w * kFa1Rows + row) * 4)));
        return sum;
      };
      for (int x = thread; x < kFa1Rows * C.dv; x += kThreads) {
        const int row = x / C.dv, column = x % C.dv;
        if (i0 + row >= p.Sq) break;
        float kept;
        const float sum = new_sum(row, new_max(row), kept);
        if (sum == 0.0f) continue;
        float* at = o_rows + i64(i0 + row) * C.dv + column;
        float o = kept * ptx::load_global(at);
#pragma unroll
        for (int w = 0; w < C.warps; ++w) o += ptx::float_of(ptx::ld_shared(part_at(w, row, column)));
        ptx::store_global(at, ptx::div(o, sum));
      }
      float m = -kInfinity, sum = 0.0f, kept;
      const bool owner = thread < kFa1Rows && i0 + thread < p.Sq;
      if (owner) m = new_max(thread), sum = new_sum(thread, m, kept);
      ptx::sync_threads();  // every thread has read the old m_i and l_i
      if (owner) ptx::store_global(m_rows + i0 + thread, m), ptx::store_global(l_rows + i0 + thread, sum);
      ptx::sync_threads();
    }
    ptx::cp_async_wait<0>();
  }

  ptx::sync_threads();
  for (i64 x = thread; x < i64(p.Sq) * p.Dv; x += kThreads) {
    const i64 i = x / p.Dv, column = x % p.Dv;
    const Strides& t = p.out_stride;
    const float l = ptx::load_global(l_rows + i);
    float o = ptx::load_global(o_rows + i * C.dv + column);
    if (!is_finite(o) && is_finite(l))
      o = ptx::div(fa1_output_again<C>(p, band, b, h, i32(i), i32(column), ptx::load_global(m_rows + i)), l);
    tile::store_float<C.element>(p.out, b * t.b + i * t.s + h * t.h + column * t.d, o);
  }
  if (p.lse)
    for (i32 i = thread; i < p.Sq; i += kThreads) {
      const float m = ptx::load_global(m_rows + i), l = ptx::load_global(l_rows + i);
      ptx::store_global(p.lse + b * p.lse_b + h * p.lse_h + i * p.lse_s,
                        l == 0.0f ? -kInfinity : ptx::fma(m, scale.size, ptx::lg2(l) * kLnOf2));
    }
}

}  // namespace tilewise::baseline
