// tilewise: the command-line tool. Standard output carries the answer, standard error everything else.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/cli.h"
#include "cli/io/file.h"
#include "core/error.h"
#include "tilewise/tilewise.hpp"

using namespace tilewise;

namespace {

constexpr const char* kExamples = R"(Examples:
  tilewise demo
      what runs here, how exact it is and how fast (at most a minute)
  tilewise attend --q q.npy --k k.npy --v v.npy --out o.npy --causal
      attention of three (B, S, H, D) arrays
  tilewise attend --tensors qkv.safetensors --out o.safetensors --lse o.safetensors --check
      tensors by name, and the result compared with the fp64 oracle
  tilewise grad --q q.npy --k k.npy --v v.npy --dout do.npy --dq dq.npy --dk dk.npy --dv dv.npy
      gradients
  tilewise bench --seqlen 512,2048,8192 --dim 64,128 --against unfused
      speed, as a share of the machine's peak measured in the same run
  tilewise explain --seqlen 4096 --heads 32 --kv-heads 8 --dim 128 --dtype bf16 --causal
      which kernel would run, why, and why not the others
  tilewise check
      is this installation right? (a self-test of less than a minute)

`tilewise VERB --help` shows a verb's options and examples.
Exit status: 0 done, 1 a check failed or the machine did, 2 bad input (nothing was written).)";

int exit_code(tw_status status) {
  return status == TW_INVALID_ARGUMENT || status == TW_UNSUPPORTED ? cli::kExitBadInput : cli::kExitFailed;
}

int report(const char* message, int code) {
  std::fprintf(stderr, "tilewise: %s\n", message);
  return code;
}

void check_verb(CLI::App& app, const std::string& given) {
  std::string verbs;
  for (const CLI::App* verb : app.get_subcommands({})) {
    if (verb->get_name() == given) return;
    verbs += (verbs.empty() ? "" : ", ") + verb->get_name();
  }
  invalid("'", given, "' is not a verb; must be one of ", verbs);
}

int run(int argc, char** argv) {
  CLI::App app("Exact attention, one tile at a time.", "tilewise");
  app.set_version_flag("--version", std::string("tilewise ") + tw_version());
  app.require_subcommand(1);
  app.footer(kExamples);
  cli::add_attend(app);
  cli::add_grad(app);
  cli::add_check(app);
  cli::add_bench(app);
  cli::add_explain(app);
  cli::add_info(app);
  cli::add_demo(app);
  cli::add_compile(app);
  if (argc > 1 && *argv[1] != '-') check_verb(app, argv[1]);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);  // --help, --version
  } catch (const CLI::ParseError& e) {
    return report(
        (std::string(e.what()) + " (tilewise --help shows the verbs, tilewise VERB --help its options)")
            .c_str(),
        cli::kExitBadInput);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  cli::remove_outputs_on_signals();
  try {
    const int code = run(argc, argv);
    return std::fflush(stdout) == 0 ? code : report("cannot write to standard output", cli::kExitFailed);
  } catch (const cli::Exit& e) {
    return e.code;
  } catch (const Error& e) {
    return report(e.what(), exit_code(e.status()));
  } catch (const tw::Error& e) {
    return report(e.what(), exit_code(e.status()));
  } catch (const std::bad_alloc&) {
    return report("memory ran out", cli::kExitFailed);
  } catch (const std::exception& e) {
    return report(e.what(), cli::kExitFailed);
  }
}
