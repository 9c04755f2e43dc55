// The kernels of standard attention (unfused.h): a tiled tensor-core product in three storage orders, softmax
// over rows of S, and its derivative. The product: 128 x 128 of C a block, 8 warps of 64 x 32, operands by
// cp.async in two stages of depth 32.
#pragma once

#include "../ptx/barrier.h"
#include "../ptx/math.h"
#include "../ptx/warp.h"
#include "../shared/ranges.h"
#include "../tile/element.h"
#include "../tile/rows.h"
#include "unfused.h"

namespace tilewise::baseline {

// `across`: stored with depth in its rows, [depth][tile], else [tile][depth].
template <Element E, bool across>
struct ProductOperand {
  using Tile =
      tile::SmemTile<E, across ? kProductDepth : kProductTile, across ? kProductTile : kProductDepth>;
  static constexpr int kElement = tile::element_bytes(E);

  // Rows `first`.. of the product and depths k.. of head h; beyond `extent` and `depth` zeros.
  static TILEWISE_INLINE void load(u32 to, const MatrixOfHead& m, i64 b, i64 h, i32 first, i32 k, i32 extent,
                                   i32 depth, int thread) {
    const i32 row = across ? k : first, column = across ? first : k;
    const void* start = static_cast<const char*>(m.data) + column * m.column * kElement;
    const tile::Rows rows =
        tile::rows(start, kElement, {m.b, m.row, m.h, m.column}, b, 0, h, (across ? extent : depth) - column);
    tile::load_rows<kProductThreads, true>(Tile{to}, rows, row, across ? depth : extent, thread);
  }
};

// One element of C again, from the terms that take part: 0 times what the others hold may be a NaN.
template <Config C, bool a_across, bool b_across>
TILEWISE_INLINE float product_again(const ProductParams& p, i32 b, i32 h, i32 m, i32 n) {
  const Range<i32> terms = p.terms == Terms::keys_of_query ? p.band.row(m) : p.band.queries_any(m, m + 1);
  const auto element = [&](const MatrixOfHead& x, i32 head, i32 row, i32 column) {
    return tile::load_float<C.element>(x.data, b * x.b + head * x.h + row * x.row + column * x.column);
  };
  float sum = 0.0f;
#pragma unroll 1
  for (i32 head = h * p.sum; head < (h + 1) * p.sum; ++head)
#pragma unroll 1
    for (i32 k = terms.begin; k < terms.end; ++k)
      sum = ptx::fma(element(p.a, head / p.a_share, a_across ? k : m, a_across ? m : k),
                     element(p.b, head / p.b_share, b_across ? k : n, b_across ? n : k), sum);
  return sum * p.alpha;
}

template <Config C, bool a_across, bool b_across>
TILEWISE_INLINE void product(const ProductParams& p) {
  using M = tile::Mma<C.element>;
  using A = ProductOperand<C.element, a_across>;
  using B = ProductOperand<C.element, b_across>;
  const int thread = int(ptx::thread_index()), lane = thread % 32;
  const int warp = int(ptx::shfl_idx(thread / 32, 0)), row = warp % 2 * 64, column = warp / 2 * 32;
  const u32 base = ptx::shared_address(ptx::dynamic_shared());
  const auto a_smem = [&](int stage) {
    return typename A::Tile{base + u32(stage * (A::Tile::kBytes + B::Tile::kBytes))};
  };
  const auto b_smem = [&](int stage) { return typename B::Tile{a_smem(stage).base + A::Tile::kBytes}; };

  const u64 column_tiles = u64((p.n + kProductTile - 1) / kProductTile), block = ptx::block_number();
  const TileWork work = tile_work(block / column_tiles, kProductTile, p.m, p.H, p.B);
  if (work.none) return;
  const i32 m0 = work.first, n0 = i32(block % column_tiles) * kProductTile;
  const i32 depths = (p.k + kProductDepth - 1) / kProductDepth, steps = depths * p.sum;
  const auto load = [&](i32 step, int stage) {
    const i32 head = work.h * p.sum + step / depths, k = step % depths * kProductDepth;
    A::load(a_smem(stage).base, p.a, work.b, head / p.a_share, m0, k, p.m, p.k, thread);
    B::load(b_smem(stage).base, p.b, work.b, head / p.b_share, n0, k, p.n, p.k, thread);
    ptx::cp_async_commit();
  };

  float acc[4][4][4];
  tile::clear(acc);
  if (steps > 0) load(0, 0);
#pragma unroll 1
  for (i32 step = 0; step < steps; ++step) {
    const int stage = step & 1;
    ptx::cp_async_wait<0>();
    ptx::sync_threads();
    if (step + 1 < steps) load(step + 1, stage ^ 1);
    tile::multiply_add<M, kProductDepth>(
        acc,
        [&](int mt, int k) {
          if constexpr (a_across)
            return M::a_across(a_smem(stage), lane, row + mt * 16, k);
          else
            return M::a_along(a_smem(stage), lane, row + mt * 16, k);
        },
        [&](int nt, int k) {
          if constexpr (b_across)
            return M::b_across(b_smem(stage), lane, column + nt * 16, k);
          else
            return M::b_along(b_smem(stage), lane, column + nt * 16, k);
        });
  }
  ptx::cp_async_wait<0>();
  ptx::sync_threads();
  const tile::SmemTile<C.element, kProductTile, kProductTile> c_smem{base};
  tile::for_blocks<4, 4>([&](int mt, int nt) {
    const int r = row + mt * 16 + lane / 4, c = column + nt * 8 + 2 * (lane % 4);
    M::store_pair(c_smem, r, c, acc[mt][nt][0] * p.alpha, acc[mt][nt][1] * p.alpha);
    M::store_pair(c_smem, r + 8, c, acc[mt][nt][2] * p.alpha, acc[mt][nt][3] * p.alpha);
  });
  if (p.terms != Terms::all) {
    bool odd = false;
    tile::for_blocks<4, 4>([&](int mt, int nt) {
      for (float x : acc[mt][nt]) odd |= x - x != 0.0f;
    });
    if (ptx::vote_any(odd)) {
      ptx::sync_warp();
#pragma unroll 1
      for (int pair = lane; pair < 64 * 16; pair += 32) {
        const int r = row + pair / 16, c = column + pair % 16 * 2;
        float x[2];
        M::load_pair(x, c_smem, r, c);
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (x[e] - x[e] != 0.0f && m0 + r < p.m && n0 + c + e < p.n)
            x[e] = product_again<C, a_across, b_across>(p, work.b, work.h, m0 + r, n0 + c + e);
        M::store_pair(c_smem, r, c, x[0], x[1]);
      }
    }
  }
  ptx::sync_threads();
  constexpr int kElement = tile::element_bytes(C.element);
  const void* start = static_cast<const char*>(p.c.data) + n0 * p.c.column * kElement;
  const Strides to{p.c.b, p.c.row, p.c.h, p.c.column};
  tile::store_rows<kProductThreads>(tile::rows(start, kElement, to, work.b, 0, work.h, p.n - n0), c_smem, m0,
                                    p.m, thread);
}

template <Config C>
TILEWISE_KERNEL(kProductThreads, 1)
product_nt(const TILEWISE_GRID_CONSTANT ProductParams p) {
  product<C, false, false>(p);
}

template <Config C>
TILEWISE_KERNEL(kProductThreads, 1)
product_nn(const TILEWISE_GRID_CONSTANT ProductParams p) {
  product<C, false, true>(p);
}

template <Config C>
TILEWISE_KERNEL(kProductThreads, 1)
product_tn(const TILEWISE_GRID_CONSTANT ProductParams p) {
  product<C, true, true>(p);
}

struct ScoreRow {
  i64 at;  // first element of the row in the workspace
  i32 b, h, i;
  Range<i32> keys;
};

TILEWISE_INLINE ScoreRow score_row(const SoftmaxParams& p) {
  const u64 row = ptx::block_number();
  ScoreRow r;
  r.at = i64(row) * score_columns(p.Sk);
  r.i = i32(row % u64(p.Sq));
  r.h = i32(row / u64(p.Sq) % u64(p.H));
  r.b = i32(row / u64(p.Sq) / u64(p.H));
  const Band<i32> band{p.Sq, p.Sk, p.top_left ? 0 : p.Sk - p.Sq, p.window_left, p.window_right};
  r.keys = band.row(r.i);
  return r;
}

// The sum over the block of x, the largest of y.
TILEWISE_INLINE void reduce_row(float& x, float& y, int thread) {
  const u32 shared = ptx::shared_address(ptx::dynamic_shared());
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2)
    x += ptx::shfl_xor(x, mask), y = ptx::max(y, ptx::shfl_xor(y, mask));
  if (thread % 32 == 0)
    ptx::st_shared_v2(shared + u32(thread / 32 * 8), {{ptx::bits_of(x), ptx::bits_of(y)}});
  ptx::sync_threads();
  x = 0.0f, y = -__builtin_bit_cast(float, 0x7F800000u);
#pragma unroll
  for (int warp = 0; warp < kSoftmaxThreads / 32; ++warp) {
    const ptx::Vec2 w = ptx::ld_shared_v2(shared + u32(warp * 8));
    x += ptx::float_of(w.w[0]), y = ptx::max(y, ptx::float_of(w.w[1]));
  }
  ptx::sync_threads();
}

// P = softmax(S) over the visible keys, 0 elsewhere, in place; lse. A block a row.
template <Config C>
TILEWISE_KERNEL(kSoftmaxThreads, 1)
softmax(const TILEWISE_GRID_CONSTANT SoftmaxParams p) {
  constexpr float kLog2OfE = 1.44269504088896341f, kLnOf2 = 0.693147180559945309f;
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
  if (ptx::block_number() >= softmax_blocks(p)) return;
  const int thread = int(ptx::thread_index());
  const ScoreRow row = score_row(p);
  float none = 0.0f, largest = -kInfinity, sum = 0.0f;
  for (i32 j = row.keys.begin + thread; j < row.keys.end; j += kSoftmaxThreads)
    largest = ptx::max(largest, tile::load_float<C.element>(p.scores, row.at + j));
  reduce_row(none, largest, thread);
  const float from = largest == -kInfinity ? 0.0f : largest;
  for (i32 j = row.keys.begin + thread; j < row.keys.end; j += kSoftmaxThreads)
    sum += ptx::ex2((tile::load_float<C.element>(p.scores, row.at + j) - from) * kLog2OfE);
  reduce_row(sum, none, thread);
  const float inverse = sum == 0.0f ? 0.0f : ptx::div(1.0f, sum);
  for (i32 j = thread; j < p.Sk; j += kSoftmaxThreads) {
    float x = 0.0f;
    if (row.keys.contains(j))
      x = ptx::ex2((tile::load_float<C.element>(p.scores, row.at + j) - from) * kLog2OfE) * inverse;
    tile::store_float<C.element>(p.scores, row.at + j, x);
  }
  if (p.lse && thread == 0)
    ptx::store_global(p.lse + row.b * p.lse_b + row.h * p.lse_h + row.i * p.lse_s,
                      sum == 0.0f ? -kInfinity : largest + ptx::lg2(sum) * kLnOf2);
}

// dS = P (dP - rowsum(P dP) + dlse), in place of dP.
template <Config C>
TILEWISE_KERNEL(kSoftmaxThreads, 1)
softmax_backward(const TILEWISE_GRID_CONSTANT SoftmaxParams p) {
  if (ptx::block_number() >= softmax_blocks(p)) return;
  const int thread = int(ptx::thread_index());
  const ScoreRow row = score_row(p);
  float delta = 0.0f, none = 0.0f;
  for (i32 j = row.keys.begin + thread; j < row.keys.end; j += kSoftmaxThreads)
    delta = ptx::fma(tile::load_float<C.element>(p.p, row.at + j),
                     tile::load_float<C.element>(p.scores, row.at + j), delta);
  reduce_row(delta, none, thread);
  if (p.dlse && !row.keys.empty())
    delta -= ptx::load_global(p.dlse + row.b * p.dlse_b + row.h * p.dlse_h + row.i * p.dlse_s);
  for (i32 j = thread; j < p.Sk; j += kSoftmaxThreads) {
    float x = 0.0f;
    if (row.keys.contains(j))
      x = tile::load_float<C.element>(p.p, row.at + j) *
          (tile::load_float<C.element>(p.scores, row.at + j) - delta);
    tile::store_float<C.element>(p.scores, row.at + j, x);
  }
}

}  // namespace tilewise::baseline
