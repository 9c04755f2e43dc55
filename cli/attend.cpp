// tilewise attend: attention of tensors in files.
#include "cli/attend.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "cli/cli.h"
#include "cli/execute.h"
#include "cli/verify.h"
#include "core/error.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

void add_tensor_options(CLI::App& app, TensorOptions& o) {
  auto* tensors = app.add_option_group("Tensors", "FILE.npy, FILE.safetensors:NAME, or NAME with --tensors");
  tensors
      ->add_option("--tensors", o.tensors, "File that names without a file refer to; q, k, v are its default")
      ->type_name("FILE.safetensors");
  tensors->add_option("--q", o.q, "(B, Sq, H, D), or packed (Tq, H, D)");
  tensors->add_option("--k", o.k, "(B, Sk, Hk, D), or packed (Tk, Hk, D)");
  tensors->add_option("--v", o.v, "(B, Sk, Hk, Dv), or packed (Tk, Hk, Dv)");
  tensors->add_option("--bias", o.bias, "Added to the scores: broadcastable to (B, H, Sq, Sk)");
  tensors->add_option("--mask", o.mask, "bool, true = visible: broadcastable to (B, H, Sq, Sk)");
  tensors->add_option("--alibi", o.alibi, "ALiBi slopes, (H) or (B, H)");
  tensors->add_option("--sink", o.sink, "Attention sinks, (H)");
  tensors->add_option("--cu-seqlens-q", o.cu_seqlens_q,
                      "Offsets of packed sequences, (B + 1) int32 or int64");
  tensors->add_option("--cu-seqlens-k", o.cu_seqlens_k, "The same for k and v");
  tensors->add_option("--seqused-q", o.seqused_q, "Used length of each sequence, (B)");
  tensors->add_option("--seqused-k", o.seqused_k, "The same for k and v");
  tensors->add_option("--dtype", o.dtype,
                      "Round q, k, v to fp32, fp16 or bf16 (uint16 arrays are bf16 bits)");
}

namespace {

// The longest sequence of packed ones; 0 (unknown) without offsets. The library checks the offsets
// themselves.
int64_t longest(const HostTensor& offsets) {
  int64_t most = 0, before = 0;
  for (int64_t i = 0; i < offsets.elements(); ++i) {
    const int64_t here = offsets.dtype == TW_INT32 ? offsets.as<int32_t>()[i] : offsets.as<int64_t>()[i];
    if (i > 0 && before >= 0 && here > before) most = std::max(most, here - before);
    before = here;
  }
  return most;
}

}  // namespace

Operands::Operands(Reader& reader, const TensorOptions& o) {
  q = reader.floating("--q", o.q);
  k = reader.floating("--k", o.k);
  v = reader.floating("--v", o.v);
  bias = reader.bias("--bias", o.bias);
  mask = reader.boolean("--mask", o.mask);
  alibi = reader.fp32("--alibi", o.alibi);
  sink = reader.fp32("--sink", o.sink);
  cu_seqlens_q = reader.index("--cu-seqlens-q", o.cu_seqlens_q);
  cu_seqlens_k = reader.index("--cu-seqlens-k", o.cu_seqlens_k);
  seqused_q = reader.index("--seqused-q", o.seqused_q);
  seqused_k = reader.index("--seqused-k", o.seqused_k);
  const bool packed = bool(cu_seqlens_q) || bool(cu_seqlens_k);
  const size_t ndim = packed ? 3 : 4;
  if (q.shape.size() != ndim)
    invalid("--q: shape ", shape_text(q.shape), "; must be ",
            packed ? "(Tq, H, D) with --cu-seqlens-q and --cu-seqlens-k"
                   : "(B, Sq, H, D), or (Tq, H, D) with --cu-seqlens-q and --cu-seqlens-k");
  if (v.shape.size() != ndim)
    invalid("--v: shape ", shape_text(v.shape), "; must be ", packed ? "(Tk, Hk, Dv)" : "(B, Sk, Hk, Dv)",
            " like q");
  out_shape_ = q.shape;
  out_shape_.back() = v.shape.back();
  const auto& n = q.shape;
  lse_shape_ = packed ? std::vector{n[1], n[0]} : std::vector{n[0], n[2], n[1]};
}

tw_attention Operands::problem(const tw_options& options, DeviceName device) const {
  tw::Attention a;
  a.options = options;
  a.q = q.view();
  a.k = k.view();
  a.v = v.view();
  a.bias = bias.view();
  a.mask = mask.view();
  a.alibi_slopes = alibi.view();
  a.sink = sink.view();
  a.cu_seqlens_q = cu_seqlens_q.view();
  a.cu_seqlens_k = cu_seqlens_k.view();
  a.seqused_q = seqused_q.view();
  a.seqused_k = seqused_k.view();
  a.max_seqlen_q = longest(cu_seqlens_q);
  a.max_seqlen_k = longest(cu_seqlens_k);
  a.out = tw::tensor(nullptr, q.dtype, out_shape_);
  a.lse = tw::tensor(nullptr, TW_FP32, lse_shape_);
  const tw::Plan accepted(planned(a, TW_FORWARD, device));  // refuses what is wrong before memory is taken
  return a;
}

void Operands::allocate_outputs(tw_attention& a) {
  out = HostTensor("out", q.dtype, out_shape_);
  lse = HostTensor("lse", TW_FP32, lse_shape_);
  a.out = out.view();
  a.lse = lse.view();
}

namespace {

struct Arguments {
  TensorOptions tensors;
  ScoreOptions scores;
  std::string out, lse;
  bool check = false;
};

void attend(const Arguments& x) {
  const tw_options options = read_score_options(x.scores);
  const DeviceName device = read_device(x.scores.device);
  if (x.out.empty()) invalid("--out: missing; give --out FILE.npy or FILE.safetensors");
  Reader reader(x.tensors.tensors, read_dtype("--dtype", x.tensors.dtype));
  Operands operands(reader, x.tensors);
  tw_attention a = operands.problem(options, device);
  Writer writer;
  writer.declare("--out", x.out, reader.files());
  writer.declare("--lse", x.lse, reader.files());
  operands.allocate_outputs(a);
  execute(a, TW_FORWARD, device);
  const bool good = !x.check || verify(a, TW_FORWARD);
  writer.commit({{"--out", &operands.out}, {"--lse", &operands.lse}});
  if (!good) throw Exit{kExitFailed};
}

}  // namespace

void add_attend(CLI::App& app) {
  auto x = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("attend", "Attention of tensors in files");
  add_tensor_options(*verb, x->tensors);
  auto* results = verb->add_option_group("Results");
  results->add_option("--out", x->out, "Where the output goes: (B, Sq, H, Dv) or (Tq, H, Dv), q's dtype");
  results->add_option("--lse", x->lse, "Where the log-sum-exp goes: (B, H, Sq) or (H, Tq), fp32");
  results->add_flag("--check", x->check,
                    "Compare with the fp64 oracle; exit status 1 when the result is wrong");
  add_score_options(*verb, x->scores);
  verb->footer(R"(Examples:
  tilewise attend --q q.npy --k k.npy --v v.npy --out o.npy --causal
  tilewise attend --q q.npy --k k.npy --v v.npy --out o.npy --window 256,0 --softcap 30 --check
  tilewise attend --q q.npy --k k.npy --v v.npy --out o.npy --dtype bf16       (uint16 files hold bf16 bits)
  tilewise attend --q q.npy --k k.npy --v v.npy --out o.npy --cu-seqlens-q cu.npy --cu-seqlens-k cu.npy
  tilewise attend --tensors layer.safetensors --q queries --k keys --v values --out o.safetensors:out)");
  verb->callback([x] { attend(*x); });
}

}  // namespace tilewise::cli
