// Options that several verbs share, read from the command line with messages that name argument, value, limit
// and what works.
#pragma once

#include <string>
#include <vector>

#include "tilewise/tilewise.h"

namespace CLI {
class App;  // of CLI11, whose one header takes seconds to compile
}

namespace tilewise::cli {

// Everything that changes the scores or how they are computed, as typed.
struct ScoreOptions {
  bool causal = false, causal_top_left = false, batch_invariant = false;
  std::string window, scale, softcap, dropout, seed, offset, threads, algorithm, device = "cpu";
};

void add_score_options(CLI::App& app, ScoreOptions& options);
tw_options read_score_options(const ScoreOptions& options);  // `algorithm` points into `options`

// CPU, or a GPU by ordinal.
struct DeviceName {
  tw_device_type type = TW_CPU;
  int index = 0;
};
DeviceName read_device(const std::string& text);

int64_t read_integer(const std::string& option, const std::string& text, int64_t least, int64_t most);
double read_number(const std::string& option, const std::string& text);
std::vector<int64_t> read_integers(const std::string& option, const std::string& text, int64_t least,
                                   int64_t most);
std::vector<std::string> split(const std::string& text, char separator);

// "" = TW_DTYPE_NONE.
tw_dtype read_dtype(const std::string& option, const std::string& text);

// A problem by its sizes (explain, bench).
struct ShapeOptions {
  std::string batch = "1", seqlen = "2048", seqlen_k, heads = "8", kv_heads, dim = "64", dim_v,
              dtype = "fp32";
};
void add_shape_options(CLI::App& app, ShapeOptions& options);

struct Shape {
  int64_t batch, seqlen_q, seqlen_k, heads, kv_heads, dim, dim_v;
  tw_dtype dtype;
};
Shape read_shape(const ShapeOptions& options);

// q, k, v, out, lse and for the backward their gradients, row-major, without data.
tw_attention shape_only(const Shape& shape, tw_pass pass, const tw_options& options, DeviceName device);

}  // namespace tilewise::cli
