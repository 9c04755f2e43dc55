#include <CLI/CLI.hpp>
#include <cstdio>

#include "cli/cli.h"
#include "tilewise/tilewise.hpp"

namespace tilewise::cli {

void add_info(CLI::App& app) {
  CLI::App* verb = app.add_subcommand("info", "What this build and this machine offer");
  verb->callback([] { std::fputs(tw::info().c_str(), stdout); });
}

}  // namespace tilewise::cli
