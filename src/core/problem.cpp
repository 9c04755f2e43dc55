#include "core/problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <tuple>
#include <type_traits>

#include "core/error.h"
#include "core/overlap.h"

namespace tilewise {
namespace {

std::string shape_of(const tw_tensor& t) {
  std::string s = "(";
  for (int i = 0; i < t.ndim && i < 4; ++i) s += (i ? ", " : "") + std::to_string(t.size[i]);
  return s + ")";
}

bool given(const tw_tensor& t) { return t.dtype != TW_DTYPE_NONE; }

i64 elements(const tw_tensor& t) {
  i64 n = 1;
  for (int i = 0; i < t.ndim; ++i) n *= t.size[i];
  return n;
}

constexpr i64 kMaxOffset = i64{1} << 60;  // elements; keeps every byte offset inside 64 bits

// What every tensor must satisfy, whatever it is for.
void check_tensor(const char* name, const tw_tensor& t) {
  if (t.dtype < TW_DTYPE_NONE || t.dtype > TW_INT64)
    invalid(name, ": dtype ", t.dtype,
            " is unknown; use TW_FP32, TW_FP16, TW_BF16, TW_BOOL, TW_INT32 or TW_INT64");
  if (t.ndim < 1 || t.ndim > 4) invalid(name, ": ", t.ndim, " dimensions; tensors have 1 to 4");
  i64 first = 0, last = 0, count = 1;
  for (int i = 0; i < t.ndim; ++i) {
    if (t.size[i] < 0) invalid(name, ": size[", i, "] is ", t.size[i], "; sizes are at least 0");
    if (t.size[i] > kMaxOffset) invalid(name, ": size[", i, "] is ", t.size[i], "; the limit is 2^60");
    if (t.size[i] < 2) {
      count = t.size[i] ? count : 0;
      continue;
    }
    const i64 stride = t.stride[i], limit = kMaxOffset / t.size[i];
    if (stride > limit || stride < -limit)
      invalid(name, ": stride[", i, "] is ", stride, " with size ", t.size[i],
              "; the tensor would span more than 2^60 elements");
    (stride < 0 ? first : last) += (t.size[i] - 1) * stride;
    if (last > kMaxOffset || first < -kMaxOffset) invalid(name, ": spans more than 2^60 elements");
    if (count > kMaxOffset / t.size[i]) invalid(name, ": has more than 2^60 elements, shape ", shape_of(t));
    count *= t.size[i];
  }
  if (t.device_type != 0 && t.device_type != TW_CPU && t.device_type != TW_CUDA)
    invalid(name, ": device_type ", t.device_type, " is unknown; use TW_CPU (1) or TW_CUDA (2)");
}

void check_dtype(const char* name, const tw_tensor& t, tw_dtype want, const char* like) {
  if (t.dtype != want)
    invalid(name, ": dtype ", name_of(tw_dtype(t.dtype)), "; must be ", name_of(want), like);
}

// Refuses a shape other than the expected one; the message shows both.
void check_shape(const char* name, const tw_tensor& t, std::initializer_list<i64> want, const char* meaning) {
  const bool same = t.ndim == int(want.size()) && std::equal(want.begin(), want.end(), t.size);
  if (same) return;
  std::string s;
  for (i64 n : want) s += (s.empty() ? "(" : ", ") + std::to_string(n);
  invalid(name, ": shape ", shape_of(t), "; must be ", meaning, " = ", s, ")");
}

void check_writable(const char* name, const tw_tensor& t) {
  if (!elements(t)) return;
  if (const int i = self_overlap(t); i >= 0)
    invalid(name, ": stride[", i, "] is ", t.stride[i], " with size ", t.size[i],
            ", so different elements share memory; an output needs memory of its own for each element");
}

View view_of(const tw_tensor& t, bool packed) {
  View v{nullptr, tw_dtype(t.dtype), {}};
  const i64* s = t.stride;
  v.stride = packed ? Strides{0, s[0], s[1], s[2]} : Strides{s[0], s[1], s[2], s[3]};
  return v;
}

RowView rows_of(const tw_tensor& t, bool packed) {
  const i64* s = t.stride;
  return packed ? RowView{nullptr, 0, s[0], s[1], true} : RowView{nullptr, s[0], s[1], s[2], true};
}

// A tensor broadcastable to (B, H, Sq, Sk): missing leading dimensions and sizes of 1 broadcast.
ScoreView scores_of(const char* name, const tw_tensor& t, const Problem& p) {
  ScoreView v{nullptr, tw_dtype(t.dtype), {}, {1, 1, 1, 1}};
  const i64 want[4] = {p.B, p.H, p.Sq, p.Sk};
  i64 stride[4] = {};
  const int lead = 4 - t.ndim;
  for (int i = 0; i < t.ndim; ++i) {
    const i64 n = t.size[i];
    // Packed: positions count inside a sequence; sequences() checks the reach where the metadata is host
    // memory.
    const bool reaches = p.packed && lead + i >= 2 && (p.device == TW_CPU || n >= want[lead + i]);
    if (n != want[lead + i] && n != 1 && !reaches)
      invalid(name, ": shape ", shape_of(t), " does not broadcast to (B, H, Sq, Sk) = (", want[0], ", ",
              want[1], ", ", want[2], ", ", want[3], "); size[", i, "] must be ", want[lead + i], " or 1");
    v.size[lead + i] = n;
    stride[lead + i] = n == 1 ? 0 : t.stride[i];
  }
  v.stride = {stride[0], stride[1], stride[2], stride[3]};
  return v;
}

void check_sizes(const tw_attention& a, Problem& p) {
  const int rank = p.packed ? 3 : 4;
  const char* layout[2] = {"(B, S, H, D)", "(T, H, D), because cu_seqlens are given"};
  const std::pair<const char*, const tw_tensor*> inputs[] = {{"q", &a.q}, {"k", &a.k}, {"v", &a.v}};
  for (auto& [name, t] : inputs)
    if (t->ndim != rank)
      invalid(name, ": ", t->ndim, " dimensions, shape ", shape_of(*t), "; must be ", layout[p.packed]);

  const i64 *q = a.q.size, *k = a.k.size, *v = a.v.size;
  const int s = p.packed ? 0 : 1;  // index of the sequence dimension
  p.H = q[s + 1], p.D = q[s + 2], p.Hk = k[s + 1], p.Dv = v[s + 2];
  if (p.D < 1) invalid("q: head dim is ", p.D, "; must be at least 1");
  if (p.Dv < 1) invalid("v: head dim is ", p.Dv, "; must be at least 1");
  if (k[s + 2] != p.D) invalid("k: head dim is ", k[s + 2], "; must be q's, ", p.D);
  if (v[s + 1] != p.Hk) invalid("v: ", v[s + 1], " heads; must be k's, ", p.Hk);
  if (v[s] != k[s]) invalid("v: ", v[s], " keys; must be as many as k has, ", k[s]);
  if (p.H && (!p.Hk || p.H % p.Hk))
    invalid("k: ", p.Hk, " key/value heads; must divide the ", p.H, " query heads (1 to ", p.H, ")");
  if (p.packed) {
    p.B = a.cu_seqlens_q.size[0] - 1;
    p.total_q = p.Sq = q[0];
    p.total_k = p.Sk = k[0];
  } else {
    p.B = q[0], p.Sq = q[1], p.Sk = k[1];
    if (k[0] != p.B) invalid("k: batch ", k[0], "; must be q's, ", p.B);
    if (v[0] != p.B) invalid("v: batch ", v[0], "; must be q's, ", p.B);
    p.total_q = p.B * p.Sq, p.total_k = p.B * p.Sk;
  }
  if (std::max(p.Sq, p.Sk) >= kMaxLength)
    invalid(p.Sq > p.Sk ? "q" : "k", ": length ", std::max(p.Sq, p.Sk),
            "; the limit is 2^29 - 1 = 536870911");
  if (std::max({p.B, p.H, p.D, p.Dv}) > INT32_MAX)
    invalid("q: a size exceeds 2^31 - 1, shape ", shape_of(a.q));
}

IndexView index_of(const char* name, const tw_tensor& t, i64 n, const char* meaning) {
  if (t.dtype != TW_INT32 && t.dtype != TW_INT64)
    invalid(name, ": dtype ", name_of(tw_dtype(t.dtype)), "; must be int32 or int64");
  check_shape(name, t, {n}, meaning);
  return {nullptr, tw_dtype(t.dtype), t.stride[0]};
}

void read_lengths(const tw_attention& a, Problem& p) {
  if (p.packed) {
    p.cu_seqlens_q = index_of("cu_seqlens_q", a.cu_seqlens_q, p.B + 1, "(B + 1)");
    p.cu_seqlens_k = index_of("cu_seqlens_k", a.cu_seqlens_k, p.B + 1, "(B + 1)");
    auto longest = [](const char* name, i64 max, i64 total) {
      if (max < 0) invalid(name, ": ", max, "; must be at least 0 (0 = unknown)");
      return max == 0 ? total : std::min(max, total);
    };
    p.Sq = longest("max_seqlen_q", a.max_seqlen_q, p.total_q);
    p.Sk = longest("max_seqlen_k", a.max_seqlen_k, p.total_k);
  }
  if (given(a.seqused_q)) p.seqused_q = index_of("seqused_q", a.seqused_q, p.B, "(B)");
  if (given(a.seqused_k)) p.seqused_k = index_of("seqused_k", a.seqused_k, p.B, "(B)");
}

void read_modifiers(const tw_attention& a, Problem& p) {
  if (given(a.bias)) {
    if (!is_floating(tw_dtype(a.bias.dtype)))
      invalid("bias: dtype ", name_of(tw_dtype(a.bias.dtype)),
              "; must be fp32, fp16 or bf16 (a boolean mask goes to `mask`)");
    p.bias = scores_of("bias", a.bias, p);
  }
  if (given(a.mask)) {
    check_dtype("mask", a.mask, TW_BOOL, " (true = visible; an additive mask goes to `bias`)");
    p.mask = scores_of("mask", a.mask, p);
  }
  if (given(a.alibi_slopes)) {
    const tw_tensor& t = a.alibi_slopes;
    check_dtype("alibi_slopes", t, TW_FP32, "");
    if (t.ndim == 1)
      check_shape("alibi_slopes", t, {p.H}, "(H)");
    else
      check_shape("alibi_slopes", t, {p.B, p.H}, "(H) or (B, H)");
    p.has_alibi = true;
    p.alibi_b = t.ndim == 2 ? t.stride[0] : 0;
    p.alibi_h = t.stride[t.ndim - 1];
  }
  if (given(a.sink)) {
    check_dtype("sink", a.sink, TW_FP32, "");
    check_shape("sink", a.sink, {p.H}, "(H)");
    p.has_sink = true;
    p.sink_h = a.sink.stride[0];
  }
}

void read_rng_state(const tw_tensor& t, Problem& p) {
  if (!given(t)) return;
  if (p.device != TW_CPU)
    invalid(
        "rng_state: the tensors are on a GPU, where nothing is read back; leave it out and pass the "
        "forward's ",
        "seed and offset, or its philox_state");
  check_dtype("rng_state", t, TW_INT64, "");
  check_shape("rng_state", t, {3}, "(seed, offset, bits of dropout_p)");
  p.has_rng_state = true;
  p.rng_state_step = t.stride[0];
}

void check_window(const char* name, i64 w) {
  if (w < -1) invalid(name, ": ", w, "; must be -1 (unbounded) or a number of keys from 0 up");
}

void read_options(const tw_options& o, Problem& p) {
  p.scale = float(std::isnan(o.scale) ? 1 / std::sqrt(double(p.D)) : o.scale);
  if (!std::isfinite(p.scale)) invalid("scale: ", o.scale, "; must be finite in fp32 (NaN = 1 / sqrt(D))");
  if (!(o.softcap >= 0) || !std::isfinite(float(o.softcap)))
    invalid("softcap: ", o.softcap, "; must be a finite number above 0, or 0 for off");
  p.softcap = float(o.softcap);
  if (o.softcap > 0 && p.softcap == 0)
    invalid("softcap: ", o.softcap, " is 0 in fp32; the smallest is 1.4e-45");
  if (o.alignment != TW_BOTTOM_RIGHT && o.alignment != TW_TOP_LEFT)
    invalid("alignment: ", o.alignment, "; must be TW_BOTTOM_RIGHT (0) or TW_TOP_LEFT (1)");
  check_window("window_left", o.window_left);
  check_window("window_right", o.window_right);
  p.causal = o.causal != 0;
  p.top_left = o.alignment == TW_TOP_LEFT;
  p.window_left = o.window_left;
  p.window_right = o.window_right;
  if (!(o.dropout_p >= 0 && o.dropout_p < 1)) invalid("dropout_p: ", o.dropout_p, "; must be in [0, 1)");
  p.dropout_p = o.dropout_p;
  p.deterministic = o.deterministic != 0;
  p.batch_invariant = o.batch_invariant != 0;
  p.check_metadata = o.check_metadata != 0;
  if (o.threads < 0 || o.threads > 4096)
    invalid("threads: ", o.threads, "; must be 1 to 4096, or 0 for all cores");
  p.threads = o.threads;
}

constexpr tw_tensor tw_attention::*kTensors[] = {&tw_attention::q,
                                                 &tw_attention::k,
                                                 &tw_attention::v,
                                                 &tw_attention::out,
                                                 &tw_attention::lse,
                                                 &tw_attention::bias,
                                                 &tw_attention::mask,
                                                 &tw_attention::alibi_slopes,
                                                 &tw_attention::sink,
                                                 &tw_attention::cu_seqlens_q,
                                                 &tw_attention::cu_seqlens_k,
                                                 &tw_attention::seqused_q,
                                                 &tw_attention::seqused_k,
                                                 &tw_attention::dout,
                                                 &tw_attention::dlse,
                                                 &tw_attention::dq,
                                                 &tw_attention::dk,
                                                 &tw_attention::dv,
                                                 &tw_attention::dbias,
                                                 &tw_attention::dsink,
                                                 &tw_attention::rng_state};

struct Operand {
  const char* name;
  const tw_tensor* tensor;
  bool output;
};

// What the caller gave of the tensors that a pass uses, q first.
class Operands {
 public:
  Operands(const tw_attention& a, tw_pass pass) {
    const bool backward = pass == TW_BACKWARD;
    const auto add = [&](const char* name, const tw_tensor& t, bool output) {
      if (given(t)) all_[count_++] = {name, &t, output};
    };
    add("q", a.q, false), add("k", a.k, false), add("v", a.v, false);
    add("out", a.out, !backward), add("lse", a.lse, !backward);
    add("bias", a.bias, false), add("mask", a.mask, false);
    add("alibi_slopes", a.alibi_slopes, false), add("sink", a.sink, false);
    add("cu_seqlens_q", a.cu_seqlens_q, false), add("cu_seqlens_k", a.cu_seqlens_k, false);
    add("seqused_q", a.seqused_q, false), add("seqused_k", a.seqused_k, false);
    add("rng_state", a.rng_state, !backward);
    if (!backward) return;
    add("dout", a.dout, false), add("dlse", a.dlse, false);
    add("dq", a.dq, true), add("dk", a.dk, true), add("dv", a.dv, true);
    add("dbias", a.dbias, true), add("dsink", a.dsink, true);
  }
  const Operand* begin() const { return all_; }
  const Operand* end() const { return all_ + count_; }

 private:
  Operand all_[21];
  size_t count_ = 0;
};

void require(const tw_tensor& t, const char* name, tw_pass pass) {
  if (!given(t))
    invalid(name, ": missing; the ", pass == TW_FORWARD ? "forward" : "backward", " pass needs it");
}

void check_operands(const Operands& all, Problem& p) {
  for (const Operand& o : all) {
    check_tensor(o.name, *o.tensor);
    if (o.output) check_writable(o.name, *o.tensor);
  }
  const tw_tensor& q = *all.begin()->tensor;
  p.device = q.device_type == TW_CUDA ? TW_CUDA : TW_CPU;
  p.device_index = p.device == TW_CUDA ? q.device_index : 0;
  for (const Operand& o : all) {
    const bool cuda = o.tensor->device_type == TW_CUDA;
    if (cuda != (p.device == TW_CUDA) || (cuda && o.tensor->device_index != p.device_index)) {
      auto where = [](bool on_cuda, int i) {
        return on_cuda ? cat("CUDA device ", i) : std::string("the CPU");
      };
      invalid(o.name, ": on ", where(cuda, o.tensor->device_index), " while q is on ",
              where(p.device == TW_CUDA, p.device_index), "; all tensors must be on one device");
    }
  }
}

// Data pointers: whole elements, and nobody else's where they are written to.
void check_memory(const Operands& all) {
  for (const Operand& o : all) {
    const size_t bytes = size_of(tw_dtype(o.tensor->dtype));
    if (reinterpret_cast<uintptr_t>(o.tensor->data) % bytes)
      invalid(o.name, ": address ", o.tensor->data, " is not a multiple of the element size, ", bytes,
              " bytes");
  }
  Extent extents[21];
  const auto extent = [&](const Operand& o) -> const Extent& { return extents[&o - all.begin()]; };
  for (const Operand& o : all) extents[&o - all.begin()] = extent_of(*o.tensor);
  for (const Operand& o : all) {
    if (!o.output) continue;
    for (const Operand& other : all)
      if (&other != &o && extent(o).touches(extent(other)) && may_overlap(*o.tensor, *other.tensor))
        invalid(o.name, ": shares memory with ", other.name, "; give ", o.name, " a buffer of its own");
  }
}

// What may change from call to call of a plan: memory, and the stream of random numbers.
void take_memory(const tw_attention& a, Problem& p) {
  const auto take = [](auto*& data, const tw_tensor& t) {
    if (given(t)) data = static_cast<std::remove_reference_t<decltype(data)>>(t.data);
  };
  take(p.q.data, a.q), take(p.k.data, a.k), take(p.v.data, a.v), take(p.out.data, a.out);
  take(p.lse.data, a.lse), take(p.bias.data, a.bias), take(p.mask.data, a.mask);
  take(p.alibi, a.alibi_slopes), take(p.sink, a.sink);
  take(p.cu_seqlens_q.data, a.cu_seqlens_q), take(p.cu_seqlens_k.data, a.cu_seqlens_k);
  take(p.seqused_q.data, a.seqused_q), take(p.seqused_k.data, a.seqused_k);
  take(p.rng_state, a.rng_state);
  if (p.pass == TW_BACKWARD) {
    take(p.dout.data, a.dout), take(p.dlse.data, a.dlse);
    take(p.dq.data, a.dq), take(p.dk.data, a.dk), take(p.dv.data, a.dv);
    take(p.dbias.data, a.dbias), take(p.dsink, a.dsink);
  }
  const tw_options& o = a.options;
  p.seed = o.seed;
  p.offset = o.offset;
  p.philox_state = reinterpret_cast<const u64*>(o.philox_state);
  p.algorithm = o.algorithm && *o.algorithm ? o.algorithm : nullptr;
  p.run_parallel = o.run_parallel;
  p.parallel_context = o.parallel_context;
}

void read_gradients(const tw_attention& a, Problem& p, const char* out_meaning) {
  auto same_shape = [](const char* name, const tw_tensor& t, const tw_tensor& like, const char* meaning) {
    if (t.ndim != like.ndim || !std::equal(t.size, t.size + t.ndim, like.size))
      invalid(name, ": shape ", shape_of(t), "; must be that of ", meaning, ", ", shape_of(like));
    check_dtype(name, t, tw_dtype(like.dtype), " like the other tensors");
  };
  same_shape("dout", a.dout, a.out, out_meaning);
  same_shape("dq", a.dq, a.q, "q");
  same_shape("dk", a.dk, a.k, "k");
  same_shape("dv", a.dv, a.v, "v");
  p.dout = view_of(a.dout, p.packed);
  p.dq = view_of(a.dq, p.packed);
  p.dk = view_of(a.dk, p.packed);
  p.dv = view_of(a.dv, p.packed);
  if (given(a.dlse)) {
    same_shape("dlse", a.dlse, a.lse, "lse");
    p.dlse = rows_of(a.dlse, p.packed);
  }
  if (given(a.dbias)) {
    if (!given(a.bias)) invalid("dbias: given without bias; pass the forward's bias");
    if (a.dbias.dtype != TW_FP32 && a.dbias.dtype != a.bias.dtype)
      invalid("dbias: dtype ", name_of(tw_dtype(a.dbias.dtype)), "; must be fp32 or bias's ",
              name_of(tw_dtype(a.bias.dtype)));
    if (a.dbias.ndim != a.bias.ndim || !std::equal(a.bias.size, a.bias.size + a.bias.ndim, a.dbias.size))
      invalid("dbias: shape ", shape_of(a.dbias), "; must be that of bias, ", shape_of(a.bias));
    p.dbias = scores_of("dbias", a.dbias, p);
  }
  if (given(a.dsink)) {
    if (!given(a.sink)) invalid("dsink: given without sink; pass the forward's sink");
    check_dtype("dsink", a.dsink, TW_FP32, "");
    check_shape("dsink", a.dsink, {p.H}, "(H)");
    p.has_dsink = true;
    p.dsink_h = a.dsink.stride[0];
  }
}

}  // namespace

Problem make_problem(const tw_attention& a, tw_pass pass) {
  if (pass != TW_FORWARD && pass != TW_BACKWARD)
    invalid("pass: ", int(pass), "; must be TW_FORWARD (1) or TW_BACKWARD (2)");
  require(a.q, "q", pass);
  require(a.k, "k", pass);
  require(a.v, "v", pass);
  require(a.out, "out", pass);
  if (pass == TW_BACKWARD) {
    require(a.lse, "lse", pass);
    require(a.dout, "dout", pass);
    require(a.dq, "dq", pass);
    require(a.dk, "dk", pass);
    require(a.dv, "dv", pass);
  }
  Problem p;
  p.pass = pass;
  const Operands all(a, pass);
  check_operands(all, p);
  check_memory(all);
  p.dtype = tw_dtype(a.q.dtype);
  if (!is_floating(p.dtype)) invalid("q: dtype ", name_of(p.dtype), "; must be fp32, fp16 or bf16");
  check_dtype("k", a.k, p.dtype, " like q");
  check_dtype("v", a.v, p.dtype, " like q");
  check_dtype("out", a.out, p.dtype, " like q");

  p.packed = given(a.cu_seqlens_q) || given(a.cu_seqlens_k);
  if (p.packed) {
    if (!given(a.cu_seqlens_q))
      invalid("cu_seqlens_q: missing while cu_seqlens_k is given; packed attention needs both");
    if (!given(a.cu_seqlens_k))
      invalid("cu_seqlens_k: missing while cu_seqlens_q is given; packed attention needs both");
    if (a.cu_seqlens_q.ndim != 1 || a.cu_seqlens_q.size[0] < 1)
      invalid("cu_seqlens_q: shape ", shape_of(a.cu_seqlens_q), "; must be (B + 1), at least one offset");
  }
  check_sizes(a, p);
  read_lengths(a, p);
  const char* out_meaning = p.packed ? "(Tq, H, Dv)" : "(B, Sq, H, Dv)";
  if (p.packed)
    check_shape("out", a.out, {p.total_q, p.H, p.Dv}, out_meaning);
  else
    check_shape("out", a.out, {p.B, p.Sq, p.H, p.Dv}, out_meaning);
  if (given(a.lse)) {
    check_dtype("lse", a.lse, TW_FP32, "");
    if (p.packed)
      check_shape("lse", a.lse, {p.H, p.total_q}, "(H, Tq)");
    else
      check_shape("lse", a.lse, {p.B, p.H, p.Sq}, "(B, H, Sq)");
    p.lse = rows_of(a.lse, p.packed);
  }
  p.q = view_of(a.q, p.packed);
  p.k = view_of(a.k, p.packed);
  p.v = view_of(a.v, p.packed);
  p.out = view_of(a.out, p.packed);
  read_modifiers(a, p);
  read_options(a.options, p);
  read_rng_state(a.rng_state, p);
  if (pass == TW_BACKWARD) read_gradients(a, p, out_meaning);
  take_memory(a, p);
  return p;
}

std::optional<Problem> repeated(const Problem& planned, const tw_attention& planned_call,
                                const tw_attention& now) {
  // Byte by byte: what differs in padding alone is checked in full.
  tw_attention same = planned_call;
  for (tw_tensor tw_attention::*t : kTensors) (same.*t).data = (now.*t).data;
  same.options.seed = now.options.seed, same.options.offset = now.options.offset;
  same.options.philox_state = now.options.philox_state, same.options.algorithm = now.options.algorithm;
  same.options.run_parallel = now.options.run_parallel;
  same.options.parallel_context = now.options.parallel_context;
  if (std::memcmp(&same, &now, sizeof now) != 0) return std::nullopt;
  check_memory(Operands(now, planned.pass));
  Problem p = planned;
  take_memory(now, p);
  return p;
}

void require_data(const tw_attention& a, tw_pass pass) {
  for (const Operand& o : Operands(a, pass))
    if (!o.tensor->data && elements(*o.tensor))
      invalid(o.name, ": data is NULL for shape ", shape_of(*o.tensor),
              "; a plan may be made without data, a run needs it");
}

void check_same(const Problem& planned, const Problem& now) {
  auto view = [](const View& v) {
    return std::tuple(v.dtype, v.stride.b, v.stride.s, v.stride.h, v.stride.d);
  };
  auto rows = [](const RowView& v) { return std::tuple(v.given, v.b, v.h, v.s); };
  auto scores = [](const ScoreView& v) {
    return std::tuple(v.dtype, v.stride.b, v.stride.h, v.stride.i, v.stride.j);
  };
  auto index = [](const IndexView& v) { return std::tuple(v.dtype, v.stride); };
  auto facts = [&](const Problem& p) {
    return std::tuple(
        std::tuple(p.device, p.device_index, p.dtype, p.B, p.Sq, p.Sk, p.H, p.Hk, p.D, p.Dv, p.total_q,
                   p.total_k, p.packed),
        std::tuple(view(p.q), view(p.k), view(p.v), view(p.out), rows(p.lse), scores(p.bias), scores(p.mask)),
        std::tuple(p.has_alibi, p.alibi_b, p.alibi_h, p.has_sink, p.sink_h, index(p.cu_seqlens_q),
                   index(p.cu_seqlens_k), index(p.seqused_q), index(p.seqused_k)),
        std::tuple(view(p.dout), view(p.dq), view(p.dk), view(p.dv), rows(p.dlse), scores(p.dbias),
                   p.has_dsink, p.dsink_h, p.has_rng_state, p.rng_state_step),
        std::tuple(p.scale, p.softcap, p.causal, p.top_left, p.window_left, p.window_right, p.dropout_p,
                   p.deterministic, p.batch_invariant, p.threads));
  };
  if (facts(planned) != facts(now))
    invalid(
        "attention: shapes, strides, dtypes or options differ from those the plan was made for; make a new "
        "plan");
}

std::vector<Sequence> sequences(const Problem& p) {
  std::vector<Sequence> all(size_t(p.B));
  auto slots = [&](const char* name, const IndexView& cu, i64 total) {
    if (!p.packed) return;
    if (cu[0] != 0) invalid(name, "[0]: ", cu[0], "; must be 0");
    for (i64 b = 0; b < p.B; ++b)
      if (cu[b + 1] < cu[b])
        invalid(name, "[", b + 1, "]: ", cu[b + 1], " is less than the offset before it, ", cu[b]);
    if (cu[p.B] > total) invalid(name, "[", p.B, "]: ", cu[p.B], "; the packed tensor has ", total, " rows");
  };
  slots("cu_seqlens_q", p.cu_seqlens_q, p.total_q);
  slots("cu_seqlens_k", p.cu_seqlens_k, p.total_k);
  auto used = [](const char* name, const IndexView& u, i64 b, i64 slot) {
    if (!u) return slot;
    if (u[b] < 0 || u[b] > slot)
      invalid(name, "[", b, "]: ", u[b], "; must be 0 to the slot's length, ", slot);
    return u[b];
  };
  for (i64 b = 0; b < p.B; ++b) {
    Sequence& s = all[size_t(b)];
    const i64 slot_q = p.packed ? p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b] : p.Sq;
    const i64 slot_k = p.packed ? p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b] : p.Sk;
    s.index = b;
    s.q_b = s.k_b = p.packed ? 0 : b;
    s.q_row = p.packed ? p.cu_seqlens_q[b] : 0;
    s.k_row = p.packed ? p.cu_seqlens_k[b] : 0;
    s.sq = used("seqused_q", p.seqused_q, b, slot_q);
    s.sk = used("seqused_k", p.seqused_k, b, slot_k);
    if (p.packed && s.sq > p.Sq)
      invalid("max_seqlen_q: ", p.Sq, "; sequence ", b, " has ", s.sq, " queries (0 = unknown is allowed)");
    if (p.packed && s.sk > p.Sk)
      invalid("max_seqlen_k: ", p.Sk, "; sequence ", b, " has ", s.sk, " keys (0 = unknown is allowed)");
  }
  // A packed bias or mask is addressed by positions inside a sequence: it must reach as far as the longest
  // one.
  for (auto [name, view] : {std::pair{"bias", &p.bias}, std::pair{"mask", &p.mask}})
    if (p.packed && *view)
      for (const Sequence& s : all)
        if ((view->size[2] != 1 && view->size[2] < s.sq) || (view->size[3] != 1 && view->size[3] < s.sk))
          invalid(name, ": covers ", view->size[2], " queries and ", view->size[3], " keys; sequence ",
                  s.index, " has ", s.sq, " and ", s.sk);
  return all;
}

DropoutKey dropout_stream(const Problem& p) {
  return p.philox_state ? dropout_key(p.philox_state[0], p.philox_state[1]) : dropout_key(p.seed, p.offset);
}

}  // namespace tilewise
