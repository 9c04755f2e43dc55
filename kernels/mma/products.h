// The two products of attention for one warp that owns kTiles 16-row tiles of queries:
//   S = Q K^T    Q from shared memory or, read once, from registers; K [keys][d] as it lies
//   O += P V     P from the S accumulators, V [keys][dv] as it lies
// 16-bit: mma m16n8k16, operands by ldmatrix. fp32: three TF32 products (big x big + the two cross terms) of
// m16n8k8; the order of k inside an instruction is free, so a lane takes neighbours (2q, 2q + 1) where the
// instruction says (q, q + 4): 8-byte loads, and P needs no exchange. Tensor cores truncate when they add, so
// fp32 chains are short and added up by FADD.
#pragma once

#include "../ptx/ldmatrix.h"
#include "../tile/smem_tile.h"
#include "../tile/tf32.h"

namespace tilewise::mma {

// few_addresses: fp32 columns of V are told apart by constants where that saves registers (operand.h).
template <Element e, int d, int dv, int Br, int Bc, int tiles, bool query_in_registers,
          bool few_addresses = false>
struct Products {
  static constexpr int kTiles = tiles;
  using Q = SmemTile<e, Br, d, Access::matrix>;
  using K = SmemTile<e, Bc, d, Access::matrix>;
  using V = SmemTile<e, Bc, dv, Access::matrix>;
  using N = Number<e>;
  static constexpr int kQuerySteps = query_in_registers ? d / 16 : 1;

  u32 q_frag[tiles][kQuerySteps][4];
  u32 q_address, k_offset, v_offset;  // this lane's row of the first operand matrix

  TILEWISE_INLINE void begin(u32 q_smem, int first_row) {
    const u32 lane = ptx::thread_index() % 32;
    q_address = q_smem + Q::offset(u32(first_row) + lane % 16, lane / 16);
    k_offset = K::offset(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    v_offset = V::offset(lane % 16, lane / 16);
  }

  // Q has arrived.
  TILEWISE_INLINE void read_query() {
    if constexpr (query_in_registers) {
#pragma unroll
      for (int k = 0; k < d / 16; ++k)
#pragma unroll
        for (int m = 0; m < tiles; ++m) load_query(q_frag[m][k], m, k);
    }
  }

  TILEWISE_INLINE void scores(float (&s)[tiles][Bc / 8][4], u32 k_smem) {
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
      for (int n = 0; n < Bc / 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) s[m][n][r] = 0.f;
    const u32 address = k_smem + k_offset;
#pragma unroll
    for (int k = 0; k < d / 16; ++k) {
      if constexpr (!query_in_registers) {
#pragma unroll
        for (int m = 0; m < tiles; ++m) load_query(q_frag[m][0], m, k);
      }
#pragma unroll
      for (int n = 0; n < Bc / 16; ++n) {
        u32 b[4];
        ptx::ldmatrix_x4(b, K::advance(address, k) + u32(n * 16 * K::kPitch));
#pragma unroll
        for (int m = 0; m < tiles; ++m) {
          const auto& a = q_frag[m][query_in_registers ? k : 0];
          N::mma(s[m][2 * n], a, b[0], b[1]);
          N::mma(s[m][2 * n + 1], a, b[2], b[3]);
        }
      }
    }
  }

  TILEWISE_INLINE void accumulate(float (&o)[tiles][dv / 8][4], const float (&p)[tiles][Bc / 8][4],
                                  u32 v_smem) {
    const u32 address = v_smem + v_offset;
#pragma unroll
    for (int k = 0; k < Bc / 16; ++k) {
      u32 a[tiles][4];
#pragma unroll
      for (int m = 0; m < tiles; ++m) {
        a[m][0] = N::pack(p[m][2 * k][0], p[m][2 * k][1]);
        a[m][1] = N::pack(p[m][2 * k][2], p[m][2 * k][3]);
        a[m][2] = N::pack(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
        a[m][3] = N::pack(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
      }
#pragma unroll
      for (int n = 0; n < dv / 16; ++n) {
        u32 b[4];
        ptx::ldmatrix_x4_trans(b, V::advance(address, n) + u32(k * 16 * V::kPitch));
#pragma unroll
        for (int m = 0; m < tiles; ++m) {
          N::mma(o[m][2 * n], a[m], b[0], b[1]);
          N::mma(o[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

 private:
  TILEWISE_INLINE void load_query(u32 (&a)[4], int m, int k) const {
    ptx::ldmatrix_x4(a, Q::advance(q_address, k) + u32(m * 16 * Q::kPitch));
  }
};

template <int d, int dv, int Br, int Bc, int tiles, bool query_in_registers, bool few_addresses>
struct Products<Element::fp32, d, dv, Br, Bc, tiles, query_in_registers, few_addresses> {
  static constexpr int kTiles = tiles;
  using Q = SmemTile<Element::fp32, Br, d, Access::k_pairs>;
  using K = SmemTile<Element::fp32, Bc, d, Access::k_pairs>;
  using V = SmemTile<Element::fp32, Bc, dv, Access::n_rows>;
  static constexpr int kChain = tiles == 1 ? 4 : 2;  // k steps between two roundings to nearest
  // Scores round where the backward's do: what a score far from 0 loses must be lost again, or P does not sum
  // up to 1 there.
  static constexpr int kScoreChain = d <= 64 ? 2 : kChain;

  u32 q_smem, first_row;

  TILEWISE_INLINE void begin(u32 smem, int row) { q_smem = smem, first_row = u32(row); }
  TILEWISE_INLINE void read_query() {}

  TILEWISE_INLINE void scores(float (&s)[tiles][Bc / 8][4], u32 k_smem) {
    const u32 lane = ptx::thread_index() % 32, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
      for (int n = 0; n < Bc / 8; ++n)
#pragma unroll
        for (int r = 0; r < 4; ++r) s[m][n][r] = 0.f;
#pragma unroll 1
    for (int k0 = 0; k0 < d / 8; k0 += kScoreChain) {
      Split a[tiles][kScoreChain][4];
#pragma unroll
      for (int m = 0; m < tiles; ++m)
#pragma unroll
        for (int k = 0; k < kScoreChain; ++k)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const ptx::Vec2 x =
                ptx::ld_shared_v2(pair_address<Q>(q_smem, first_row + u32(16 * m + 8 * half) + g, k0 + k, q));
            a[m][k][half] = split(ptx::float_of(x.w[0]));
            a[m][k][half + 2] = split(ptx::float_of(x.w[1]));
          }
#pragma unroll
      for (int n = 0; n < Bc / 8; ++n) {
        float part[tiles][4] = {}, cross[tiles][4] = {};
#pragma unroll
        for (int k = 0; k < kScoreChain; ++k) {
          const ptx::Vec2 x = ptx::ld_shared_v2(pair_address<K>(k_smem, u32(8 * n) + g, k0 + k, q));
          const Split b0 = split(ptx::float_of(x.w[0])), b1 = split(ptx::float_of(x.w[1]));
#pragma unroll
          for (int m = 0; m < tiles; ++m) multiply_split(part[m], cross[m], a[m][k], b0, b1);
        }
#pragma unroll
        for (int m = 0; m < tiles; ++m)
#pragma unroll
          for (int r = 0; r < 4; ++r) s[m][n][r] += added_up(part[m][r], cross[m][r]);
      }
    }
  }

  TILEWISE_INLINE void accumulate(float (&o)[tiles][dv / 8][4], const float (&p)[tiles][Bc / 8][4],
                                  u32 v_smem) {
    const u32 lane = ptx::thread_index() % 32, g = lane / 4, q = lane % 4;
    constexpr int kSteps = Bc / 8 < kChain ? Bc / 8 : kChain;
#pragma unroll
    for (int k0 = 0; k0 < Bc / 8; k0 += kSteps) {
      Split a[tiles][kSteps][4];
#pragma unroll
      for (int m = 0; m < tiles; ++m)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const auto& x = p[m][k0 + k];  // columns 2q, 2q + 1 of rows g, g + 8
          a[m][k][0] = split(x[0]), a[m][k][1] = split(x[2]), a[m][k][2] = split(x[1]),
          a[m][k][3] = split(x[3]);
        }
#pragma unroll
      for (int n = 0; n < dv / 8; ++n) {
        float part[tiles][4] = {}, cross[tiles][4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const u32 row = u32(8 * (k0 + k)) + 2 * q, column = u32(8 * n) + g;
          const Split b0 = split(ptx::float_of(ptx::ld_shared(word_address(v_smem, row, column))));
          const Split b1 = split(ptx::float_of(ptx::ld_shared(word_address(v_smem, row + 1, column))));
#pragma unroll
          for (int m = 0; m < tiles; ++m) multiply_split(part[m], cross[m], a[m][k], b0, b1);
        }
#pragma unroll
        for (int m = 0; m < tiles; ++m)
#pragma unroll
          for (int r = 0; r < 4; ++r) o[m][n][r] += added_up(part[m][r], cross[m][r]);
      }
    }
  }

 private:
  template <class Tile>
  static TILEWISE_INLINE u32 pair_address(u32 tile, u32 row, int k, u32 q) {
    return tile + Tile::offset(row, u32(2 * k) + q / 2) + q % 2 * 8;
  }
  static TILEWISE_INLINE u32 word_address(u32 tile, u32 row, u32 column) {
    const u32 chunk = column / 4, low = few_addresses ? chunk & 7u : chunk;  // the swizzle's bits
    return tile + V::offset(row, low) + (chunk - low) * 16 + column % 4 * 4;
  }
};

}  // namespace tilewise::mma
