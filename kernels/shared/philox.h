// Dropout's random bits: Philox 4x32-10 (Salmon et al., SC'11), a counter-based generator, so that the mask
// depends on the element (b, h, i, j) alone: the same on every backend, for every tiling, dense or packed (b
// is then the sequence index, and i, j count inside the sequence).
//
// One call serves the four elements that one thread of an m16n8 MMA accumulator owns side by side:
// rows i and i + 8 of a 16-row block, columns 2c and 2c + 1.
#pragma once

#include "types.h"

namespace tilewise {

struct PhiloxWords {
  u32 w[4];
};

constexpr PhiloxWords philox4x32_10(u32 c0, u32 c1, u32 c2, u32 c3, u32 k0, u32 k1) {
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = u64{0xD2511F53u} * c0;
    const u64 p1 = u64{0xCD9E8D57u} * c2;
    const u32 n0 = u32(p1 >> 32) ^ c1 ^ k0;
    const u32 n2 = u32(p0 >> 32) ^ c3 ^ k1;
    c1 = u32(p1);
    c3 = u32(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

struct DropoutKey {
  u32 k0, k1;
};

// Seed and offset name one stream: the offset (a call counter) is spread over the key, so that neighbouring
// calls share nothing.
constexpr DropoutKey dropout_key(u64 seed, u64 offset) {
  const u64 k = seed ^ (offset * 0x9E3779B97F4A7C15ull);
  return {u32(k), u32(k >> 32)};
}

// The word of element (i, j) inside its group of four.
constexpr u32 dropout_word(u32 i, u32 j) { return ((i >> 3) & 1u) * 2u + (j & 1u); }

// The four words shared by (i, j), (i, j^1), (i^8, j), (i^8, j^1).
constexpr PhiloxWords dropout_words(DropoutKey key, u32 b, u32 h, u32 i, u32 j) {
  return philox4x32_10(j >> 1, (i >> 4) * 8u + (i & 7u), h, b, key.k0, key.k1);
}

constexpr u32 dropout_bits(DropoutKey key, u32 b, u32 h, u32 i, u32 j) {
  const PhiloxWords x = dropout_words(key, b, h, i, j);
  const u32 n = dropout_word(i, j), low = n & 1 ? x.w[1] : x.w[0], high = n & 1 ? x.w[3] : x.w[2];
  return n & 2 ? high : low;  // no array with an index, which would lie in memory
}

// An element is kept when its bits are at least this: p * 2^32, rounded.
constexpr u32 dropout_threshold(double p) {
  const double t = p * 4294967296.0 + 0.5;
  return t >= 4294967295.0 ? 0xFFFFFFFFu : u32(u64(t));
}

}  // namespace tilewise
