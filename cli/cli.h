// The tool's verbs. Each add_*() declares its options on the app and sets a callback that does the work: it
// throws tilewise::Error or tw::Error, whose message main() prints, or Exit for an answer that is not an
// error.
#pragma once

namespace CLI {
class App;  // of CLI11, whose one header takes seconds to compile
}

namespace tilewise::cli {

struct Exit {
  int code;
};

inline constexpr int kExitFailed = 1;    // a check failed, a file could not be written, memory ran out
inline constexpr int kExitBadInput = 2;  // the user's mistake; nothing was written

void add_attend(CLI::App& app);
void add_grad(CLI::App& app);
void add_check(CLI::App& app);
void add_bench(CLI::App& app);
void add_explain(CLI::App& app);
void add_info(CLI::App& app);
void add_demo(CLI::App& app);
void add_compile(CLI::App& app);

}  // namespace tilewise::cli
