#include "support/case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <sstream>

#include "core/error.h"
#include "support/gpu.h"

namespace tilewise::test {
namespace {

enum Stream : u64 {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kBias,
  kMask,
  kAlibi,
  kSink,
  kCuQ,
  kCuK,
  kUsedQ,
  kUsedK,
  kDout,
  kDlse,
  kDq,
  kDk,
  kDv,
  kDbias,
  kDsink,
  kLength
};

u64 mix(u64 x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

u64 hash(u64 seed, u64 stream, i64 a, i64 b, i64 c, i64 d) {
  u64 x = mix(seed * 131 + stream);
  for (i64 y : {a, b, c, d}) x = mix(x ^ u64(y + 1));
  return x;
}

tw_dtype dtype_of(const std::string& name) {
  for (tw_dtype t : {TW_FP32, TW_FP16, TW_BF16})
    if (name == name_of(t)) return t;
  invalid("case: dtype '", name, "'; use fp32, fp16 or bf16");
}

std::vector<i64> score_shape(const Case& c, const std::string& axes) {
  std::vector<i64> shape;
  for (char x : axes)
    shape.push_back(x == 'b' ? c.B : x == 'h' ? c.H : x == 'i' ? c.Sq : x == 'j' ? c.Sk : 1);
  return shape;
}

// Index of (b, h, i, j) in a tensor of these axes.
struct ScoreIndex {
  i64 at[4] = {0, 0, 0, 0};
};
ScoreIndex score_index(const std::string& axes, i64 b, i64 h, i64 i, i64 j) {
  ScoreIndex x;
  for (size_t n = 0; n < axes.size(); ++n) {
    const char axis = axes[n];
    x.at[n] = axis == 'b' ? b : axis == 'h' ? h : axis == 'i' ? i : axis == 'j' ? j : 0;
  }
  return x;
}

}  // namespace

double noise(u64 seed, u64 stream, i64 a, i64 b, i64 c, i64 d) {
  const u64 x = hash(seed, stream, a, b, c, d);
  const double u = (double(x >> 32) + 0.5) * 0x1p-32, v = double(x & 0xFFFFFFFF) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

std::vector<Length> lengths(const Case& c) {
  std::vector<Length> all;
  auto draw = [&](i64 b, i64 which, i64 most) {
    const u64 x = hash(c.seed, kLength, b, which, 0, 0);
    if (x % 5 == 0) return i64(0);
    return i64((x >> 8) % u64(most + 1));
  };
  for (i64 b = 0; b < c.B; ++b) {
    Length n{c.Sq, c.Sk, 0, 0};
    if (c.varlen && b > 0) n.slot_q = draw(b, 0, c.Sq), n.slot_k = draw(b, 1, c.Sk);
    n.sq = c.used_q ? draw(b, 2, n.slot_q) : n.slot_q;
    n.sk = c.used_k ? draw(b, 3, n.slot_k) : n.slot_k;
    all.push_back(n);
  }
  return all;
}

std::string to_string(const Case& c) {
  std::ostringstream s;
  s << name_of(c.dtype) << (c.backward ? " bwd" : " fwd") << " B=" << c.B << " Sq=" << c.Sq << " Sk=" << c.Sk
    << " H=" << c.H << " Hk=" << c.Hk << " D=" << c.D << " Dv=" << c.Dv;
  if (c.causal) s << " causal";
  if (c.top_left) s << " topleft";
  if (c.left != -1 || c.right != -1) s << " window=" << c.left << "," << c.right;
  if (c.scale != 0) s << " scale=" << c.scale;
  if (c.softcap != 0) s << " softcap=" << c.softcap;
  if (c.alibi) s << " alibi=" << (c.alibi == 2 ? "bh" : "h");
  if (!c.bias.empty()) s << " bias=" << c.bias << ":" << name_of(c.bias_dtype);
  if (!c.mask.empty()) s << " mask=" << c.mask;
  if (c.sink) s << " sink";
  if (c.dropout > 0) s << " dropout=" << c.dropout;
  if (c.varlen) s << " varlen";
  if (c.used_q || c.used_k) s << " used=" << (c.used_q ? "q" : "") << (c.used_k ? "k" : "");
  if (c.layout != 'c') s << " layout=" << c.layout;
  if (c.shift != 0) s << " shift=" << c.shift;
  if (c.amplitude != 1) s << " amplitude=" << c.amplitude;
  if (c.dlse) s << " dlse";
  if (c.threads) s << " threads=" << c.threads;
  if (c.batch_invariant) s << " invariant";
  s << " seed=" << c.seed;
  return s.str();
}

Case parse_case(const std::string& line) {
  using Value = const std::string&;
  static const std::map<std::string, void (*)(Case&, Value)> words = {
      {"fwd", [](Case& c, Value) { c.backward = false; }},
      {"bwd", [](Case& c, Value) { c.backward = true; }},
      {"B", [](Case& c, Value v) { c.B = std::stoll(v); }},
      {"Sq", [](Case& c, Value v) { c.Sq = std::stoll(v); }},
      {"Sk", [](Case& c, Value v) { c.Sk = std::stoll(v); }},
      {"H", [](Case& c, Value v) { c.H = std::stoll(v); }},
      {"Hk", [](Case& c, Value v) { c.Hk = std::stoll(v); }},
      {"D", [](Case& c, Value v) { c.D = std::stoll(v); }},
      {"Dv", [](Case& c, Value v) { c.Dv = std::stoll(v); }},
      {"causal", [](Case& c, Value) { c.causal = true; }},
      {"topleft", [](Case& c, Value) { c.top_left = true; }},
      {"window",
       [](Case& c, Value v) { c.left = std::stoll(v), c.right = std::stoll(v.substr(v.find(',') + 1)); }},
      {"scale", [](Case& c, Value v) { c.scale = std::stod(v); }},
      {"softcap", [](Case& c, Value v) { c.softcap = std::stod(v); }},
      {"alibi", [](Case& c, Value v) { c.alibi = v == "bh" ? 2 : 1; }},
      {"bias",
       [](Case& c, Value v) {
         c.bias = v.substr(0, v.find(':')), c.bias_dtype = dtype_of(v.substr(v.find(':') + 1));
       }},
      {"mask", [](Case& c, Value v) { c.mask = v; }},
      {"sink", [](Case& c, Value) { c.sink = true; }},
      {"dropout", [](Case& c, Value v) { c.dropout = std::stod(v); }},
      {"varlen", [](Case& c, Value) { c.varlen = true; }},
      {"used", [](Case& c, Value v) { c.used_q = v.find('q') != v.npos, c.used_k = v.find('k') != v.npos; }},
      {"layout", [](Case& c, Value v) { c.layout = v.at(0); }},
      {"shift", [](Case& c, Value v) { c.shift = std::stod(v); }},
      {"amplitude", [](Case& c, Value v) { c.amplitude = std::stod(v); }},
      {"dlse", [](Case& c, Value) { c.dlse = true; }},
      {"threads", [](Case& c, Value v) { c.threads = std::stoi(v); }},
      {"invariant", [](Case& c, Value) { c.batch_invariant = true; }},
      {"seed", [](Case& c, Value v) { c.seed = std::stoull(v); }},
  };
  Case c;
  std::istringstream stream(line);
  std::string word;
  stream >> word;
  c.dtype = dtype_of(word);
  while (stream >> word) {
    const size_t equals = word.find('=');
    const auto it = words.find(word.substr(0, equals));
    if (it == words.end()) invalid("case: unknown word '", word, "' in: ", line);
    it->second(c, equals == std::string::npos ? "" : word.substr(equals + 1));
  }
  return c;
}

char Attention::layout_of(u64 stream, bool output) const {
  if (c.layout == 'm') {
    const std::string letters = output ? kOutputLayouts : kInputLayouts;
    return letters[hash(c.seed, stream, 77, 0, 0, 0) % letters.size()];
  }
  return output && (c.layout == 'e' || c.layout == 'z') ? 'c' : c.layout;
}

Tensor Attention::rows_tensor(i64 S, i64 total, i64 heads, i64 width, u64 stream, bool output) const {
  const char layout = layout_of(stream, output);
  return c.varlen ? Tensor(c.dtype, {total, heads, width}, layout)
                  : Tensor(c.dtype, {c.B, S, heads, width}, layout);
}

Attention::Attention(const Case& given, const std::vector<Length>& given_lengths)
    : c(given), length(given_lengths) {
  make_inputs();
  make_scores();
  if (c.backward) make_gradients();
  fill();
  tw_attention_init(&a, sizeof a);
  a.options.causal = c.causal;
  a.options.alignment = c.top_left ? TW_TOP_LEFT : TW_BOTTOM_RIGHT;
  a.options.window_left = c.left;
  a.options.window_right = c.right;
  if (c.scale != 0) a.options.scale = c.scale;
  a.options.softcap = c.softcap;
  a.options.dropout_p = c.dropout;
  a.options.seed = c.seed;
  a.options.offset = c.seed * 3;
  a.options.threads = c.threads;
  a.options.batch_invariant = c.batch_invariant;
  bind();
}

void Attention::make_inputs() {
  i64 total_q = 0, total_k = 0;
  for (const Length& n : length) {
    q_start.push_back(total_q), k_start.push_back(total_k);
    total_q += n.slot_q, total_k += n.slot_k;
  }
  const tw_dtype index_type = c.seed % 2 ? TW_INT32 : TW_INT64;
  if (c.varlen) {
    cu_q = Tensor(index_type, {c.B + 1}, layout_of(kCuQ, false));
    cu_k = Tensor(index_type, {c.B + 1}, layout_of(kCuK, false));
    for (i64 b = 0; b < c.B; ++b)
      cu_q.set(double(q_start[size_t(b)]), b), cu_k.set(double(k_start[size_t(b)]), b);
    cu_q.set(double(total_q), c.B), cu_k.set(double(total_k), c.B);
    total_q += 2, total_k += 2;
  }
  if (c.used_q) used_q = Tensor(index_type, {c.B}, layout_of(kUsedQ, false));
  if (c.used_k) used_k = Tensor(index_type, {c.B}, layout_of(kUsedK, false));
  for (i64 b = 0; b < c.B; ++b) {
    if (c.used_q) used_q.set(double(length[size_t(b)].sq), b);
    if (c.used_k) used_k.set(double(length[size_t(b)].sk), b);
  }
  q = rows_tensor(c.Sq, total_q, c.H, c.D, kQ, false);
  k = rows_tensor(c.Sk, total_k, c.Hk, c.D, kK, false);
  v = rows_tensor(c.Sk, total_k, c.Hk, c.Dv, kV, false);
  out = rows_tensor(c.Sq, total_q, c.H, c.Dv, kOut, true);
  const std::vector<i64> lse_shape =
      c.varlen ? std::vector<i64>{c.H, total_q} : std::vector<i64>{c.B, c.H, c.Sq};
  lse = Tensor(TW_FP32, lse_shape, layout_of(kLse, true));
  if (c.backward) {
    dout = rows_tensor(c.Sq, total_q, c.H, c.Dv, kDout, false);
    dq = rows_tensor(c.Sq, total_q, c.H, c.D, kDq, true);
    dk = rows_tensor(c.Sk, total_k, c.Hk, c.D, kDk, true);
    dv = rows_tensor(c.Sk, total_k, c.Hk, c.Dv, kDv, true);
    if (c.dlse) dlse = Tensor(TW_FP32, lse_shape, layout_of(kDlse, false));
  }
}

void Attention::make_scores() {
  if (!c.bias.empty()) bias = Tensor(c.bias_dtype, score_shape(c, c.bias), layout_of(kBias, false));
  if (!c.mask.empty()) {
    // About three of four are true; whole rows and columns are false where the mask has them.
    mask = Tensor(TW_BOOL, score_shape(c, c.mask), layout_of(kMask, false));
    i64 n[4] = {1, 1, 1, 1};
    std::copy(mask.view.size, mask.view.size + mask.view.ndim, n);
    const size_t at_i = c.mask.find('i'), at_j = c.mask.find('j');
    const double truth[] = {1, 2, 255};
    for (i64 x = 0; x < n[0]; ++x)
      for (i64 y = 0; y < n[1]; ++y)
        for (i64 z = 0; z < n[2]; ++z)
          for (i64 w = 0; w < n[3]; ++w) {
            const i64 at[4] = {x, y, z, w};
            const u64 r = hash(c.seed, kMask, x, y, z, w);
            const bool dead =
                (at_i != c.mask.npos && at[at_i] % 11 == 3) || (at_j != c.mask.npos && at[at_j] % 13 == 5);
            mask.set(dead || r % 4 == 0 ? 0 : truth[(r >> 8) % 3], x, y, z, w);
          }
  }
  if (c.alibi == 1) alibi = Tensor(TW_FP32, {c.H}, layout_of(kAlibi, false));
  if (c.alibi == 2) alibi = Tensor(TW_FP32, {c.B, c.H}, layout_of(kAlibi, false));
  for (i64 h = 0; h < c.H; ++h) {
    const double slope = std::exp2(-double(h % 8) - 1);
    if (c.alibi == 1) alibi.set(slope, h);
    for (i64 b = 0; c.alibi == 2 && b < c.B; ++b) alibi.set(slope + 0.01 * double(b), b, h);
  }
  if (c.sink) sink = Tensor(TW_FP32, {c.H}, layout_of(kSink, false));
  for (i64 h = 0; c.sink && h < c.H; ++h) sink.set(noise(c.seed, kSink, h, 0, 0, 0) + c.shift, h);
}

void Attention::make_gradients() {
  if (bias)
    dbias = Tensor(c.seed % 2 ? TW_FP32 : c.bias_dtype, score_shape(c, c.bias), layout_of(kDbias, true));
  if (sink) dsink = Tensor(TW_FP32, {c.H}, layout_of(kDsink, true));
}

bool Attention::visible(i64 b, i64 h, i64 i, i64 j) const {
  const Length& n = length[size_t(b)];
  const i64 distance = j - (c.top_left ? i : i + n.sk - n.sq);
  if (c.causal && distance > 0) return false;
  if (c.left >= 0 && -distance > c.left) return false;
  if (c.right >= 0 && distance > c.right) return false;
  if (c.mask.empty()) return true;
  const ScoreIndex x = score_index(c.mask, b, h, i, j);
  return mask.get(x.at[0], x.at[1], x.at[2], x.at[3]) != 0;
}

// Everything is poisoned, then what takes part gets its value.
void Attention::fill() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const double poison = c.seed % 3 == 0 ? std::nan("") : c.seed % 3 == 1 ? kInf : -kInf;
  for (Tensor* t : {&q, &k, &v, &bias, &dout, &dlse})
    if (*t) t->fill_storage(poison);
  const double shift_q = c.shift != 0 ? 1 : 0, shift_k = c.shift * std::sqrt(double(c.D));
  auto fill_rows = [&](Tensor& t, u64 stream, i64 b, i64 position, i64 row, i64 h, i64 width) {
    const double amplitude = stream == kQ || stream == kK ? c.amplitude : 1;
    for (i64 d = 0; d < width; ++d)
      set(t, amplitude * noise(c.seed, stream, b, position, h, d), b, row, h, d);
    if (c.shift != 0 && stream == kQ) set(t, shift_q, b, row, h, 0);
    if (c.shift != 0 && stream == kK) set(t, shift_k, b, row, h, 0);
  };
  for (i64 b = 0; b < c.B; ++b) {
    const Length& n = length[size_t(b)];
    std::vector<bool> key_seen(size_t(n.sk * c.Hk), false);
    for (i64 h = 0; h < c.H; ++h) {
      const i64 hk = h / (c.H / c.Hk);
      for (i64 i = 0; i < n.sq; ++i) {
        bool sees = false;
        for (i64 j = 0; j < n.sk; ++j) {
          if (!visible(b, h, i, j)) continue;
          sees = true;
          key_seen[size_t(j * c.Hk + hk)] = true;
          if (!bias) continue;
          const ScoreIndex x = score_index(c.bias, b, h, i, j);
          bias.set(noise(c.seed, kBias, x.at[0], x.at[1], x.at[2], x.at[3]), x.at[0], x.at[1], x.at[2],
                   x.at[3]);
        }
        if (sees) fill_rows(q, kQ, b, i, q_row(b, i), h, c.D);
        if (sees && dout) fill_rows(dout, kDout, b, i, q_row(b, i), h, c.Dv);
        if (dlse && (sees || c.sink)) {
          const double x = noise(c.seed, kDlse, b, h, i, 0);
          c.varlen ? dlse.set(x, h, q_row(b, i)) : dlse.set(x, b, h, i);
        }
      }
    }
    for (i64 hk = 0; hk < c.Hk; ++hk)
      for (i64 j = 0; j < n.sk; ++j)
        if (key_seen[size_t(j * c.Hk + hk)]) {
          fill_rows(k, kK, b, j, k_row(b, j), hk, c.D);
          fill_rows(v, kV, b, j, k_row(b, j), hk, c.Dv);
        }
  }
}

std::vector<Attention::Named> Attention::tensors() {
  return {{"q", &q, &tw_attention::q, false, false},
          {"k", &k, &tw_attention::k, false, false},
          {"v", &v, &tw_attention::v, false, false},
          {"out", &out, &tw_attention::out, true, false},
          {"lse", &lse, &tw_attention::lse, true, false},
          {"bias", &bias, &tw_attention::bias, false, false},
          {"mask", &mask, &tw_attention::mask, false, false},
          {"alibi_slopes", &alibi, &tw_attention::alibi_slopes, false, false},
          {"sink", &sink, &tw_attention::sink, false, false},
          {"cu_seqlens_q", &cu_q, &tw_attention::cu_seqlens_q, false, false},
          {"cu_seqlens_k", &cu_k, &tw_attention::cu_seqlens_k, false, false},
          {"seqused_q", &used_q, &tw_attention::seqused_q, false, false},
          {"seqused_k", &used_k, &tw_attention::seqused_k, false, false},
          {"dout", &dout, &tw_attention::dout, false, false},
          {"dlse", &dlse, &tw_attention::dlse, false, false},
          {"dq", &dq, &tw_attention::dq, false, true},
          {"dk", &dk, &tw_attention::dk, false, true},
          {"dv", &dv, &tw_attention::dv, false, true},
          {"dbias", &dbias, &tw_attention::dbias, false, true},
          {"dsink", &dsink, &tw_attention::dsink, false, true}};
}

void Attention::bind() {
  for (const Named& t : tensors()) a.*t.view = t.tensor->view;
}

tw_status Attention::run(tw_pass pass, const std::string& algorithm) {
  damage.clear();
  const bool backward = pass == TW_BACKWARD;
  for (Named& t : tensors()) {
    if (!*t.tensor) continue;
    if (backward ? t.backward_output : t.forward_output) t.tensor->fill_elements(std::nan(""));
    t.tensor->remember();
  }
  a.options.algorithm = algorithm.empty() ? nullptr : algorithm.c_str();
  tw_attention call = a;
  std::optional<OnGpu> gpu;
  if (is_gpu_algorithm(algorithm)) {
    std::vector<Tensor*> present;
    for (Named& t : tensors())
      if (*t.tensor) present.push_back(t.tensor);
    gpu.emplace(call, present);
    for (const Length& l : length) {  // the host cannot read the offsets there
      if (!c.varlen) break;
      call.max_seqlen_q = std::max(call.max_seqlen_q, l.slot_q);
      call.max_seqlen_k = std::max(call.max_seqlen_k, l.slot_k);
    }
  }
  size_t need = 0;
  if (const tw_status s = tw_attention_workspace(&call, pass, &need); s != TW_OK) return s;
  constexpr size_t kEdge = 256;
  std::vector<unsigned char> workspace(need + 3 * kEdge, 0xFF);  // NaN in every dtype
  unsigned char* start = workspace.data() + kEdge;
  start += (kEdge - reinterpret_cast<uintptr_t>(start) % kEdge) % kEdge;
  const tw_status status = gpu ? gpu->run(call, pass, workspace, size_t(start - workspace.data()), need)
                               : tw_attention_run(&call, pass, start, need, nullptr);
  for (const unsigned char* x = workspace.data(); x != workspace.data() + workspace.size(); ++x)
    if ((x < start || x >= start + need) && *x != 0xFF && damage.empty())
      damage = cat("workspace: byte ", x - start, " of ", need, " was overwritten");
  for (Named& t : tensors())
    if (*t.tensor && damage.empty())
      damage = t.tensor->damage(t.name, status == TW_OK && (backward ? t.backward_output : t.forward_output));
  return status;
}

}  // namespace tilewise::test
