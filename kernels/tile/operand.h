// Shared-memory tiles and the MMA operands read from them, for 16-bit elements (m16n8k16) and fp32 (three
// tf32 products).
//
// A tile is `Rows x Cols` elements, row after row, 16-byte chunks swizzled so that the 8 rows that one 8x8
// matrix touches fall into different banks. A product C[m][n] += A[m][k] B[k][n] reads either operand from a
// tile stored along k or across it:
//   A along k: tile[m][k]     A across k: tile[k][m]     B along k: tile[n][k]     B across k: tile[k][n]
#pragma once

#include "../ptx/convert.h"
#include "../ptx/ldmatrix.h"
#include "../ptx/memory.h"
#include "../ptx/mma.h"
#include "../ptx/special.h"
#include "../shared/backward_layout.h"
#include "../shared/config.h"
#include "tf32.h"

namespace tilewise::tile {

constexpr int element_bytes(Element e) { return e == Element::fp32 ? 4 : 2; }

struct Lane {
  int lane, g, q;  // of an accumulator fragment: row g (and g + 8), columns 2q and 2q + 1
  u32 warp;
};

TILEWISE_INLINE Lane lane_of(int thread) {
  return {thread & 31, (thread & 31) >> 2, thread & 3, u32(thread) / 32};
}

template <Element E, int kRows, int kCols>
struct SmemTile {
  static constexpr int kElement = element_bytes(E);
  static constexpr int kRowBytes = kCols * kElement;
  static constexpr int kBytes = kRows * kRowBytes;
  static constexpr int kChunks = kRowBytes / 16;  // of a row
  static_assert(kRowBytes % 64 == 0);

  u32 base;

  // The bits of a row that its chunk numbers are XORed with.
  static constexpr u32 swizzle(u32 row) { return kRowBytes % 128 == 0 ? row & 7u : (row >> 1) & 3u; }
  TILEWISE_INLINE u32 chunk(u32 row, u32 c) const {
    return base + row * kRowBytes + ((c ^ swizzle(row)) << 4);
  }
  TILEWISE_INLINE u32 element(u32 row, u32 col) const {
    constexpr u32 kPerChunk = 16 / kElement;
    return chunk(row, col / kPerChunk) + col % kPerChunk * kElement;
  }
};

// The same tile, whose columns in steps of eight chunks (a constant) have addresses that differ by constants:
// unrolled columns take eight registers for theirs instead of one each.
template <class Tile>
struct FewAddresses : Tile {
  TILEWISE_INLINE u32 chunk(u32 row, u32 c) const {
    return this->base + row * Tile::kRowBytes + (((c & 7u) ^ Tile::swizzle(row)) << 4) + (c & ~7u) * 16;
  }
  TILEWISE_INLINE u32 element(u32 row, u32 col) const {
    constexpr u32 kPerChunk = 16 / Tile::kElement;
    return chunk(row, col / kPerChunk) + col % kPerChunk * Tile::kElement;
  }
};
template <bool kFew, class Tile>
TILEWISE_INLINE auto few_addresses(Tile t) {
  if constexpr (kFew)
    return FewAddresses<Tile>{t};
  else
    return t;
}

template <Element E>
struct Mma;

// Operands of 16-bit elements: B covers two neighbouring n8 columns blocks, as one ldmatrix.x4 brings them.
template <Element E>
requires(E != Element::fp32) struct Mma<E> {
  static constexpr int kK = 16;
  static constexpr bool kShortChains = false;
  struct A {
    u32 r[4];
  };
  struct B2 {
    u32 r[4];
  };

  template <class Tile>
  static TILEWISE_INLINE A a_along(Tile t, int lane, int m, int k) {
    A a;
    ptx::ldmatrix_x4(a.r, t.chunk(m + (lane & 15), k / 8 + (lane >> 4)));
    return a;
  }
  template <class Tile>
  static TILEWISE_INLINE A a_across(Tile t, int lane, int m, int k) {
    A a;
    ptx::ldmatrix_x4_trans(a.r, t.chunk(k + (lane & 7) + ((lane >> 4) << 3), m / 8 + ((lane >> 3) & 1)));
    return a;
  }
  template <class Tile>
  static TILEWISE_INLINE B2 b_along(Tile t, int lane, int n, int k) {
    B2 b;
    ptx::ldmatrix_x4(b.r, t.chunk(n + (lane & 7) + ((lane >> 4) << 3), k / 8 + ((lane >> 3) & 1)));
    return b;
  }
  template <class Tile>
  static TILEWISE_INLINE B2 b_across(Tile t, int lane, int n, int k) {
    B2 b;
    ptx::ldmatrix_x4_trans(b.r, t.chunk(k + (lane & 15), n / 8 + (lane >> 4)));
    return b;
  }

  // Accumulators of two neighbouring n8 blocks as the A operand of a product over their columns.
  static TILEWISE_INLINE A a_of(const float (&c0)[4], const float (&c1)[4]) {
    return {{pack(c0[0], c0[1]), pack(c0[2], c0[3]), pack(c1[0], c1[1]), pack(c1[2], c1[3])}};
  }

  // The A operand of depths k.. of a product over the columns of an accumulator row block, and its partner.
  template <int NT>
  static TILEWISE_INLINE A a_of_row(const float (&c)[NT][4], int k) {
    return a_of(c[k / 8], c[k / 8 + 1]);
  }
  template <class Tile>
  static TILEWISE_INLINE B2 b_across_row(Tile t, int lane, int n, int k) {
    return b_across(t, lane, n, k);
  }

  static TILEWISE_INLINE void multiply(float (&c)[4], const A& a, const B2& b, int half) {
    if constexpr (E == Element::bf16)
      ptx::mma_bf16(c, a.r, b.r[half * 2], b.r[half * 2 + 1]);
    else
      ptx::mma_f16(c, a.r, b.r[half * 2], b.r[half * 2 + 1]);
  }

  static TILEWISE_INLINE u32 pack(float low, float high) {
    if constexpr (E == Element::bf16)
      return ptx::cvt_bf16x2(low, high);
    else
      return ptx::cvt_f16x2(low, high);
  }
  // Two neighbouring columns of a row.
  template <class Tile>
  static TILEWISE_INLINE void store_pair(Tile t, int row, int col, float low, float high) {
    ptx::st_shared(t.element(row, col), pack(low, high));
  }
  static TILEWISE_INLINE void unpack(float (&x)[2], u32 pair) {
    x[0] = E == Element::bf16 ? ptx::bf16_low(pair) : ptx::cvt_f32_f16(pair & 0xFFFFu);
    x[1] = E == Element::bf16 ? ptx::bf16_high(pair) : ptx::cvt_f32_f16(pair >> 16);
  }
  template <class Tile>
  static TILEWISE_INLINE void load_pair(float (&x)[2], Tile t, int row, int col) {
    unpack(x, ptx::ld_shared(t.element(row, col)));
  }
};

// fp32 as split TF32 numbers (tf32.h).
template <>
struct Mma<Element::fp32> {
  static constexpr int kK = 8;
  static constexpr bool kShortChains = true;
  struct A {
    Split r[4];
  };
  struct B2 {
    Split r[4];
  };

  static TILEWISE_INLINE Split load(u32 address) { return split(ptx::float_of(ptx::ld_shared(address))); }
  template <class Tile>
  static TILEWISE_INLINE A a_along(Tile t, int lane, int m, int k) {
    const int g = lane >> 2, q = lane & 3;
    A a;
    for (int i = 0; i < 4; ++i) a.r[i] = load(t.element(m + g + (i & 1) * 8, k + q + (i >> 1) * 4));
    return a;
  }
  template <class Tile>
  static TILEWISE_INLINE A a_across(Tile t, int lane, int m, int k) {
    const int g = lane >> 2, q = lane & 3;
    A a;
    for (int i = 0; i < 4; ++i) a.r[i] = load(t.element(k + q + (i >> 1) * 4, m + g + (i & 1) * 8));
    return a;
  }
  template <class Tile>
  static TILEWISE_INLINE B2 b_along(Tile t, int lane, int n, int k) {
    const int g = lane >> 2, q = lane & 3;
    B2 b;
    for (int i = 0; i < 4; ++i) b.r[i] = load(t.element(n + g + (i >> 1) * 8, k + q + (i & 1) * 4));
    return b;
  }
  template <class Tile>
  static TILEWISE_INLINE B2 b_across(Tile t, int lane, int n, int k) {
    const int g = lane >> 2, q = lane & 3;
    B2 b;
    for (int i = 0; i < 4; ++i) b.r[i] = load(t.element(k + q + (i & 1) * 4, n + g + (i >> 1) * 8));
    return b;
  }
  // The order of k inside an instruction is free: depth q stands for column 2q, depth q + 4 for 2q + 1, so
  // that accumulators are operands as they are.
  template <int NT>
  static TILEWISE_INLINE A a_of_row(const float (&c)[NT][4], int k) {
    A a;
    for (int i = 0; i < 4; ++i) a.r[i] = split(c[k / 8][(i & 1) * 2 + (i >> 1)]);
    return a;
  }
  template <class Tile>
  static TILEWISE_INLINE B2 b_across_row(Tile t, int lane, int n, int k) {
    const int g = lane >> 2, q = lane & 3;
    B2 b;
    for (int i = 0; i < 4; ++i) b.r[i] = load(t.element(k + 2 * q + (i & 1), n + g + (i >> 1) * 8));
    return b;
  }
  static TILEWISE_INLINE void multiply(float (&sum)[4], float (&cross)[4], const A& a, const B2& b,
                                       int half) {
    multiply_split(sum, cross, a.r, b.r[half * 2], b.r[half * 2 + 1]);
  }
  template <class Tile>
  static TILEWISE_INLINE void store_pair(Tile t, int row, int col, float low, float high) {
    ptx::st_shared_v2(t.element(row, col), {{ptx::bits_of(low), ptx::bits_of(high)}});
  }
  template <class Tile>
  static TILEWISE_INLINE void load_pair(float (&x)[2], Tile t, int row, int col) {
    const ptx::Vec2 pair = ptx::ld_shared_v2(t.element(row, col));
    x[0] = ptx::float_of(pair.w[0]), x[1] = ptx::float_of(pair.w[1]);
  }
};

// C += A B over kDepth. a(mt, k) and b(nt2, k) bring the operand of row block mt (16 rows) and of column
// blocks 2 nt2, 2 nt2 + 1 (16 columns) at depth k. kUnrolled: a() reads registers, so k must be a constant.
// kLongest: fp32 instructions between two additions that round; fewer take fewer registers. 1 keeps depth a
// loop for 16-bit elements too.
template <class M, int kDepth, bool kUnrolled = false, int kLongest = 4, int MT, int NT, class LoadA,
          class LoadB>
TILEWISE_INLINE void multiply_add(float (&c)[MT][NT][4], LoadA&& load_a, LoadB&& load_b) {
  static_assert(NT % 2 == 0 && kDepth % M::kK == 0);
  if constexpr (!M::kShortChains) {
    const auto add_step = [&](int k) {
      typename M::A a[MT];
#pragma unroll
      for (int mt = 0; mt < MT; ++mt) a[mt] = load_a(mt, k);
#pragma unroll
      for (int nt = 0; nt < NT; nt += 2) {
        const typename M::B2 b = load_b(nt / 2, k);
#pragma unroll
        for (int x = 0; x < 2; ++x)
#pragma unroll
          for (int mt = 0; mt < MT; ++mt) M::multiply(c[mt][nt + x], a[mt], b, x);
      }
    };
    if constexpr (kLongest == 1 && !kUnrolled) {
#pragma unroll 2
      for (int k = 0; k < kDepth; k += M::kK) add_step(k);
    } else {
#pragma unroll
      for (int k = 0; k < kDepth; k += M::kK) add_step(k);
    }
  } else {
    constexpr int kMost = MT > 1 || kDepth < 4 * M::kK ? 2 : 4;
    constexpr int kSteps = kLongest < kMost ? kLongest : kMost, kChain = kSteps * M::kK;
    static_assert(kDepth % kChain == 0);
    const auto add_chain = [&](int chain) {
      typename M::A a[MT][kSteps];
#pragma unroll
      for (int mt = 0; mt < MT; ++mt)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) a[mt][k] = load_a(mt, chain + k * M::kK);
#pragma unroll
      for (int nt = 0; nt < NT; nt += 2) {
        float part[MT][2][4] = {}, cross[MT][2][4] = {};
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          const typename M::B2 b = load_b(nt / 2, chain + k * M::kK);
#pragma unroll
          for (int x = 0; x < 2; ++x)
#pragma unroll
            for (int mt = 0; mt < MT; ++mt) M::multiply(part[mt][x], cross[mt][x], a[mt][k], b, x);
        }
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
          for (int x = 0; x < 2; ++x)
#pragma unroll
            for (int r = 0; r < 4; ++r) c[mt][nt + x][r] += added_up(part[mt][x][r], cross[mt][x][r]);
      }
    };
    if constexpr (kUnrolled) {
#pragma unroll
      for (int chain = 0; chain < kDepth; chain += kChain) add_chain(chain);
    } else {
#pragma unroll 1
      for (int chain = 0; chain < kDepth; chain += kChain) add_chain(chain);
    }
  }
}

// f(mt, nt) for every 16 x 8 block of a fragment, f(mt, nt, r) for every element of this lane.
template <int MT, int NT, class F>
TILEWISE_INLINE void for_blocks(F&& f) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int nt = 0; nt < NT; ++nt) f(mt, nt);
}
template <int MT, int NT, class F>
TILEWISE_INLINE void for_elements(F&& f) {
  for_blocks<MT, NT>([&](int mt, int nt) {
#pragma unroll
    for (int r = 0; r < 4; ++r) f(mt, nt, r);
  });
}

// Accumulators of column blocks nt.. as the A operands of a product over them.
template <class M, int kBlocks, int MT, int NT>
TILEWISE_INLINE void pack(typename M::A (&a)[MT][NT / 2], const float (&c)[MT][NT][4], int nt) {
  for_blocks<MT, kBlocks / 2>(
      [&](int mt, int k) { a[mt][nt / 2 + k] = M::a_of(c[mt][nt + 2 * k], c[mt][nt + 2 * k + 1]); });
}

// Adds a 16 x 8 block to its piece of an accumulator in global memory (backward_layout.h).
TILEWISE_INLINE void add_piece(float* piece, int lane, const float (&x)[4]) {
  if constexpr (ptx::kVectorAdds) {
    ptx::red_add_v4(piece + dq_accum_element(true, lane, 0), x[0], x[1], x[2], x[3]);
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) ptx::red_add(piece + dq_accum_element(false, lane, r), x[r]);
  }
}

TILEWISE_INLINE void load_piece(float (&x)[4], const float* piece, int lane) {
  if constexpr (ptx::kVectorAdds) {
    const ptx::Vec4 w =
        ptx::load_global(reinterpret_cast<const ptx::Vec4*>(piece + dq_accum_element(true, lane, 0)));
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = ptx::float_of(w.w[r]);
  } else {
#pragma unroll
    for (int r = 0; r < 4; ++r) x[r] = ptx::load_global(piece + dq_accum_element(false, lane, r));
  }
}

template <int MT, int NT>
TILEWISE_INLINE void clear(float (&c)[MT][NT][4]) {
#pragma unroll
  for (int mt = 0; mt < MT; ++mt)
#pragma unroll
    for (int nt = 0; nt < NT; ++nt)
#pragma unroll
      for (int r = 0; r < 4; ++r) c[mt][nt][r] = 0.0f;
}

}  // namespace tilewise::tile
