#include "cli/unfused_kernels.h"

#include <bit>
#include <cstring>
#include <limits>

namespace tilewise::cli {
namespace {

#define TILEWISE_INLINE [[gnu::always_inline]] inline

// MR rows by 2 vectors: accumulators stay in registers; each step loads 2 vectors of B and broadcasts MR
// values of A.
template <int Bytes, int MR>
TILEWISE_INLINE void tile(const Product& p, int64_t i, int64_t j) {
  typedef float Vector __attribute__((vector_size(Bytes)));
  Vector c[MR][2] = {};
  const float* a = p.a + i * p.a_row;
  const float* b = p.b + j;
  for (int64_t k = 0; k < p.depth; ++k, b += p.b_row) {
    Vector b0, b1;
    std::memcpy(&b0, b, Bytes);
    std::memcpy(&b1, b + Bytes / 4, Bytes);
#pragma GCC unroll 16
    for (int r = 0; r < MR; ++r) {
      c[r][0] += a[r * p.a_row + k] * b0;
      c[r][1] += a[r * p.a_row + k] * b1;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < MR; ++r) {
    float* to = p.c + (i + r) * p.c_row + j;
    for (int half = 0; half < 2; ++half, to += Bytes / 4) {
      Vector old = {};
      if (p.add) std::memcpy(&old, to, Bytes);
      const Vector sum = old + p.scale * c[r][half];
      std::memcpy(to, &sum, Bytes);
    }
  }
}

TILEWISE_INLINE void edge(const Product& p, int64_t i, int64_t j) {
  float sum = 0;
  for (int64_t k = 0; k < p.depth; ++k) sum += p.a[i * p.a_row + k] * p.b[k * p.b_row + j];
  float& to = p.c[i * p.c_row + j];
  to = p.scale * sum + (p.add ? to : 0);
}

template <int Bytes, int MR>
TILEWISE_INLINE void multiply_with(const Product& p) {
  constexpr int64_t kColumns = 2 * Bytes / 4;
  int64_t j = 0;
  for (; j + kColumns <= p.columns; j += kColumns) {
    int64_t i = 0;
    for (; i + MR <= p.rows; i += MR) tile<Bytes, MR>(p, i, j);
    for (; i < p.rows; ++i) tile<Bytes, 1>(p, i, j);
  }
  for (; j < p.columns; ++j)
    for (int64_t i = 0; i < p.rows; ++i) edge(p, i, j);
}

// exp(x) for x <= 0, to about 1e-7: 2^n times a polynomial on [-1/2, 1/2].
TILEWISE_INLINE float exp_negative(float x) {
  const float t = x < -87 ? -87 * 1.44269504f : x * 1.44269504f;
  const float shifted = t + 12582912.0f;  // 1.5 * 2^23: the integer part lands in the low bits
  const float f = t - (shifted - 12582912.0f);
  const float poly =
      1 + f * (0.69314718f + f * (0.24022651f + f * (0.05550411f + f * (0.00961813f + f * 0.00133336f))));
  return std::bit_cast<float>(std::bit_cast<int32_t>(poly) + (std::bit_cast<int32_t>(shifted) << 23));
}

template <int Lanes>
TILEWISE_INLINE void softmax_with(const float* s, float* p, int64_t n, int64_t visible) {
  const int64_t whole = visible / Lanes * Lanes;
  float m[Lanes], sum[Lanes] = {};
  for (float& x : m) x = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < whole; j += Lanes)
    for (int l = 0; l < Lanes; ++l) m[l] = m[l] > s[j + l] ? m[l] : s[j + l];
  float top = m[0], total = 0;
  for (float x : m) top = top > x ? top : x;
  for (int64_t j = whole; j < visible; ++j) top = top > s[j] ? top : s[j];
  for (int64_t j = 0; j < whole; j += Lanes)
    for (int l = 0; l < Lanes; ++l) {
      const float e = exp_negative(s[j + l] - top);
      p[j + l] = e;
      sum[l] += e;
    }
  for (int64_t j = whole; j < visible; ++j) total += p[j] = exp_negative(s[j] - top);
  for (float x : sum) total += x;
  const float factor = 1 / total;
  for (int64_t j = 0; j < visible; ++j) p[j] *= factor;
  for (int64_t j = visible; j < n; ++j) p[j] = 0;
}

#if defined(__x86_64__)
#define TILEWISE_AVX512 [[gnu::target("avx512f,avx512bw,avx512dq,avx512vl,fma,prefer-vector-width=512")]]
#define TILEWISE_AVX2 [[gnu::target("avx2,fma")]]
TILEWISE_AVX512 void multiply_avx512(const Product& p) { multiply_with<64, 12>(p); }
TILEWISE_AVX512 void softmax_avx512(const float* s, float* p, int64_t n, int64_t visible) {
  softmax_with<32>(s, p, n, visible);
}
TILEWISE_AVX2 void multiply_avx2(const Product& p) { multiply_with<32, 6>(p); }
TILEWISE_AVX2 void softmax_avx2(const float* s, float* p, int64_t n, int64_t visible) {
  softmax_with<16>(s, p, n, visible);
}
const bool has_avx512 = __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif

}  // namespace

void multiply(const Product& p) {
#if defined(__x86_64__)
  if (has_avx512) return multiply_avx512(p);
  if (has_avx2) return multiply_avx2(p);
#endif
  multiply_with<16, 6>(p);
}

void softmax_row(const float* s, float* p, int64_t n, int64_t visible) {
#if defined(__x86_64__)
  if (has_avx512) return softmax_avx512(s, p, n, visible);
  if (has_avx2) return softmax_avx2(s, p, n, visible);
#endif
  softmax_with<8>(s, p, n, visible);
}

}  // namespace tilewise::cli
