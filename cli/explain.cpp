// tilewise explain: the planner's decision for a problem given by its sizes. Nothing is run.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/cli.h"
#include "cli/options.h"
#include "core/error.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {
namespace {

struct Arguments {
  ShapeOptions shape;
  ScoreOptions scores;
  std::string pass = "fwd";
};

void explain(const Arguments& x) {
  if (x.pass != "fwd" && x.pass != "bwd") invalid("--pass: '", x.pass, "'; must be fwd or bwd");
  const tw_pass pass = x.pass == "fwd" ? TW_FORWARD : TW_BACKWARD;
  const tw_attention a =
      shape_only(read_shape(x.shape), pass, read_score_options(x.scores), read_device(x.scores.device));
  std::fputs(tw::Plan(a, pass).explain().c_str(), stdout);
}

}  // namespace

void add_explain(CLI::App& app) {
  auto x = std::make_shared<Arguments>();
  CLI::App* verb =
      app.add_subcommand("explain", "Which kernel would run a problem, why, and why not the others");
  add_shape_options(*verb, x->shape);
  add_score_options(*verb, x->scores);
  verb->add_option("--pass", x->pass, "fwd or bwd")->capture_default_str();
  verb->footer(R"(Examples:
  tilewise explain --seqlen 4096 --dim 128 --dtype bf16 --causal
  tilewise explain --seqlen 1 --seqlen-k 65536 --heads 32 --kv-heads 8 --dim 128      (decoding)
  tilewise explain --pass bwd --seqlen 8192 --device cuda)");
  verb->callback([x] { explain(*x); });
}

}  // namespace tilewise::cli
