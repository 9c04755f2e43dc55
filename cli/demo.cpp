#include "cli/cli.h"
namespace tilewise::cli {
void add_demo(CLI::App&) {}
}  // namespace tilewise::cli
