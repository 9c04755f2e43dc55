// The backward's kernels under the emulator against the oracle, by the contract's accuracy rule. Every input
// is poisoned with NaN outside its valid region, every output starts as NaN, and the emulator refuses any
// access outside the tensors.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "backward_cases.h"
#include "backward_configs.h"
#include "backward_kernels.h"
#include "core/error.h"
#include "core/problem.h"
#include "cuda/launch/params.h"
#include "oracle/accuracy.h"

using namespace tilewise;

namespace {

using Case = BackwardCase;

u64 state = 1;
double random_value() {  // roughly normal
  double x = 0;
  for (int i = 0; i < 4; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    x += double(state >> 40) / double(1 << 24) - 0.5;
  }
  return x * 1.7;
}

// Memory of one tensor with a NaN margin around every row.
struct Tensor {
  std::vector<unsigned char> bytes;
  tw_tensor view{};
  tw_dtype dtype;
  std::unique_ptr<emulator::Registered> registered;

  // sizes: outermost first. margin: elements after each innermost row. transposed: innermost stride is not 1.
  Tensor(const char* name, tw_dtype type, std::vector<i64> size, bool writable, int margin = 8,
         bool transposed = false)
      : dtype(type) {
    view.dtype = type, view.ndim = int(size.size()), view.device_type = TW_CPU;
    i64 step = 1;
    if (transposed) {
      for (size_t i = 0; i < size.size(); ++i) view.stride[i] = step, step *= size[i] + 1;
    } else {
      for (size_t i = size.size(); i-- > 0;) {
        view.stride[i] = step;
        const i64 n = i + 1 == size.size() ? (size[i] + 7) / 8 * 8 + margin : size[i];
        step *= n ? n : 1;
      }
    }
    for (size_t i = 0; i < size.size(); ++i) view.size[i] = size[i];
    bytes.assign(size_t(step) * size_of(type) + 64, 0xFF);  // NaN in every floating type
    unsigned char* data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    view.data = data;
    registered = std::make_unique<emulator::Registered>(data, size_t(step) * size_of(type), name, writable);
  }
  void set(std::initializer_list<i64> at, double x) {
    i64 index = 0;
    int i = 0;
    for (const i64 a : at) index += a * view.stride[i++];
    auto* data = static_cast<unsigned char*>(view.data);
    with_type(dtype, [&](auto t) {
      const auto y = from_float<decltype(t)>(float(x));
      std::memcpy(data + size_t(index) * sizeof t, &y, sizeof t);
    });
  }
};

int failures = 0;

void run(const Case& c, emulator::Order order) {
  const Config& config = kBackwardConfigs[c.config];
  state = u64(c.Sq) * 1000003 + u64(c.Sk);
  const tw_dtype type = config.element == Element::fp32   ? TW_FP32
                        : config.element == Element::fp16 ? TW_FP16
                                                          : TW_BF16;

  // Lengths of the sequences; packed tensors have a row after the last sequence.
  std::vector<i32> cu_q{0}, cu_k{0}, used_q, used_k;
  for (int b = 0; b < c.B; ++b) {
    const i32 lq = c.packed ? i32((b * 7 + 3) % 4 == 0 ? 0 : c.Sq - b * 5 % c.Sq) : c.Sq;
    const i32 lk = c.packed ? i32((b * 5 + 2) % 4 == 0 ? 0 : c.Sk - b * 3 % c.Sk) : c.Sk;
    cu_q.push_back(cu_q.back() + lq), cu_k.push_back(cu_k.back() + lk);
    used_q.push_back(c.seqused ? lq - lq / 3 * (b % 2) : lq), used_k.push_back(c.seqused ? lk - lk / 2 : lk);
  }
  const i64 tq = cu_q.back() + 2, tk = cu_k.back() + 2;
  const auto shape = [&](i64 s, i64 t, i64 h, i64 d) {
    return c.packed ? std::vector<i64>{t, h, d} : std::vector<i64>{c.B, s, h, d};
  };
  Tensor q("q", type, shape(c.Sq, tq, c.H, c.D), false, 8, c.transposed),
      k("k", type, shape(c.Sk, tk, c.Hk, c.D), false, 8, c.transposed);
  Tensor v("v", type, shape(c.Sk, tk, c.Hk, c.Dv), false, 16, c.transposed),
      dout("dout", type, shape(c.Sq, tq, c.H, c.Dv), false);
  Tensor out("out", type, shape(c.Sq, tq, c.H, c.Dv), true, 8, c.transposed);
  Tensor dq("dq", type, shape(c.Sq, tq, c.H, c.D), true, 0, c.transposed),
      dk("dk", type, shape(c.Sk, tk, c.Hk, c.D), true);
  Tensor dv("dv", type, shape(c.Sk, tk, c.Hk, c.Dv), true, 8, c.transposed);
  const std::vector<i64> rows = c.packed ? std::vector<i64>{c.H, tq} : std::vector<i64>{c.B, c.H, c.Sq};
  Tensor lse("lse", TW_FP32, rows, true, 0), dlse("dlse", TW_FP32, rows, false, 0);
  const std::vector<i64> score = config.bias ? std::vector<i64>{c.B, 1, c.Sq, c.Sk} : std::vector<i64>{1};
  Tensor bias("bias", TW_FP32, score, false, 3), dbias("dbias", TW_FP32, score, true, 1);
  std::vector<unsigned char> mask(size_t(c.H) * size_t(c.Sq) * size_t(c.Sk));
  const emulator::Registered mask_range(mask.data(), mask.size(), "mask", false);
  std::vector<float> alibi(size_t(c.H)), sink(size_t(c.H)), dsink(size_t(c.H), __builtin_nanf(""));
  const emulator::Registered alibi_range(alibi.data(), alibi.size() * 4, "alibi", false);
  const emulator::Registered sink_range(sink.data(), sink.size() * 4, "sink", false);
  const emulator::Registered dsink_range(dsink.data(), dsink.size() * 4, "dsink", true);
  const emulator::Registered cu_q_range(cu_q.data(), cu_q.size() * 4, "cu_seqlens_q", false),
      cu_k_range(cu_k.data(), cu_k.size() * 4, "cu_seqlens_k", false),
      used_q_range(used_q.data(), used_q.size() * 4, "seqused_q", false),
      used_k_range(used_k.data(), used_k.size() * 4, "seqused_k", false);

  const auto fill = [&](Tensor& t, const std::vector<i32>& cu, const std::vector<i32>& used, i64 heads,
                        i64 columns) {
    for (int b = 0; b < c.B; ++b)
      for (i64 s = 0; s < used[size_t(b)]; ++s)
        for (i64 h = 0; h < heads; ++h)
          for (i64 d = 0; d < columns; ++d) {
            if (c.packed)
              t.set({cu[size_t(b)] + s, h, d}, random_value());
            else
              t.set({b, s, h, d}, random_value());
          }
  };
  fill(q, cu_q, used_q, c.H, c.D), fill(k, cu_k, used_k, c.Hk, c.D), fill(v, cu_k, used_k, c.Hk, c.Dv);
  fill(dout, cu_q, used_q, c.H, c.Dv);
  for (int b = 0; b < c.B; ++b)
    for (i64 s = 0; s < used_q[size_t(b)]; ++s)
      for (i64 h = 0; h < c.H; ++h) {
        if (c.packed)
          dlse.set({h, cu_q[size_t(b)] + s}, random_value());
        else
          dlse.set({b, h, s}, random_value());
      }
  if (config.bias)
    for (i64 b = 0; b < c.B; ++b)
      for (i64 i = 0; i < c.Sq; ++i)
        for (i64 j = 0; j < c.Sk; ++j) {
          const bool low = c.low_bias != 0 && (i % 2 || j < 40);
          bias.set({b, 0, i, j}, low ? c.low_bias : random_value());
        }
  for (size_t n = 0; n < mask.size(); ++n) {  // with queries that see nothing and keys that nobody sees
    const size_t j = n % size_t(c.Sk), i = n / size_t(c.Sk) % size_t(c.Sq);
    mask[n] = i % 11 != 3 && j % 13 != 5 && random_value() > -0.8;
  }
  for (auto& x : alibi) x = float(random_value() * 0.1);
  for (auto& x : sink) x = float(random_value());

  tw_attention a;
  tw_attention_init(&a, sizeof a);
  a.q = q.view, a.k = k.view, a.v = v.view, a.out = out.view, a.lse = lse.view;
  a.dout = dout.view, a.dq = dq.view, a.dk = dk.view, a.dv = dv.view;
  if (c.dlse) a.dlse = dlse.view;
  const auto vector_of = [](void* data, i64 n, tw_dtype t) {
    tw_tensor x{};
    x.data = data, x.dtype = t, x.ndim = 1, x.size[0] = n, x.stride[0] = 1, x.device_type = TW_CPU;
    return x;
  };
  if (config.bias) a.bias = bias.view;
  if (config.dbias) a.dbias = dbias.view;
  if (config.alibi) a.alibi_slopes = vector_of(alibi.data(), c.H, TW_FP32);
  if (c.sink) a.sink = vector_of(sink.data(), c.H, TW_FP32), a.dsink = vector_of(dsink.data(), c.H, TW_FP32);
  if (config.boolean_mask) {
    a.mask = vector_of(mask.data(), c.H, TW_BOOL);
    a.mask.ndim = 4, a.mask.size[0] = 1, a.mask.size[1] = c.H, a.mask.size[2] = c.Sq, a.mask.size[3] = c.Sk;
    a.mask.stride[0] = 0, a.mask.stride[1] = c.Sq * c.Sk, a.mask.stride[2] = c.Sk, a.mask.stride[3] = 1;
  }
  if (c.packed) {
    a.cu_seqlens_q = vector_of(cu_q.data(), c.B + 1, TW_INT32),
    a.cu_seqlens_k = vector_of(cu_k.data(), c.B + 1, TW_INT32);
    a.max_seqlen_q = c.Sq, a.max_seqlen_k = c.Sk;
  }
  if (c.seqused)
    a.seqused_q = vector_of(used_q.data(), c.B, TW_INT32),
    a.seqused_k = vector_of(used_k.data(), c.B, TW_INT32);
  a.options.causal = c.causal, a.options.alignment = c.top_left ? TW_TOP_LEFT : TW_BOTTOM_RIGHT;
  a.options.window_left = c.left, a.options.window_right = c.right;
  if (config.softcap) a.options.softcap = 3;
  if (config.dropout) a.options.dropout_p = 0.25, a.options.seed = 77, a.options.offset = 5;
  if (c.scale != 0) a.options.scale = c.scale;
  const Problem p = make_problem(a, TW_BACKWARD);
  // Rows that the masks hide altogether take no part, whatever they hold.
  const auto poison = [&](Tensor& t, const std::vector<i32>& cu, int b, i64 s, i64 h, i64 columns) {
    for (i64 d = 0; d < columns; ++d) {
      const double x = d % 2 ? std::nan("") : std::numeric_limits<double>::infinity();
      c.packed ? t.set({cu[size_t(b)] + s, h, d}, x) : t.set({b, s, h, d}, x);
    }
  };
  for (int b = 0; b < c.B && (config.masked || config.boolean_mask); ++b) {
    const Band<i64> band = p.band(used_q[size_t(b)], used_k[size_t(b)]);
    std::vector<bool> seen(size_t(c.Hk * band.sk), false);
    for (i64 h = 0; h < c.H; ++h)
      for (i64 i = 0; i < band.sq; ++i) {
        bool sees = false;
        for (i64 j = 0; j < band.sk; ++j) {
          if (!band.sees(i, j) || (config.boolean_mask && !mask[size_t((h * c.Sq + i) * c.Sk + j)])) continue;
          sees = seen[size_t(h / p.group() * band.sk + j)] = true;
        }
        if (!sees) poison(q, cu_q, b, i, h, c.D), poison(dout, cu_q, b, i, h, c.Dv);
      }
    for (i64 h = 0; h < c.Hk; ++h)
      for (i64 j = 0; j < band.sk; ++j)
        if (!seen[size_t(h * band.sk + j)]) poison(k, cu_k, b, j, h, c.D), poison(v, cu_k, b, j, h, c.Dv);
  }
  const double infinity = std::numeric_limits<double>::infinity();
  if (c.visible_nans || c.infinite_dout) {  // each shows exactly where exact arithmetic puts it
    const auto put = [&](Tensor& t, i64 s, i64 h, i64 d, double x) {
      c.packed ? t.set({s, h, d}, x) : t.set({0, s, h, d}, x);
    };
    if (c.visible_nans) {
      put(q, 20, 0, 3, std::nan("")), put(k, 30, 0, 5, std::nan("")), put(v, 40, 0, 7, std::nan(""));
      put(dout, 50, 0, 9, std::nan("")), put(v, 41, 0, 11, infinity);
    } else {
      put(dout, 50, 0, 9, infinity), put(dout, 45, c.H - 1, 4, -infinity), put(dout, 44, 0, 9, -infinity);
    }
  }

  AttentionParams params = cuda::attention_params(p);
  const BackwardWorkspace w = backward_workspace(params, config);
  std::vector<float> accum(size_t(w.dq_accum) + 4, __builtin_nanf("")),
      delta(size_t(w.statistics) + 4, __builtin_nanf("")), log2(delta), rest(delta);
  const auto aligned = [](std::vector<float>& x) {
    return reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(x.data()) + 15) / 16 * 16);
  };
  u32 spoiled = 7;
  const emulator::Registered spoiled_range(&spoiled, 4, "spoiled", true);
  params.spoiled = &spoiled;
  params.dq_accum = aligned(accum), params.delta = aligned(delta), params.lse_log2 = aligned(log2);
  params.lse_rest = aligned(rest);
  const emulator::Registered accum_range(params.dq_accum, size_t(w.dq_accum) * 4, "dq_accum", true),
      delta_range(params.delta, size_t(w.statistics) * 4, "delta", true),
      log2_range(params.lse_log2, size_t(w.statistics) * 4, "lse_log2", true),
      rest_range(params.lse_rest, size_t(w.statistics) * 4, "lse_rest", true);
  std::string problem;
  const auto all = oracle::all_rows(p);
  // out and lse as a forward writes them.
  const oracle::Forward f = oracle::forward(p, oracle::Precision::exact, all);
  for (size_t n = 0; n < all.size(); ++n) {
    const auto& r = all[n];
    *p.lse.at(r.b, r.h, r.s) = float(f.lse[n]);
    for (i64 d = 0; d < c.Dv; ++d) {
      if (c.packed)
        out.set({r.s, r.h, d}, f.out[n * size_t(c.Dv) + size_t(d)]);
      else
        out.set({r.b, r.s, r.h, d}, f.out[n * size_t(c.Dv) + size_t(d)]);
    }
  }

  if (config.dbias) {  // fp32 with plain strides: the additions may go to the caller's tensor itself
    params.dbias_accum = reinterpret_cast<float*>(p.dbias.data), params.dbias_stride = p.dbias.stride;
    for (i64 b = 0; b < c.B; ++b)
      for (i64 i = 0; i < c.Sq; ++i)
        for (i64 j = 0; j < c.Sk; ++j) dbias.set({b, 0, i, j}, 0);
  }
  // Rows that no sequence covers are another kernel's (common/uncovered.cuh).
  const auto clear_uncovered = [&](Tensor& t, const std::vector<i32>& cu, const std::vector<i32>& used, i64 S,
                                   i64 T, i64 heads, i64 columns) {
    std::vector<bool> covered(size_t(c.packed ? T : c.B * S), false);
    for (int b = 0; b < c.B; ++b)
      for (i64 s = 0; s < used[size_t(b)]; ++s)
        covered[size_t(c.packed ? cu[size_t(b)] + s : b * S + s)] = true;
    for (size_t r = 0; r < covered.size(); ++r)
      for (i64 h = 0; h < heads && !covered[r]; ++h)
        for (i64 d = 0; d < columns; ++d) {
          if (c.packed)
            t.set({i64(r), h, d}, 0);
          else
            t.set({i64(r) / S, i64(r) % S, h, d}, 0);
        }
  };
  clear_uncovered(dq, cu_q, used_q, c.Sq, tq, c.H, c.D),
      clear_uncovered(dk, cu_k, used_k, c.Sk, tk, c.Hk, c.D);
  clear_uncovered(dv, cu_k, used_k, c.Sk, tk, c.Hk, c.Dv);

  try {
    emulate_backward(params, config, order);
    const auto verdicts = oracle::judge_backward(p);
    if (!oracle::all_pass(verdicts)) problem += oracle::messages(verdicts, true);
  } catch (const emulator::Error& e) {
    problem = e.what();
  }
  if (!problem.empty()) {
    std::printf("FAILED %s (order %d):\n%s\n", c.name, int(order), problem.c_str());
    ++failures;
  }
}

}  // namespace

int main(int argc, char** argv) {
  for (const Case& c : backward_cases()) {
    if (argc > 1 && std::string(c.name) != argv[1]) continue;
    for (const auto order : {emulator::Order::forward, emulator::Order::reverse}) run(c, order);
  }
  std::printf(failures ? "%d failures\n" : "backward: all passed\n", failures);
  return failures != 0;
}
