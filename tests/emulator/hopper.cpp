// Hopper's asynchronous instructions as the emulator understands them, each at its most hostile moment: TMA
// writes when it is issued, wgmma reads its operands (through the real descriptors and swizzles) only when it
// is waited for, and its accumulators are NaN in between; TMA stores when it is waited for.
#define TILEWISE_EMULATE
#include "hopper.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "kernels/ptx/convert.h"
#include "kernels/ptx/mbarrier.h"
#include "kernels/ptx/memory.h"
#include "kernels/ptx/tma.h"
#include "kernels/ptx/warpgroup.h"
#include "kernels/ptx/wgmma.h"
#include "machine.h"

namespace tilewise::emulator {
namespace {

constexpr u64 kMapMagic = 0x70616D20726F736E;

struct MBarrier {
  u32 expected = 0, pending = 0;
  i64 bytes = 0;  // that the phase still waits for
  u32 completed = 0;
  Clock arriving{}, done{};  // of this phase so far, of the last complete one
};

using MBarriers = std::map<u32, MBarrier>;  // of one block, by address

MBarriers& mbarriers() {
  auto& slot = Machine::now().extension;
  if (!slot) slot = std::make_shared<MBarriers>();
  return *static_cast<MBarriers*>(slot.get());
}

MBarrier& find(u64& bar) {
  Machine& m = Machine::now();
  const u32 address = m.shared_offset(&bar);
  const auto it = mbarriers().find(address);
  if (it == mbarriers().end()) m.fail("mbarrier at " + std::to_string(address) + " was never initialised");
  m.shared(address, 8, 8, false);  // its initialisation must be visible
  return it->second;
}

void complete_if_due(MBarrier& b) {
  if (b.pending || b.bytes) return;
  b.pending = b.expected;
  b.done = b.arriving;
  ++b.completed;
  Machine::now().wake_all();
}

void arrive(u64& bar, u32 bytes) {
  MBarrier& b = find(bar);
  if (!b.pending) Machine::now().fail("more arrivals than the mbarrier expects");
  Machine::now().release(b.arriving);
  b.bytes += bytes;
  --b.pending;
  complete_if_due(b);
}

// ---- wgmma ----

struct Product {
  float (*d)[4];
  int n;
  Element element;
  int trans_b;
  const u32* a_registers;
  u32 a_copy[4];
  u64 a, b;
  bool accumulate;
  std::vector<float> before;  // the accumulators, if no earlier product is in flight on them
};

struct Products {  // of one thread
  std::vector<Product> issued;
  std::vector<std::vector<Product>> groups;
  std::vector<std::function<void()>> stores, committed_stores;  // of TMA, not done yet
};

Products& products() {
  auto& slot = Machine::thread().extension;
  if (!slot) slot = std::make_shared<Products>();
  return *static_cast<Products*>(slot.get());
}

float value_of(unsigned short bits, Element e) {
  return e == Element::bf16 ? ptx::bf16_low(bits) : ptx::cvt_f32_f16(bits);
}

struct Descriptor {
  u32 start, leading, stride;
  explicit Descriptor(u64 d)
      : start(u32(d & 0x3FFF) << 4), leading(u32(d >> 16 & 0x3FFF) << 4), stride(u32(d >> 32 & 0x3FFF) << 4) {
    if (d >> 62 != 1 || (d >> 49 & 7))
      Machine::now().fail("wgmma descriptor: only 128-byte swizzle, base offset 0");
  }
  // Eight 16-bit elements that lie side by side.
  void read(u32 address, unsigned short (&x)[8]) const {
    address ^= (address >> 3) & 0x70;
    std::memcpy(x, Machine::now().shared(address, 16, 16, false), 16);
  }
};

// Rows of 16 k: K-major operands.
void read_k_major(u64 descriptor, int first_row, int rows, Element e, std::vector<float>& x) {
  const Descriptor d(descriptor);
  x.resize(std::size_t(rows) * 16);
  for (int r = 0; r < rows; ++r)
    for (int half = 0; half < 2; ++half) {
      const u32 row = u32(first_row + r);
      unsigned short bits[8];
      d.read(d.start + row / 8 * d.stride + row % 8 * 128 + u32(half) * 16, bits);
      for (int i = 0; i < 8; ++i) x[std::size_t(r * 16 + half * 8 + i)] = value_of(bits[i], e);
    }
}

// The same [n][16], from [k][n] in memory.
void read_mn_major(u64 descriptor, int n, Element e, std::vector<float>& x) {
  const Descriptor d(descriptor);
  x.resize(std::size_t(n) * 16);
  for (u32 k = 0; k < 16; ++k)
    for (u32 column = 0; column < u32(n); column += 8) {
      unsigned short bits[8];
      d.read(d.start + column / 64 * d.leading + k / 8 * d.stride + k % 8 * 128 + column % 64 * 2, bits);
      for (u32 i = 0; i < 8; ++i) x[(column + i) * 16 + k] = value_of(bits[i], e);
    }
}

// One product of one warp: its 16 rows.
void execute(const std::array<Product*, kWarp>& lanes) {
  Machine& m = Machine::now();
  const Product& p = *lanes[0];
  const int warp = Machine::thread().warp->index % 4;
  std::vector<float> a(16 * 16), b;
  for (const Product* lane : lanes)
    if (lane->n != p.n || lane->b != p.b || lane->a != p.a || lane->accumulate != p.accumulate)
      m.fail("lanes of a warp disagree about a wgmma");
  if (p.a_registers) {
    for (int lane = 0; lane < kWarp; ++lane) {
      const Product& x = *lanes[std::size_t(lane)];
      if (std::memcmp(x.a_registers, x.a_copy, sizeof(x.a_copy)))
        m.fail("the A registers of a wgmma changed while it was in flight");
      for (int r = 0; r < 4; ++r)
        for (int e = 0; e < 2; ++e)
          a[std::size_t((lane / 4 + r % 2 * 8) * 16 + lane % 4 * 2 + r / 2 * 8 + e)] =
              value_of(static_cast<unsigned short>(x.a_copy[r] >> (16 * e)), p.element);
    }
  } else {
    read_k_major(p.a, 16 * warp, 16, p.element, a);
  }
  if (p.trans_b)
    read_mn_major(p.b, p.n, p.element, b);
  else
    read_k_major(p.b, 0, p.n, p.element, b);
  for (int lane = 0; lane < kWarp; ++lane) {
    Product& x = *lanes[std::size_t(lane)];
    for (int t = 0; t < p.n / 8; ++t)
      for (int r = 0; r < 4; ++r) {
        float& d = x.d[t][r];
        if (!x.before.empty()) {
          if (!std::isnan(d)) m.fail("an accumulator of a wgmma was written while it was in flight");
          d = x.before[std::size_t(4 * t + r)];
        }
        double sum = 0;
        const int row = lane / 4 + r / 2 * 8, column = 8 * t + lane % 4 * 2 + r % 2;
        for (int k = 0; k < 16; ++k)
          sum += double(a[std::size_t(row * 16 + k)]) * b[std::size_t(column * 16 + k)];
        d = static_cast<float>((x.accumulate ? double(d) : 0) + sum);
      }
  }
}

void wait_products(std::size_t pending) {
  auto& groups = products().groups;
  while (groups.size() > pending) {
    for (Product& mine : groups.front()) Machine::now().collective("wgmma", mine, execute);
    groups.erase(groups.begin());
  }
}

struct Shuffle {
  u32 in, out;
  int lane;
};

}  // namespace

TensorMap encode(const wgmma::MapShape& s) {
  const auto address = reinterpret_cast<std::uintptr_t>(s.address);
  bool legal = address % 16 == 0 && s.box[0] * 2 <= 128 && s.box[0] * 2 % 16 == 0;
  for (u64 dim : s.dim) legal &= dim > 0 && dim <= u64{1} << 32;
  for (u64 stride : s.stride) legal &= stride % 16 == 0 && stride < u64{1} << 40;
  for (u32 box : s.box) legal &= box > 0 && box <= 256;
  if (!legal) throw Error("a tensor map that the driver would refuse");
  TensorMap map{};
  map.word[0] = address;
  std::memcpy(map.word + 1, s.dim, sizeof(s.dim));
  std::memcpy(map.word + 6, s.stride, sizeof(s.stride));
  std::memcpy(map.word + 10, s.box, sizeof(s.box));
  map.word[15] = kMapMagic;
  return map;
}

}  // namespace tilewise::emulator

namespace tilewise::ptx {

using emulator::kWarp;
using emulator::Machine;
using emulator::MBarrier;

// mbarrier.h
void mbarrier_init(u64& bar, u32 arrivals) {
  Machine& m = Machine::now();
  const u32 address = m.shared_offset(&bar);
  m.shared(address, 8, 8, true);
  emulator::mbarriers()[address] = MBarrier{arrivals, arrivals};
}
void mbarrier_init_fence() {}
void mbarrier_arrive(u64& bar) { emulator::arrive(bar, 0); }
void mbarrier_arrive_expect(u64& bar, u32 bytes) { emulator::arrive(bar, bytes); }
void mbarrier_wait(u64& bar, u32 parity) {
  MBarrier& b = emulator::find(bar);
  Machine::now().wait("mbarrier", [&b, parity] { return (b.completed & 1) != (parity & 1); });
  Machine::now().acquire(b.done);
}

// tma.h
void prefetch_map(const TensorMap&) {}
void fence_proxy_async() {}
void tma_load_4d(void* smem, const TensorMap& map, u64& bar, i32 c0, i32 c1, i32 c2, i32 c3, u64 policy) {
  tma_load_5d(smem, map, bar, c0, c1, c2, c3, 0, policy);
}
namespace {

// Visits a box eight elements at a time: their shared address, the row in global memory (null outside the
// tensor), their first column and how many columns there are. Returns the box's bytes.
template <class Visit>
u32 for_each_eight(const TensorMap& map, u32 shared, const std::array<i32, 5>& at, const Visit& visit) {
  Machine& m = Machine::now();
  wgmma::MapShape s;
  if (map.word[15] != emulator::kMapMagic) m.fail("TMA with something that is no tensor map");
  std::memcpy(s.dim, map.word + 1, sizeof(s.dim));
  std::memcpy(s.stride, map.word + 6, sizeof(s.stride));
  std::memcpy(s.box, map.word + 10, sizeof(s.box));
  if (shared % 128) m.fail("TMA needs shared memory that is 128-byte aligned");
  u32 row = 0;
  for (u32 i4 = 0; i4 < s.box[4]; ++i4)
    for (u32 i3 = 0; i3 < s.box[3]; ++i3)
      for (u32 i2 = 0; i2 < s.box[2]; ++i2)
        for (u32 i1 = 0; i1 < s.box[1]; ++i1, ++row) {
          const i64 x[5] = {at[0], i64{at[1]} + i1, i64{at[2]} + i2, i64{at[3]} + i3, i64{at[4]} + i4};
          bool inside = true;
          u64 base = map.word[0];
          for (std::size_t dim = 1; dim < 5; ++dim) {
            inside &= x[dim] >= 0 && x[dim] < i64(s.dim[dim]);
            base += u64(x[dim]) * s.stride[dim - 1];
          }
          for (u32 chunk = 0; chunk < s.box[0] / 8; ++chunk) {
            u32 address = shared + row * s.box[0] * 2 + chunk * 16;
            address ^= (address >> 3) & 0x70;
            visit(address, inside ? reinterpret_cast<unsigned short*>(base) : nullptr, x[0] + chunk * 8,
                  i64(s.dim[0]));
          }
        }
  return row * s.box[0] * 2;
}

}  // namespace

void tma_load_5d(void* smem, const TensorMap& map, u64& bar, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4, u64) {
  Machine& m = Machine::now();
  MBarrier& b = emulator::find(bar);
  b.bytes -= for_each_eight(map, m.shared_offset(smem), {c0, c1, c2, c3, c4},
                            [&m](u32 address, const unsigned short* row, i64 column, i64 columns) {
                              unsigned short x[8] = {};
                              for (i64 i = 0; row && i < 8 && column + i < columns; ++i)
                                x[i] = load_global(row + column + i);
                              std::memcpy(m.shared(address, 16, 16, true), x, 16);
                            });
  m.release(b.arriving);
  if (b.bytes < 0) m.fail("TMA brought more bytes than its mbarrier expects");
  emulator::complete_if_due(b);
}
void tma_store_5d(const TensorMap& map, const void* smem, i32 c0, i32 c1, i32 c2, i32 c3, i32 c4) {
  Machine& m = Machine::now();
  const u32 from = m.shared_offset(smem);
  emulator::products().stores.push_back([&m, &map, from, c0, c1, c2, c3, c4] {
    for_each_eight(map, from, {c0, c1, c2, c3, c4},
                   [&m](u32 address, unsigned short* row, i64 column, i64 columns) {
                     unsigned short x[8];
                     std::memcpy(x, m.shared(address, 16, 16, false), 16);
                     for (i64 i = 0; row && i < 8 && column + i < columns; ++i)
                       store_global(row + column + i, x[i]);
                   });
  });
}
void tma_store_commit() {
  auto& mine = emulator::products();
  for (auto& store : mine.stores) mine.committed_stores.push_back(std::move(store));
  mine.stores.clear();
}
void tma_store_wait_read() {
  auto& mine = emulator::products();
  for (const auto& store : mine.committed_stores) store();
  mine.committed_stores.clear();
}
void tma_store_wait() { tma_store_wait_read(); }

// warpgroup.h
bool elect_one() {
  int nothing = 0;
  Machine::now().collective("elect", nothing, [](const auto&) {});
  return Machine::thread().lane == 0;
}

// wgmma.h
void wgmma_fence() {}
void wgmma(float (*d)[4], int n, Element e, int trans_b, const u32* a_registers, u64 a, u64 b,
           int accumulate) {
  auto& mine = emulator::products();
  emulator::Product p{d, n, e, trans_b, a_registers, {}, a, b, accumulate != 0, {}};
  if (a_registers) std::memcpy(p.a_copy, a_registers, sizeof(p.a_copy));
  bool chained = false;
  for (const auto& x : mine.issued) chained |= x.d == d;
  for (const auto& group : mine.groups)
    for (const auto& x : group) chained |= x.d == d;
  if (!chained) {
    p.before.assign(&d[0][0], &d[0][0] + n / 2);
    for (int t = 0; t < n / 8; ++t)
      for (float& x : d[t]) x = std::nanf("");
  }
  mine.issued.push_back(std::move(p));
}
void wgmma_commit() {
  auto& mine = emulator::products();
  mine.groups.push_back(std::move(mine.issued));
  mine.issued.clear();
}
void wgmma_wait_all() { emulator::wait_products(0); }
void wgmma_wait_all_but_one() { emulator::wait_products(1); }

// memory.h, warp.h
u32 atom_add(u32* pointer, u32 x) {
  check_global(pointer, 4, true);
  const u32 old = *pointer;
  *pointer += x;
  return old;
}
u32 shfl_xor(u32 x, int lane_mask) {
  emulator::Shuffle mine{x, 0, lane_mask};
  Machine::now().collective("shfl.bfly", mine, [](const auto& lanes) {
    for (int i = 0; i < kWarp; ++i)
      lanes[std::size_t(i)]->out = lanes[std::size_t((i ^ lanes[std::size_t(i)]->lane) & 31)]->in;
  });
  return mine.out;
}
u32 shfl_up(u32 x, int delta) {
  emulator::Shuffle mine{x, 0, delta};
  Machine::now().collective("shfl.up", mine, [](const auto& lanes) {
    for (int i = 0; i < kWarp; ++i) {
      auto* e = lanes[std::size_t(i)];
      e->out = lanes[std::size_t(i >= e->lane ? i - e->lane : i)]->in;
    }
  });
  return mine.out;
}
u32 vote_ballot(bool x) {
  emulator::Shuffle mine{x, 0, 0};
  Machine::now().collective("vote.ballot", mine, [](const auto& lanes) {
    u32 bits = 0;
    for (int i = 0; i < kWarp; ++i) bits |= lanes[std::size_t(i)]->in << i;
    for (auto* e : lanes) e->out = bits;
  });
  return mine.out;
}
u32 reduce_max(u32 x) {
  emulator::Shuffle mine{x, 0, 0};
  Machine::now().collective("redux.max", mine, [](const auto& lanes) {
    u32 most = 0;
    for (const auto* e : lanes) most = std::max(most, e->in);
    for (auto* e : lanes) e->out = most;
  });
  return mine.out;
}
u32 low_bits(int count) { return count <= 0 ? 0 : count >= 32 ? ~0u : (1u << count) - 1; }
int set_bits(u32 x) { return __builtin_popcount(x); }
int lowest_bit(u32 x) { return __builtin_ffs(static_cast<int>(x)) - 1; }

}  // namespace tilewise::ptx
