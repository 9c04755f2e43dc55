#include "cli/options.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "core/error.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

template <class T>
bool parse(const std::string& text, T& value) {
  const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
  const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

void read_window(const std::string& text, tw_options& o) {
  const std::vector<std::string> sides = split(text, ',');
  if (sides.size() != 2 || !parse(sides[0], o.window_left) || !parse(sides[1], o.window_right))
    invalid("--window: '", text,
            "'; must be LEFT,RIGHT, two numbers of keys (-1 = unbounded), e.g. --window 128,0");
}

}  // namespace

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text)
    if (c == separator)
      parts.emplace_back();
    else
      parts.back() += c;
  return parts;
}

int64_t read_integer(const std::string& option, const std::string& text, int64_t least, int64_t most) {
  int64_t value = 0;
  if (!parse(text, value) || value < least || value > most)
    invalid(option, ": '", text, "'; must be an integer from ", least, " to ", most);
  return value;
}

std::vector<int64_t> read_integers(const std::string& option, const std::string& text, int64_t least,
                                   int64_t most) {
  std::vector<int64_t> values;
  for (const std::string& part : split(text, ',')) values.push_back(read_integer(option, part, least, most));
  return values;
}

double read_number(const std::string& option, const std::string& text) {
  double value = 0;
  if (!parse(text, value)) invalid(option, ": '", text, "'; must be a number, e.g. 0.125");
  return value;
}

tw_dtype read_dtype(const std::string& option, const std::string& text) {
  if (text.empty()) return TW_DTYPE_NONE;
  for (tw_dtype t : {TW_FP32, TW_FP16, TW_BF16})
    if (text == name_of(t)) return t;
  invalid(option, ": '", text, "'; must be fp32, fp16 or bf16");
}

DeviceName read_device(const std::string& text) {
  if (text == "cpu") return {TW_CPU, 0};
  if (text == "cuda") return {TW_CUDA, 0};
  int64_t index = 0;
  if (text.starts_with("cuda:") && parse(text.substr(5), index) && index >= 0 && index < 1024)
    return {TW_CUDA, int(index)};
  invalid("--device: '", text, "'; must be cpu, cuda or cuda:N");
}

void add_score_options(CLI::App& app, ScoreOptions& o) {
  auto* mask = app.add_option_group("Mask and scores");
  mask->add_flag("--causal", o.causal,
                 "Query i sees keys j <= i + Sk - Sq (the last query sees the last key)");
  mask->add_flag("--causal-top-left", o.causal_top_left, "Query i sees keys j <= i");
  mask->add_option("--window", o.window, "Keys seen to the left and right of the diagonal, -1 = all")
      ->type_name("LEFT,RIGHT");
  mask->add_option("--scale", o.scale, "Factor on q . k (default 1/sqrt(D))")->type_name("X");
  mask->add_option("--softcap", o.softcap, "Scores become C tanh(score / C)")->type_name("C");
  mask->add_option("--dropout", o.dropout, "Probability of dropping a probability, in [0, 1)")
      ->type_name("P");
  mask->add_option("--seed", o.seed, "Seed of the dropout")->type_name("N");
  mask->add_option("--offset", o.offset, "Offset of the dropout's stream")->type_name("N");
  auto* how = app.add_option_group("How to run");
  how->add_option("--device", o.device, "cpu, cuda or cuda:N")->capture_default_str();
  how->add_option("--threads", o.threads, "CPU threads (default: all cores)")->type_name("N");
  how->add_option("--algorithm", o.algorithm, "Kernel to use, by a name that `tilewise explain` lists")
      ->type_name("NAME");
  how->add_flag("--batch-invariant", o.batch_invariant,
                "A sequence's result does not depend on the batch around it");
}

tw_options read_score_options(const ScoreOptions& s) {
  tw_options o = tw::Attention().options;
  if (s.causal && s.causal_top_left)
    invalid("--causal-top-left: given together with --causal; choose one alignment");
  o.causal = s.causal || s.causal_top_left;
  o.alignment = s.causal_top_left ? TW_TOP_LEFT : TW_BOTTOM_RIGHT;
  if (!s.window.empty()) read_window(s.window, o);
  if (!s.scale.empty()) {
    o.scale = read_number("--scale", s.scale);
    if (!std::isfinite(o.scale)) invalid("--scale: '", s.scale, "'; must be finite");
  }
  if (!s.softcap.empty()) {
    o.softcap = read_number("--softcap", s.softcap);
    if (!(o.softcap > 0)) invalid("--softcap: '", s.softcap, "'; must be above 0 (leave it out for no cap)");
  }
  if (!s.dropout.empty()) o.dropout_p = read_number("--dropout", s.dropout);
  if (!s.seed.empty()) {
    if (s.dropout.empty()) invalid("--seed: given without --dropout; the seed is the dropout's");
    o.seed = uint64_t(read_integer("--seed", s.seed, 0, std::numeric_limits<int64_t>::max()));
  }
  if (!s.offset.empty()) {
    if (s.dropout.empty()) invalid("--offset: given without --dropout; the offset is the dropout's");
    o.offset = uint64_t(read_integer("--offset", s.offset, 0, std::numeric_limits<int64_t>::max()));
  }
  if (!s.threads.empty()) o.threads = int32_t(read_integer("--threads", s.threads, 1, 4096));
  o.batch_invariant = s.batch_invariant;
  o.algorithm = s.algorithm.empty() ? nullptr : s.algorithm.c_str();
  return o;
}

void add_shape_options(CLI::App& app, ShapeOptions& o) {
  auto* shape = app.add_option_group("Shape");
  shape->add_option("--batch", o.batch, "Batch size B")->capture_default_str();
  shape->add_option("--seqlen", o.seqlen, "Queries Sq, and keys unless --seqlen-k says otherwise")
      ->capture_default_str();
  shape->add_option("--seqlen-k", o.seqlen_k, "Keys Sk");
  shape->add_option("--heads", o.heads, "Query heads H")->capture_default_str();
  shape->add_option("--kv-heads", o.kv_heads, "Key/value heads Hk (default H)");
  shape->add_option("--dim", o.dim, "Head dim D of q and k")->capture_default_str();
  shape->add_option("--dim-v", o.dim_v, "Head dim Dv of v (default D)");
  shape->add_option("--dtype", o.dtype, "fp32, fp16 or bf16")->capture_default_str();
}

Shape read_shape(const ShapeOptions& o) {
  constexpr int64_t kMost = int64_t(1) << 40;
  auto or_else = [](const std::string& text, const std::string& other) {
    return text.empty() ? other : text;
  };
  return {read_integer("--batch", o.batch, 0, kMost),
          read_integer("--seqlen", o.seqlen, 0, kMost),
          read_integer("--seqlen-k", or_else(o.seqlen_k, o.seqlen), 0, kMost),
          read_integer("--heads", o.heads, 1, kMost),
          read_integer("--kv-heads", or_else(o.kv_heads, o.heads), 1, kMost),
          read_integer("--dim", o.dim, 1, kMost),
          read_integer("--dim-v", or_else(o.dim_v, o.dim), 1, kMost),
          read_dtype("--dtype", o.dtype)};
}

tw_attention shape_only(const Shape& s, tw_pass pass, const tw_options& options, DeviceName device) {
  auto tensor = [&](tw_dtype dtype, std::vector<int64_t> size) {
    return tw::tensor(nullptr, dtype, size, device.type, device.index);
  };
  tw::Attention a;
  a.options = options;
  a.q = tensor(s.dtype, {s.batch, s.seqlen_q, s.heads, s.dim});
  a.k = tensor(s.dtype, {s.batch, s.seqlen_k, s.kv_heads, s.dim});
  a.v = tensor(s.dtype, {s.batch, s.seqlen_k, s.kv_heads, s.dim_v});
  a.out = tensor(s.dtype, {s.batch, s.seqlen_q, s.heads, s.dim_v});
  a.lse = tensor(TW_FP32, {s.batch, s.heads, s.seqlen_q});
  if (pass == TW_BACKWARD) {
    a.dout = a.out;
    a.dq = a.q;
    a.dk = a.k;
    a.dv = a.v;
  }
  return a;
}

}  // namespace tilewise::cli
