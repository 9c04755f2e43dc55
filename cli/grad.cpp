// tilewise grad: gradients of attention of tensors in files. The forward runs first: its out and lse are the
// backward's inputs.
#include <CLI/CLI.hpp>
#include <memory>

#include "cli/attend.h"
#include "cli/cli.h"
#include "cli/execute.h"
#include "cli/verify.h"
#include "core/error.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

struct Arguments {
  TensorOptions tensors;
  ScoreOptions scores;
  std::string dout, dlse, out, lse, dq, dk, dv, dbias, dsink;
  bool check = false, deterministic = false;
};

struct Gradients {
  HostTensor dout, dlse, dq, dk, dv, dbias, dsink;
};

// Where results go, checked before anything is computed.
void declare(Writer& writer, const Reader& reader, const Arguments& x) {
  for (auto [option, place] : {std::pair{"--dq", &x.dq}, {"--dk", &x.dk}, {"--dv", &x.dv}})
    if (place->empty()) invalid(option, ": missing; give ", option, " FILE.npy or FILE.safetensors");
  for (auto [option, place, base, given] :
       {std::tuple{"--dbias", &x.dbias, "--bias", !x.tensors.bias.empty()},
        {"--dsink", &x.dsink, "--sink", !x.tensors.sink.empty()}})
    if (!place->empty() && !given) invalid(option, ": given without ", base, "; pass the forward's ", base);
  for (auto [option, place] : {std::pair{"--dq", &x.dq},
                               {"--dk", &x.dk},
                               {"--dv", &x.dv},
                               {"--dbias", &x.dbias},
                               {"--dsink", &x.dsink},
                               {"--out", &x.out},
                               {"--lse", &x.lse}})
    writer.declare(option, *place, reader.files());
}

void attach(tw_attention& a, const Gradients& g) {
  a.dout = g.dout.view();
  a.dlse = g.dlse.view();
  a.dq = g.dq.view();
  a.dk = g.dk.view();
  a.dv = g.dv.view();
  a.dbias = g.dbias.view();
  a.dsink = g.dsink.view();
}

void grad(const Arguments& x) {
  tw_options options = read_score_options(x.scores);
  options.deterministic = x.deterministic;
  const DeviceName device = read_device(x.scores.device);
  Reader reader(x.tensors.tensors, read_dtype("--dtype", x.tensors.dtype));
  Operands operands(reader, x.tensors);
  Gradients g;
  g.dout = reader.floating("--dout", x.dout);
  g.dlse = reader.fp32("--dlse", x.dlse);
  tw_attention a = operands.problem(options, device);
  Writer writer;
  declare(writer, reader, x);
  g.dq = HostTensor("dq", operands.q.dtype, operands.q.shape);
  g.dk = HostTensor("dk", operands.k.dtype, operands.k.shape);
  g.dv = HostTensor("dv", operands.v.dtype, operands.v.shape);
  if (!x.dbias.empty()) g.dbias = HostTensor("dbias", TW_FP32, operands.bias.shape);
  if (!x.dsink.empty()) g.dsink = HostTensor("dsink", TW_FP32, operands.sink.shape);
  attach(a, g);
  const tw::Plan accepted(planned(a, TW_BACKWARD, device),
                          TW_BACKWARD);  // refuses what is wrong before any work
  operands.allocate_outputs(a);
  execute(a, TW_FORWARD, device);
  execute(a, TW_BACKWARD, device);
  const bool good = !x.check || verify(a, TW_BACKWARD);
  writer.commit({{"--dq", &g.dq},
                 {"--dk", &g.dk},
                 {"--dv", &g.dv},
                 {"--dbias", &g.dbias},
                 {"--dsink", &g.dsink},
                 {"--out", &operands.out},
                 {"--lse", &operands.lse}});
  if (!good) throw Exit{kExitFailed};
}

}  // namespace

void add_grad(CLI::App& app) {
  auto x = std::make_shared<Arguments>();
  CLI::App* verb = app.add_subcommand("grad", "Gradients of attention of tensors in files");
  add_tensor_options(*verb, x->tensors);
  auto* gradients = verb->add_option_group("Gradients");
  gradients->add_option("--dout", x->dout, "Gradient of the output, in its shape");
  gradients->add_option("--dlse", x->dlse, "Gradient of the log-sum-exp, (B, H, Sq) or (H, Tq)");
  auto* results = verb->add_option_group("Results");
  results->add_option("--dq", x->dq, "Where q's gradient goes");
  results->add_option("--dk", x->dk, "Where k's gradient goes");
  results->add_option("--dv", x->dv, "Where v's gradient goes");
  results->add_option("--dbias", x->dbias,
                      "Where bias's gradient goes, fp32, summed over what bias broadcasts");
  results->add_option("--dsink", x->dsink, "Where sink's gradient goes");
  results->add_option("--out", x->out, "Where the forward's output goes");
  results->add_option("--lse", x->lse, "Where the forward's log-sum-exp goes");
  results->add_flag("--check", x->check,
                    "Compare with the fp64 oracle; exit status 1 when the result is wrong");
  add_score_options(*verb, x->scores);
  verb->add_flag("--deterministic", x->deterministic, "Bitwise reproducible gradients on a GPU too");
  verb->footer(R"(Examples:
  tilewise grad --q q.npy --k k.npy --v v.npy --dout do.npy --dq dq.npy --dk dk.npy --dv dv.npy --causal
  tilewise grad --tensors x.safetensors --dq g.safetensors --dk g.safetensors --dv g.safetensors)");
  verb->callback([x] { grad(*x); });
}

}  // namespace tilewise::cli
