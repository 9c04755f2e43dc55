// The wrappers of kernels/ptx as the emulator understands them.
#define TILEWISE_EMULATE
#include <cmath>
#include <cstring>

#include "kernels/ptx/barrier.h"
#include "kernels/ptx/convert.h"
#include "kernels/ptx/cp_async.h"
#include "kernels/ptx/ldmatrix.h"
#include "kernels/ptx/math.h"
#include "kernels/ptx/memory.h"
#include "kernels/ptx/mma.h"
#include "kernels/ptx/special.h"
#include "kernels/ptx/warp.h"
#include "machine.h"

namespace tilewise::ptx {
namespace {

using emulator::kWarp;
using emulator::Machine;

Machine& machine() { return Machine::now(); }

float round_tf32_operand(u32 x) { return float_of(x & 0xFFFFE000u); }

u32 bf16_bits(float x) {
  u32 b = bits_of(x);
  if (std::isnan(x)) return 0x7FFF;
  return (b + 0x7FFF + ((b >> 16) & 1)) >> 16;
}

u32 f16_bits(float x) {
  const u32 b = bits_of(x), sign = (b >> 16) & 0x8000;
  if (std::isnan(x)) return 0x7FFF;
  const float a = std::fabs(x);
  if (a >= 65520.f) return sign | 0x7C00;
  if (a < 6.103515625e-05f) return sign | static_cast<u32>(std::nearbyint(a * 16777216.f));  // subnormal
  const u32 m = b & 0x7FFFFFFF;
  return sign | ((m - 0x38000000 + 0xFFF + ((m >> 13) & 1)) >> 13);
}

float f16_value(u32 h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  const float sign = h & 0x8000 ? -1.f : 1.f;
  if (exponent == 31) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
  return sign * std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
}

float half_of(u32 pair, int which, bool bf16) {
  const u32 bits = which ? pair >> 16 : pair & 0xFFFF;
  return bf16 ? float_of(bits << 16) : f16_value(bits);
}

struct MmaArguments {
  float* c;
  const u32* a;
  u32 b[2];
};
using MmaLanes = std::array<MmaArguments*, kWarp>;

// The tensor cores' addition truncates.
float truncated(double x) {
  const float y = static_cast<float>(x);
  return std::isfinite(x) && std::fabs(static_cast<double>(y)) > std::fabs(x) ? std::nextafter(y, 0.f) : y;
}

// The NaN that instructions give: all bits but the sign.
float canonical(float x) { return std::isnan(x) ? float_of(0x7FFFFFFFu) : x; }

// Products exact, their sum in double, one truncation to fp32 per instruction.
template <int K>
void multiply(const MmaLanes& lanes, const double (&a)[16][K], const double (&b)[K][8]) {
  for (int lane = 0; lane < kWarp; ++lane) {
    const int g = lane / 4, q = lane % 4;
    for (int r = 0; r < 4; ++r) {
      const int row = g + 8 * (r >> 1), column = 2 * q + (r & 1);
      double sum = 0;
      for (int k = 0; k < K; ++k) sum += a[row][k] * b[k][column];
      float& c = lanes[static_cast<std::size_t>(lane)]->c[r];
      c = canonical(truncated(c + sum));
    }
  }
}

void mma_16bit(const char* name, float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, bool bf16) {
  MmaArguments mine{c, a, {b0, b1}};
  machine().collective(name, mine, [bf16](const MmaLanes& lanes) {
    double am[16][16], bm[16][8];
    for (int lane = 0; lane < kWarp; ++lane) {
      const int g = lane / 4, q = lane % 4;
      const MmaArguments& x = *lanes[static_cast<std::size_t>(lane)];
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < 4; ++r)
          am[g + 8 * (r & 1)][2 * q + half + 8 * (r >> 1)] = half_of(x.a[r], half, bf16);
        for (int r = 0; r < 2; ++r) bm[2 * q + half + 8 * r][g] = half_of(x.b[r], half, bf16);
      }
    }
    multiply<16>(lanes, am, bm);
  });
}

struct MatrixArguments {
  u32* r;
  u32 address;
};

template <int kCount, bool kTrans>
void ldmatrix(const char* name, u32* r, u32 address) {
  MatrixArguments mine{r, address};
  // Each lane reads its own row: shared() checks bounds, alignment and races as this warp.
  machine().collective(name, mine, [](const std::array<MatrixArguments*, kWarp>& lanes) {
    for (int m = 0; m < kCount; ++m) {
      unsigned short tile[8][8];
      for (int row = 0; row < 8; ++row)
        std::memcpy(tile[row],
                    machine().shared(lanes[static_cast<std::size_t>(8 * m + row)]->address, 16, 16, false),
                    16);
      for (int lane = 0; lane < kWarp; ++lane) {
        const int g = lane / 4, q = lane % 4;
        const u32 low = kTrans ? tile[2 * q][g] : tile[g][2 * q];
        const u32 high = kTrans ? tile[2 * q + 1][g] : tile[g][2 * q + 1];
        lanes[static_cast<std::size_t>(lane)]->r[m] = low | high << 16;
      }
    }
  });
}

void complete(const std::vector<emulator::PendingCopy>& group) {
  for (const auto& copy : group) {
    std::byte* to = machine().shared(copy.shared, 16, 16, true);
    std::memset(to, 0, 16);
    if (copy.bytes) std::memcpy(to, copy.global, copy.bytes);
  }
}

void cp_async_wait_group(std::size_t pending) {
  auto& groups = Machine::thread().groups;
  while (groups.size() > pending) {
    complete(groups.front());
    groups.erase(groups.begin());
  }
}

}  // namespace

// special.h
u32 thread_index() { return static_cast<u32>(Machine::thread().index); }
u32 block_index_x() { return machine().block[0]; }
u32 block_index_y() { return machine().block[1]; }
u32 block_index_z() { return machine().block[2]; }
u32 grid_size_x() { return machine().grid[0]; }
u32 grid_size_y() { return machine().grid[1]; }
unsigned char* dynamic_shared() { return reinterpret_cast<unsigned char*>(machine().shared_base()); }
u32 shared_address(const void* pointer) { return machine().shared_offset(pointer); }

// barrier.h
void sync_threads() { machine().barrier(0, static_cast<int>(machine().launch().threads), true); }
bool sync_threads_or(bool yes) {
  return machine().barrier(0, static_cast<int>(machine().launch().threads), true, yes);
}
void bar_sync(int id, int threads) { machine().barrier(id, threads, true); }
void bar_arrive(int id, int threads) { machine().barrier(id, threads, false); }
void sync_warp() {
  int nothing = 0;
  machine().collective("bar.warp.sync", nothing, [](const auto&) {});
}

// memory.h
void check_global(const void* pointer, int bytes, bool write) {
  emulator::check_global_access(pointer, static_cast<std::size_t>(bytes), write);
}
void red_add(float* pointer, float x) {
  check_global(pointer, 4, true);
  *pointer += x;
}
void red_add_v4(float* pointer, float a, float b, float c, float d) {
  check_global(pointer, 16, true);
  pointer[0] += a, pointer[1] += b, pointer[2] += c, pointer[3] += d;
}

namespace {
template <class T>
T ld(u32 address) {
  T x;
  std::memcpy(&x, machine().shared(address, sizeof(T), sizeof(T), false), sizeof(T));
  return x;
}
template <class T>
void st(u32 address, const T& x) {
  std::memcpy(machine().shared(address, sizeof(T), sizeof(T), true), &x, sizeof(T));
}
}  // namespace

u32 ld_shared(u32 address) { return ld<u32>(address); }
Vec2 ld_shared_v2(u32 address) { return ld<Vec2>(address); }
Vec4 ld_shared_v4(u32 address) { return ld<Vec4>(address); }
void st_shared_b16(u32 address, u32 x) { st(address, static_cast<unsigned short>(x)); }
void st_shared(u32 address, u32 x) { st(address, x); }
void st_shared_v2(u32 address, Vec2 x) { st(address, x); }
void st_shared_v4(u32 address, Vec4 x) { st(address, x); }

// cp_async.h: the destination turns to NaN until the wait that completes the copy.
void cp_async_16(u32 shared, const void* global, u32 source_bytes) {
  if (source_bytes > 16) machine().fail("cp.async of more than 16 bytes");
  std::memset(machine().shared(shared, 16, 16, true), 0xFF, 16);
  if (source_bytes) {
    if (reinterpret_cast<std::uintptr_t>(global) % 16) machine().fail("cp.async from a misaligned address");
    check_global(global, 1, false);
    check_global(static_cast<const char*>(global) + source_bytes - 1, 1, false);
  }
  Machine::thread().uncommitted.push_back({shared, global, source_bytes});
}
void cp_async_16_if(u32 shared, const void* global, bool exists) {
  cp_async_16(shared, global, exists ? 16 : 0);
}
void cp_async_commit() {
  auto& t = Machine::thread();
  t.groups.push_back(std::move(t.uncommitted));
  t.uncommitted.clear();
}
template <int kPending>
void cp_async_wait() {
  cp_async_wait_group(kPending);
}
template void cp_async_wait<0>();
template void cp_async_wait<1>();
template void cp_async_wait<2>();
template void cp_async_wait<3>();
template void cp_async_wait<4>();
template void cp_async_wait<5>();
template void cp_async_wait<6>();

// ldmatrix.h
void ldmatrix_x1(u32& r0, u32 address) { ldmatrix<1, false>("ldmatrix.x1", &r0, address); }
void ldmatrix_x2(u32 (&r)[2], u32 address) { ldmatrix<2, false>("ldmatrix.x2", r, address); }
void ldmatrix_x4(u32 (&r)[4], u32 address) { ldmatrix<4, false>("ldmatrix.x4", r, address); }
void ldmatrix_x2_trans(u32 (&r)[2], u32 address) { ldmatrix<2, true>("ldmatrix.x2.trans", r, address); }
void ldmatrix_x4_trans(u32 (&r)[4], u32 address) { ldmatrix<4, true>("ldmatrix.x4.trans", r, address); }

void stmatrix_x4(u32 address, const u32 (&r)[4]) {
  MatrixArguments mine{const_cast<u32*>(r), address};
  machine().collective("stmatrix.x4", mine, [](const std::array<MatrixArguments*, kWarp>& lanes) {
    for (int m = 0; m < 4; ++m)
      for (int row = 0; row < 8; ++row) {
        std::byte* to = machine().shared(lanes[static_cast<std::size_t>(8 * m + row)]->address, 16, 16, true);
        for (int q = 0; q < 4; ++q)
          std::memcpy(to + 4 * q, &lanes[static_cast<std::size_t>(4 * row + q)]->r[m], 4);
      }
  });
}

// mma.h
void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_16bit("mma.bf16", c, a, b0, b1, true); }
void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) { mma_16bit("mma.f16", c, a, b0, b1, false); }
void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  MmaArguments mine{c, a, {b0, b1}};
  machine().collective("mma.tf32", mine, [](const MmaLanes& lanes) {
    double am[16][8], bm[8][8];
    for (int lane = 0; lane < kWarp; ++lane) {
      const int g = lane / 4, q = lane % 4;
      const MmaArguments& x = *lanes[static_cast<std::size_t>(lane)];
      for (int r = 0; r < 4; ++r) am[g + 8 * (r & 1)][q + 4 * (r >> 1)] = round_tf32_operand(x.a[r]);
      for (int r = 0; r < 2; ++r) bm[q + 4 * r][g] = round_tf32_operand(x.b[r]);
    }
    multiply<8>(lanes, am, bm);
  });
}

// convert.h
u32 cvt_bf16x2(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
u32 cvt_f16x2(float low, float high) { return f16_bits(low) | f16_bits(high) << 16; }
u32 fma_bf16x2(u32 x, u32 y, u32 z) {
  const auto fma = [](u32 a, u32 b, u32 c) { return std::fma(bf16_low(a), bf16_low(b), bf16_low(c)); };
  return cvt_bf16x2(fma(x, y, z), fma(x >> 16, y >> 16, z >> 16));
}
u32 fma_f16x2(u32 x, u32 y, u32 z) {
  const auto fma = [](u32 a, u32 b, u32 c) {
    return std::fma(cvt_f32_f16(a), cvt_f32_f16(b), cvt_f32_f16(c));
  };
  return cvt_f16x2(fma(x, y, z), fma(x >> 16, y >> 16, z >> 16));
}
float cvt_f32_f16(u32 half) { return f16_value(half & 0xFFFF); }
u32 cvt_tf32(float x) {
  if (!std::isfinite(x)) return bits_of(x);
  return (bits_of(x) + 0x1000) & 0xFFFFE000u;
}

// math.h
float ex2(float x) {
  const float y = std::exp2(x);
  return y < 1.17549435e-38f ? 0.f : y;
}
float lg2(float x) { return std::log2(x); }
float rcp(float x) { return 1.f / x; }
float div(float x, float y) { return x / y; }
float fma(float x, float y, float z) { return canonical(std::fma(x, y, z)); }
float max(float x, float y) { return std::fmax(x, y); }

// warp.h
namespace {
struct Exchange {
  u32 in, out;
  int lane;
};
}  // namespace

float shfl_xor(float x, int lane_mask) {
  Exchange mine{bits_of(x), 0, lane_mask};
  machine().collective("shfl.bfly", mine, [](const auto& lanes) {
    for (int i = 0; i < kWarp; ++i) {
      auto* e = lanes[static_cast<std::size_t>(i)];
      e->out = lanes[static_cast<std::size_t>((i ^ e->lane) & 31)]->in;
    }
  });
  return float_of(mine.out);
}
u32 shfl_idx(u32 x, int lane) {
  Exchange mine{x, 0, lane};
  machine().collective("shfl.idx", mine, [](const auto& lanes) {
    for (auto* e : lanes) e->out = lanes[static_cast<std::size_t>(e->lane & 31)]->in;
  });
  return mine.out;
}
bool vote_any(bool x) {
  Exchange mine{x, 0, 0};
  machine().collective("vote.any", mine, [](const auto& lanes) {
    u32 any = 0;
    for (auto* e : lanes) any |= e->in;
    for (auto* e : lanes) e->out = any;
  });
  return mine.out != 0;
}
bool vote_all(bool x) { return !vote_any(!x); }

}  // namespace tilewise::ptx
