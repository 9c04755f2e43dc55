// A stand-in for NVRTC: "compiles" any program into a text that names the program and its options, so that
// the search for NVRTC, the cache and the packs can be tested anywhere, with compilers that are too old, too
// new, slow or refusing.
//   FAKE_NVRTC_VERSION  its version, "13.0" when unset       FAKE_NVRTC_LOG      a file that gets one byte
//   for each compilation FAKE_NVRTC_DELAY    milliseconds a compilation takes     FAKE_NVRTC_REFUSE   what it
//   says when it refuses every program
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

struct Program {
  std::string source, expression, log, cubin;
};

std::string environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  return std::sscanf(environment("FAKE_NVRTC_VERSION", "13.0").c_str(), "%d.%d", major, minor) == 2 ? 0 : 3;
}
int nvrtcGetNumSupportedArchs(int* count) {
  *count = 7;
  return 0;
}
int nvrtcGetSupportedArchs(int* archs) {
  const int known[7] = {75, 80, 86, 89, 90, 100, 120};
  std::memcpy(archs, known, sizeof known);
  return 0;
}
int nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*,
                       const char* const*) {
  *program = new Program{source, "", "", ""};
  return 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
int nvrtcAddNameExpression(Program* program, const char* expression) {
  program->expression = expression;
  return 0;
}
int nvrtcCompileProgram(Program* program, int options, const char* const* option) {
  if (const std::string log = environment("FAKE_NVRTC_LOG", ""); !log.empty()) {
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (write(file, "c", 1) != 1) return 11;
    close(file);
  }
  usleep(unsigned(1000 * std::atoi(environment("FAKE_NVRTC_DELAY", "0").c_str())));
  if (const std::string refusal = environment("FAKE_NVRTC_REFUSE", ""); !refusal.empty()) {
    program->log = refusal;
    return 6;
  }
  program->log =
      "ptxas info    : Used 42 registers\n    8 bytes stack frame, 0 bytes spill stores, 0 bytes spill "
      "loads\n";
  program->cubin = "fake cubin\n" + program->source;
  for (int i = 0; i < options; ++i) program->cubin += std::string(option[i]) + "\n";
  return 0;
}
int nvrtcGetProgramLogSize(Program* program, size_t* bytes) {
  *bytes = program->log.size() + 1;
  return 0;
}
int nvrtcGetProgramLog(Program* program, char* log) {
  std::strcpy(log, program->log.c_str());
  return 0;
}
int nvrtcGetLoweredName(Program* program, const char*, const char** name) {
  *name = program->expression.c_str();
  return 0;
}
int nvrtcGetCUBINSize(Program* program, size_t* bytes) {
  *bytes = program->cubin.size();
  return 0;
}
int nvrtcGetCUBIN(Program* program, char* cubin) {
  std::memcpy(cubin, program->cubin.data(), program->cubin.size());
  return 0;
}

}  // extern "C"
