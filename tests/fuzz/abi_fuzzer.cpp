// Arbitrary arguments of the C interface: a mostly sensible problem whose fields the input then spoils. A
// tensor gets memory only if all its elements lie inside that memory; whatever the library says, it must not
// touch anything else.
#include <algorithm>
#include <array>
#include <memory>

#include "core/dtype.h"
#include "fuzz/reader.h"
#include "tilewise/tilewise.h"

namespace tilewise::fuzz {
namespace {

constexpr int64_t kBytes = 1 << 14;  // memory of each tensor
constexpr int kTensors = 24;

template <size_t kAlignment>
struct AlignedDelete {
  void operator()(unsigned char* p) const { ::operator delete[](p, std::align_val_t(kAlignment)); }
};
template <size_t kAlignment>
using Memory = std::unique_ptr<unsigned char[], AlignedDelete<kAlignment>>;

struct Arena {
  Memory<64> memory[kTensors];
  int used = 0;
  unsigned char* next() {
    if (!memory[used]) memory[used].reset(new (std::align_val_t(64)) unsigned char[kBytes]);
    return memory[used++].get();
  }
};

// The memory for a view, or null when its elements do not fit.
void* place(const tw_tensor& t, Arena& arena, uint8_t fill) {
  unsigned char* base = arena.next();
  std::fill_n(base, kBytes, fill);
  if (t.ndim < 1 || t.ndim > 4) return base;
  __int128 first = 0, last = 0;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.size[i] <= 0) return base;  // no element at all
    const __int128 reach = __int128(t.size[i] - 1) * t.stride[i];
    (reach < 0 ? first : last) += reach;
  }
  const __int128 element = std::max<__int128>(1, __int128(size_of(tw_dtype(t.dtype))));
  if ((last - first + 1) * element > kBytes) return nullptr;
  return base + int64_t(-first * element);
}

tw_tensor tensor(Reader& in, tw_dtype dtype, std::initializer_list<int64_t> size) {
  tw_tensor t{};
  t.dtype = dtype;
  t.ndim = int32_t(size.size());
  std::copy(size.begin(), size.end(), t.size);
  int64_t step = 1;
  for (int i = t.ndim - 1; i >= 0; --i) {
    t.stride[i] = step;
    step *= std::max<int64_t>(t.size[i], 1);
  }
  if (!in.chance(6)) return t;
  switch (in.byte() % 7) {  // spoil one thing
    case 0: t.dtype = in.byte(); break;
    case 1: t.ndim = int32_t(in.byte()) - 2; break;
    case 2: t.size[in.upto(3)] = in.byte() - 8; break;
    case 3: t.size[in.upto(3)] = in.raw<int64_t>(); break;
    case 4: t.stride[in.upto(3)] = int8_t(in.byte()); break;
    case 5: t.stride[in.upto(3)] = in.raw<int64_t>(); break;
    case 6: t.device_type = in.byte(); break;
  }
  return t;
}

void index_tensor(Reader& in, tw_tensor& t, Arena& arena, int64_t n, bool offsets) {
  const tw_dtype dtype = in.chance(2) ? TW_INT32 : TW_INT64;
  t = tensor(in, dtype, {n});
  t.data = place(t, arena, 0);
  if (!t.data || t.dtype != dtype || t.ndim != 1 || t.size[0] != n) return;
  int64_t x = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t value = in.chance(16) ? in.raw<int64_t>() : offsets ? x : in.upto(6);
    x += in.upto(4);
    if (dtype == TW_INT32)
      static_cast<int32_t*>(t.data)[i * t.stride[0]] = int32_t(value);
    else
      static_cast<int64_t*>(t.data)[i * t.stride[0]] = value;
  }
}

void options(Reader& in, tw_options& o) {
  o.causal = in.byte() % 2;
  o.alignment = in.chance(8) ? in.byte() : in.byte() % 2;
  if (in.chance(2)) o.window_left = in.chance(4) ? in.raw<int64_t>() : in.upto(9) - 1;
  if (in.chance(2)) o.window_right = in.chance(4) ? in.raw<int64_t>() : in.upto(9) - 1;
  if (in.chance(3)) o.scale = in.chance(3) ? in.raw<double>() : in.byte() / 16.0;
  if (in.chance(3)) o.softcap = in.chance(3) ? in.raw<double>() : in.byte() / 16.0;
  if (in.chance(3)) o.dropout_p = in.chance(3) ? in.raw<double>() : in.byte() / 256.0;
  if (in.chance(4)) o.seed = in.raw<uint64_t>();
  o.threads = in.chance(16) ? int32_t(in.byte()) - 8 : 1;
  o.batch_invariant = in.byte() % 2;
  o.deterministic = in.byte() % 2;
  static const char* const kNames[] = {nullptr,       "",     "scalar", "avx2", "avx512",
                                       "avx512_bf16", "neon", "fa2",    "?"};
  o.algorithm = kNames[in.byte() % std::size(kNames)];
}

void optional_tensors(Reader& in, tw_attention& a, Arena& arena, const std::array<int64_t, 4>& score) {
  auto add = [&](tw_tensor& t, tw_dtype dtype, std::initializer_list<int64_t> size) {
    t = tensor(in, dtype, size);
    t.data = place(t, arena, in.byte());
  };
  auto part = [&](int64_t n) { return in.chance(2) ? int64_t(1) : n; };
  const auto [b, h, sq, sk] = score;
  if (in.chance(3)) add(a.bias, in.chance(2) ? TW_FP32 : TW_BF16, {part(b), part(h), part(sq), part(sk)});
  if (in.chance(3)) add(a.mask, TW_BOOL, {part(b), part(h), part(sq), part(sk)});
  if (in.chance(4)) add(a.alibi_slopes, TW_FP32, {h});
  if (in.chance(4)) add(a.sink, TW_FP32, {h});
}

void run(Reader& in) {
  Arena arena;
  tw_attention a;
  tw_attention_init(&a, sizeof a);
  const tw_pass pass = in.chance(16) ? tw_pass(in.byte()) : in.chance(2) ? TW_BACKWARD : TW_FORWARD;
  const tw_dtype dtype = tw_dtype(1 + in.byte() % 3);
  const int64_t b = in.upto(3), sq = in.upto(20), sk = in.upto(40), hk = in.upto(2),
                h = hk * (1 + in.upto(2)), d = 1 + in.upto(9), dv = 1 + in.upto(9);
  const bool packed = in.chance(3);
  auto rows = [&](tw_tensor& t, int64_t s, int64_t heads, int64_t width) {
    t = packed ? tensor(in, dtype, {s, heads, width}) : tensor(in, dtype, {b, s, heads, width});
    t.data = place(t, arena, uint8_t(in.byte() & 0x3F));
  };
  auto lse = [&](tw_tensor& t) {
    t = packed ? tensor(in, TW_FP32, {h, sq}) : tensor(in, TW_FP32, {b, h, sq});
    t.data = place(t, arena, 0);
  };
  rows(a.q, sq, h, d), rows(a.k, sk, hk, d), rows(a.v, sk, hk, dv), rows(a.out, sq, h, dv);
  if (pass == TW_BACKWARD || in.chance(2)) lse(a.lse);
  if (packed) {
    index_tensor(in, a.cu_seqlens_q, arena, b + 1, true);
    index_tensor(in, a.cu_seqlens_k, arena, b + 1, true);
    if (in.chance(4)) a.max_seqlen_q = in.byte() - 4, a.max_seqlen_k = in.byte() - 4;
  }
  if (in.chance(4)) index_tensor(in, a.seqused_q, arena, b, false);
  if (in.chance(4)) index_tensor(in, a.seqused_k, arena, b, false);
  optional_tensors(in, a, arena, {b, h, sq, sk});
  if (pass == TW_BACKWARD) {
    rows(a.dout, sq, h, dv), rows(a.dq, sq, h, d), rows(a.dk, sk, hk, d), rows(a.dv, sk, hk, dv);
    if (in.chance(2)) lse(a.dlse);
    if (a.bias.dtype && in.chance(2)) {
      a.dbias = a.bias;
      a.dbias.data = place(a.dbias, arena, 0);
    }
    if (a.sink.dtype && in.chance(2)) {
      a.dsink = a.sink;
      a.dsink.data = place(a.dsink, arena, 0);
    }
  }
  options(in, a.options);
  if (in.chance(32)) a.struct_size = in.raw<uint16_t>() % (sizeof a + 1);

  size_t bytes = 0;
  if (tw_attention_workspace(&a, pass, &bytes) != TW_OK || bytes > (size_t{1} << 28)) return;
  const Memory<256> workspace(new (std::align_val_t(256)) unsigned char[bytes + 1]);
  tw_attention_run(&a, pass, workspace.get(), in.chance(16) ? bytes / 2 : bytes, nullptr);
}

}  // namespace
}  // namespace tilewise::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tilewise::fuzz::Reader in(data, size);
  tilewise::fuzz::run(in);
  return 0;
}
