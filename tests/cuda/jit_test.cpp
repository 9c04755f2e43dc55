// The JIT on a machine without GPU or NVRTC: configuration text, the compiler's log, the cache under attack,
// packs, and the search for NVRTC, with a fake NVRTC.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <thread>

#include "core/error.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/jit/bundle.h"
#include "cuda/jit/cache.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernels.h"
#include "cuda/jit/sha256.h"
#include "fresh_process.h"

namespace tilewise::cuda {
namespace {

namespace fs = std::filesystem;
using test::Environment;
using test::in_fresh_process;
using test::says;

// A folder of its own for each test.
class Jit : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::temp_directory_path() / cat("tilewise-", getpid(), "-", test->name());
    fs::create_directories(folder_);
  }
  void TearDown() override {
    fs::permissions(folder_, fs::perms::owner_all);
    fs::remove_all(folder_);
  }
  Environment environment() const {
    return {{"TILEWISE_CACHE_DIR", (folder_ / "cache").string()},
            {"TILEWISE_NVRTC_PATH", FAKE_NVRTC},
            {"TILEWISE_CUDA_DRIVER_PATH", "/nonexistent/libcuda.so"},
            {"FAKE_NVRTC_LOG", (folder_ / "compilations").string()},
            {"TILEWISE_PACK", ""},
            {"TILEWISE_JIT", ""}};
  }
  Environment environment(const Environment& changes) const {
    Environment all = environment();
    for (const auto& [name, value] : changes) all[name] = value;
    return all;
  }
  size_t compilations() const {
    std::error_code ignored;
    const auto bytes = fs::file_size(folder_ / "compilations", ignored);
    return ignored ? 0 : bytes;
  }
  std::vector<fs::path> entries() const {
    std::vector<fs::path> files;
    for (const auto& e : fs::recursive_directory_iterator(folder_ / "cache"))
      if (e.is_regular_file()) files.push_back(e.path());
    return files;
  }
  fs::path folder_;
};

Config some_config() {
  Config c;
  c.family = Family::common;
  c.kernel = Kernel::uncovered;
  return c;
}

std::string obtain() {
  const FoundKernel found = obtain_kernel(some_config(), 86);
  return cat(name_of(found.origin), ", ", found.target, ", ", found.kernel->registers, " registers, ",
             found.kernel->symbol);
}

std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write(const fs::path& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST(Sha256, StandardVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Reads config_text() back: ".name = value" pairs, values by the name that they are printed with.
Config parse_config(const std::string& text) {
  std::map<std::string, std::string> values;
  std::string inside = text.substr(text.find('{') + 1);
  inside.pop_back();
  std::istringstream in(inside);
  for (std::string pair; std::getline(in, pair, ',');) {
    const size_t dot = pair.find('.'), equals = pair.find(" = ");
    values[pair.substr(dot + 1, equals - dot - 1)] = pair.substr(equals + 3);
  }
  Config c;
  size_t known = 0;
  for_each_field(c, [&](const char* name, auto& member) {
    using T = std::decay_t<decltype(member)>;
    known += values.count(name);
    const std::string value = values[name];
    if constexpr (std::is_same_v<T, bool>) {
      member = value == "true";
    } else if constexpr (std::is_same_v<T, int>) {
      member = std::stoi(value);
    } else {
      const std::string word = value.substr(value.rfind(':') + 1);
      for (int i = 0; i < 16; ++i) try {
          if (name_of(T(i)) == word) member = T(i);
        } catch (const Error&) {
          break;
        }
    }
  });
  EXPECT_EQ(known, values.size()) << "names that Config does not have: " << text;
  return c;
}

TEST(ConfigText, RoundTripsEveryMember) {
  EXPECT_EQ(parse_config(config_text(Config{})), Config{});
  std::set<std::string> texts = {config_text(Config{})};
  Config probe;
  for_each_field(probe, [&](const char* name, auto& member) {
    const auto kept = member;
    using T = std::decay_t<decltype(member)>;
    member = T(int(member) == 0 ? 1 : 0);
    if constexpr (std::is_same_v<T, int>) member = 12345;
    EXPECT_EQ(parse_config(config_text(probe)), probe) << name;
    EXPECT_TRUE(texts.insert(config_text(probe)).second) << name << " does not change the text";
    member = kept;
  });
}

TEST(Bundle, HoldsFilesThatIncludeOnlyEachOther) {
  std::set<std::string_view> paths;
  for (const SourceFile& f : kernel_bundle()) paths.insert(f.path);
  EXPECT_TRUE(paths.count("kernels/shared/config.h"));
  for (const SourceFile& f : kernel_bundle()) {
    std::istringstream in{std::string(f.text)};
    for (std::string line; std::getline(in, line);)
      if (line.starts_with("#include")) {
        const size_t open = line.find('"'), close = line.rfind('"');
        ASSERT_NE(open, std::string::npos) << f.path << ": " << line;
        EXPECT_TRUE(paths.count(line.substr(open + 1, close - open - 1))) << f.path << ": " << line;
      }
  }
}

TEST(CompilerLog, ReadsRegistersSpillsAndSerialization) {
  CompiledKernel k;
  read_compiler_log(
      "ptxas info    : Compiling entry function 'f' for 'sm_90a'\nptxas info    : Function properties for f\n"
      "    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 168 registers, used 4 barriers, 900 bytes cmem[0]\n"
      "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due "
      "to ...\n",
      k);
  EXPECT_EQ(k.registers, 168);
  EXPECT_EQ(k.stack_bytes, 16);
  EXPECT_EQ(k.spill_bytes, 20);
  EXPECT_TRUE(k.serialized);
  EXPECT_TRUE(says(k.warnings, "C7510"));
  CompiledKernel other;  // as NVRTC 13.0 says it
  read_compiler_log(
      "ptxas info    : Function properties for f\n"
      "ptxas         .     128 bytes stack frame, 40 bytes spill stores, 60 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 16 barriers, 128 bytes cumulative stack size\n",
      other);
  EXPECT_EQ(other.registers, 255);
  EXPECT_EQ(other.stack_bytes, 128);
  EXPECT_EQ(other.spill_bytes, 100);
}

TEST(Targets, ExactFirstThenOlderOfTheGeneration) {
  EXPECT_EQ(targets_for(Family::mma, 80), std::vector<std::string>{"sm_80"});
  EXPECT_EQ(targets_for(Family::mma, 121), (std::vector<std::string>{"sm_121", "sm_120"}));
  EXPECT_EQ(targets_for(Family::wgmma, 90), std::vector<std::string>{"sm_90a"});
}

TEST_F(Jit, SecondProcessDoesNotCompile) {
  EXPECT_TRUE(says(in_fresh_process(environment(), obtain),
                   "compiled now, sm_86, 42 registers, tilewise::common::uncovered"));
  EXPECT_TRUE(says(in_fresh_process(environment(), obtain),
                   "in the cache, sm_86, 42 registers, tilewise::common::uncovered"));
  EXPECT_EQ(compilations(), 1u);
  ASSERT_EQ(entries().size(), 1u);
  struct stat s {};
  stat((folder_ / "cache").c_str(), &s);
  EXPECT_EQ(s.st_mode & 0777, 0700u);
}

TEST_F(Jit, NewOptionsTargetOrSourceMakeAnotherKey) {
  Config other = some_config();
  other.d = 64;
  std::set<std::string> keys = {kernel_key(some_config(), "sm_86"), kernel_key(some_config(), "sm_89"),
                                kernel_key(other, "sm_86")};
  EXPECT_EQ(keys.size(), 3u);
}

TEST_F(Jit, AnotherNvrtcCompilesAnew) {
  in_fresh_process(environment(), obtain);
  EXPECT_TRUE(says(in_fresh_process(environment({{"FAKE_NVRTC_VERSION", "13.1"}}), obtain), "compiled now"));
  EXPECT_EQ(entries().size(), 2u);
}

TEST_F(Jit, DamagedEntriesAreRebuiltSilently) {
  in_fresh_process(environment(), obtain);
  const fs::path entry = entries().at(0);
  const std::string whole = read(entry);
  std::vector<std::string> damages = {"",
                                      "x",
                                      whole.substr(0, whole.size() / 2),
                                      whole.substr(0, whole.size() - 1),
                                      whole + "x",
                                      std::string(whole.size(), '\0')};
  for (size_t at = 0; at < whole.size(); at += 97) {
    damages.push_back(whole);
    damages.back()[at] = char(damages.back()[at] ^ 1);
  }
  for (const std::string& damage : damages) {
    write(entry, damage);
    EXPECT_TRUE(says(in_fresh_process(environment(), obtain), "compiled now"));
    ASSERT_TRUE(decode_entry(kernel_key(some_config(), "sm_86"), read(entry)));
  }
}

TEST_F(Jit, AForeignEntryUnderOurNameIsRebuilt) {
  in_fresh_process(environment(), obtain);
  const fs::path entry = entries().at(0);
  CompiledKernel foreign;
  foreign.cubin = "another kernel";
  foreign.symbol = "other";
  write(entry, encode_entry(std::string(64, '0'), foreign));
  EXPECT_TRUE(says(in_fresh_process(environment(), obtain), "compiled now"));
}

TEST_F(Jit, ALinkOrFolderInTheEntrysPlaceIsNoError) {
  in_fresh_process(environment(), obtain);
  const fs::path entry = entries().at(0);
  fs::remove(entry);
  fs::create_directory(entry);
  EXPECT_TRUE(says(in_fresh_process(environment(), obtain), "compiled now"));
}

TEST_F(Jit, UnwritableOrMissingHomeCostsOnlyTheCompilation) {
  write(folder_ / "file", "not a folder");
  for (const std::string& place :
       {(folder_ / "file").string(), (folder_ / "file" / "below").string(), std::string("/proc/tilewise")})
    EXPECT_TRUE(says(in_fresh_process(environment({{"TILEWISE_CACHE_DIR", place}}), obtain), "compiled now"))
        << place;
  const Environment homeless =
      environment({{"TILEWISE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", ""}, {"HOME", ""}});
  EXPECT_TRUE(says(in_fresh_process(homeless, obtain), "compiled now"));
  const Environment home =
      environment({{"TILEWISE_CACHE_DIR", ""}, {"XDG_CACHE_HOME", ""}, {"HOME", folder_.string()}});
  in_fresh_process(home, obtain);
  EXPECT_TRUE(fs::is_directory(folder_ / ".cache" / "tilewise"));
}

TEST_F(Jit, RacingProcessesCompileOnceEachAtMostAndNeverCorrupt) {
  std::vector<test::Child> children;
  for (int i = 0; i < 4; ++i)
    children.push_back(test::start(environment({{"FAKE_NVRTC_DELAY", "50"}}), obtain));
  for (const test::Child& child : children)
    EXPECT_TRUE(says(join(child), "42 registers, tilewise::common::uncovered"));
  EXPECT_LE(compilations(), 4u);
  ASSERT_EQ(entries().size(), 1u) << "a temporary file was left behind";
  EXPECT_TRUE(decode_entry(kernel_key(some_config(), "sm_86"), read(entries().at(0))));
}

TEST_F(Jit, RacingThreadsCompileOnce) {
  const std::string said = in_fresh_process(environment({{"FAKE_NVRTC_DELAY", "50"}}), [] {
    std::vector<std::thread> threads;
    std::vector<std::string> results(8);
    for (size_t i = 0; i < 8; ++i) threads.emplace_back([&, i] { results[i] = obtain(); });
    for (std::thread& t : threads) t.join();
    return std::set<std::string>(results.begin(), results.end()).size() == 1 ? results[0] : "they differ";
  });
  EXPECT_TRUE(says(said, "42 registers"));
  EXPECT_EQ(compilations(), 1u);
}

TEST_F(Jit, DifferentKernelsCompileSideBySide) {
  const std::string said = in_fresh_process(environment({{"FAKE_NVRTC_DELAY", "300"}}), [] {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([i] {
        Config c = some_config();
        c.d = 32 + i;
        obtain_kernel(c, 86);
      });
    for (std::thread& t : threads) t.join();
    return std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(900) ? "side by side"
                                                                                     : "one after the other";
  });
  EXPECT_EQ(said, "side by side");
}

TEST_F(Jit, ARefusedProgramSaysWhy) {
  const std::string said =
      in_fresh_process(environment({{"FAKE_NVRTC_REFUSE", "kernels/x.h(3): error: no such thing"}}), obtain);
  EXPECT_TRUE(says(said, "kernels/x.h(3): error: no such thing"));
  EXPECT_TRUE(says(said, "refuses the kernel common uncovered"));
}

TEST_F(Jit, OffNeverCompilesAndNamesWhatIsMissing) {
  const std::string said = in_fresh_process(environment({{"TILEWISE_JIT", "off"}}), obtain);
  EXPECT_TRUE(says(said, "TILEWISE_JIT=off"));
  EXPECT_TRUE(says(said, "common uncovered bf16"));
  EXPECT_TRUE(says(said, "tilewise compile --arch sm_86 --all --pack FILE"));
  EXPECT_EQ(compilations(), 0u);
}

TEST_F(Jit, PacksServeMachinesWithoutNvrtc) {
  const fs::path pack = folder_ / "kernels.twpack";
  const std::string made = in_fresh_process(environment(), [&] {
    const Config c = some_config();
    write_pack(pack, {{kernel_key(c, "sm_80"), compile_kernel(c, "sm_80")}});
    return std::string("made");
  });
  EXPECT_EQ(made, "made");
  const Environment bare = environment({{"TILEWISE_PACK", pack.string()},
                                        {"TILEWISE_NVRTC_PATH", "/nonexistent/libnvrtc.so"},
                                        {"TILEWISE_JIT", "off"}});
  EXPECT_TRUE(says(in_fresh_process(bare, obtain), "in a pack, sm_80, 42 registers"));

  const std::string whole = read(pack);
  for (size_t size : {size_t{0}, size_t{10}, whole.size() / 2, whole.size() - 1}) {
    write(pack, whole.substr(0, size));
    EXPECT_TRUE(says(in_fresh_process(bare, obtain), "TILEWISE_JIT=off, and neither a pack nor the cache"));
  }
}

TEST_F(Jit, ACacheServesMachinesWithoutNvrtc) {
  in_fresh_process(environment(), obtain);
  EXPECT_TRUE(
      says(in_fresh_process(environment({{"TILEWISE_NVRTC_PATH", "/nonexistent/libnvrtc.so"}}), obtain),
           "in the cache"));
}

TEST_F(Jit, NvrtcAbsentTooOldOrBroken) {
  const std::string absent =
      in_fresh_process(environment({{"TILEWISE_NVRTC_PATH", "/nonexistent/libnvrtc.so"}}), obtain);
  EXPECT_TRUE(says(absent, "no usable NVRTC"));
  EXPECT_TRUE(says(absent, "pip install nvidia-cuda-nvrtc"));
  const std::string empty =
      in_fresh_process(environment({{"TILEWISE_NVRTC_PATH", folder_.string()}}), obtain);
  EXPECT_TRUE(says(empty, cat("there is none in ", folder_.string())));
  const std::string old = in_fresh_process(environment({{"FAKE_NVRTC_VERSION", "11.8"}}), obtain);
  EXPECT_TRUE(says(old, "is NVRTC 11.8, too old"));
  const std::string broken = in_fresh_process(environment({{"TILEWISE_NVRTC_PATH", FAKE_CUDA}}), obtain);
  EXPECT_TRUE(says(broken, "has no nvrtcVersion"));
}

TEST_F(Jit, NvrtcNewerThanTheDriver) {
  const std::string said = in_fresh_process(environment({{"TILEWISE_CUDA_DRIVER_PATH", FAKE_CUDA},
                                                         {"FAKE_CUDA_VERSION", "12040"},
                                                         {"FAKE_NVRTC_VERSION", "13.0"}}),
                                            obtain);
  EXPECT_TRUE(says(said, "is NVRTC 13.0, newer than the driver, which supports CUDA 12.4"));
  EXPECT_TRUE(says(said, "nvidia-cuda-nvrtc-cu12"));
}

TEST_F(Jit, NoDriver) {
  const std::string said = in_fresh_process(environment(), [] { return driver_state().why_not; });
  EXPECT_TRUE(says(said, "no CUDA driver"));
  const std::string failing = in_fresh_process(
      environment({{"TILEWISE_CUDA_DRIVER_PATH", FAKE_CUDA}, {"FAKE_CUDA_FAIL", "cuInit=100"}}),
      [] { return driver_state().why_not; });
  EXPECT_TRUE(says(failing, "cuInit returned 100"));
  const std::string wrong = in_fresh_process(environment({{"TILEWISE_CUDA_DRIVER_PATH", FAKE_NVRTC}}),
                                             [] { return driver_state().why_not; });
  EXPECT_TRUE(says(wrong, "has no cuInit"));
}

}  // namespace
}  // namespace tilewise::cuda
