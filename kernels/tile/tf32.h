// fp32 products on the tensor cores: x = big + small, two TF32 numbers (11 significant bits each), and
// a b = big big + (big small + small big). What is left out, small small, is 2^-22 of the product at most.
#pragma once

#include "../ptx/memory.h"
#include "../ptx/mma.h"

namespace tilewise {

struct Split {
  u32 big, small;
};

TILEWISE_INLINE Split split(float x) {
  // To nearest, so that the rest has a bit less to hold than its 12: at most its last one is cut off by the
  // instruction. cvt.tf32 would do the same at an eighth of the rate. A NaN may become a zero here, as the
  // one that arithmetic gives does, whose bits are all ones; the rest of a NaN is one always.
  const u32 big = (ptx::bits_of(x) + 0x1000u) & 0xFFFFE000u;
  return {big, ptx::bits_of(x - ptx::float_of(big))};
}

// The tensor cores truncate when they add. The products of the small parts have a sum of their own, so that
// they lose nothing beside the big ones; chains are short, and are added up by FADD, which rounds.
TILEWISE_INLINE void multiply_split(float (&sum)[4], float (&cross)[4], const Split (&a)[4], Split b0,
                                    Split b1) {
  const u32 big[4] = {a[0].big, a[1].big, a[2].big, a[3].big};
  const u32 small[4] = {a[0].small, a[1].small, a[2].small, a[3].small};
  ptx::mma_tf32(cross, small, b0.big, b1.big);
  ptx::mma_tf32(cross, big, b0.small, b1.small);
  ptx::mma_tf32(sum, big, b0.big, b1.big);
}

// What a chain adds. Where an operand is infinite its rest is a NaN, and its products with the other's rest
// may be infinities of the wrong sign: then the big ones alone say what the sum is.
TILEWISE_INLINE float added_up(float sum, float cross) {
  constexpr float kInfinity = __builtin_bit_cast(float, 0x7F800000u);
  return (sum < 0 ? -sum : sum) == kInfinity ? sum : sum + cross;
}

}  // namespace tilewise
