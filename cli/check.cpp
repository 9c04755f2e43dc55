#include "cli/cli.h"
namespace tilewise::cli {
void add_check(CLI::App&) {}
}  // namespace tilewise::cli
