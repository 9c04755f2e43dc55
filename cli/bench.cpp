#include "cli/cli.h"
namespace tilewise::cli {
void add_bench(CLI::App&) {}
}  // namespace tilewise::cli
