#include "cuda/jit/cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>

#include "core/env.h"
#include "core/error.h"
#include "cuda/driver/nvrtc.h"
#include "cuda/driver/shared_library.h"
#include "cuda/jit/bundle.h"
#include "cuda/jit/sha256.h"

namespace tilewise::cuda {

namespace fs = std::filesystem;

namespace {

constexpr const char* kEntryMagic = "tilewise-kernel 1";
constexpr const char* kPackMagic = "tilewise-pack 1";
constexpr size_t kDigest = 64;

std::optional<std::string> read_file(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) return std::nullopt;
  return bytes;
}

// Writes beside the target, waits for the disk, renames. False, and nothing left behind, when any step fails.
bool write_file(const fs::path& path, std::string_view bytes) {
  static std::atomic<unsigned> serial{0};
  const fs::path temporary = cat(path.string(), ".", getpid(), ".", serial++, ".tmp");
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = write(file, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += size_t(n);
  }
  bool ok = done == bytes.size() && fsync(file) == 0;
  ok = close(file) == 0 && ok;
  ok = ok && rename(temporary.c_str(), path.c_str()) == 0;
  if (!ok) unlink(temporary.c_str());
  return ok;
}

// Creates missing folders for this user alone.
bool make_folders(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || fs::is_directory(folder, ignored)) return !folder.empty();
  if (folder.has_parent_path() && folder != folder.parent_path() && !make_folders(folder.parent_path()))
    return false;
  return mkdir(folder.c_str(), 0700) == 0 || fs::is_directory(folder, ignored);
}

std::string version_text() {
  return cat(TILEWISE_VERSION_MAJOR, ".", TILEWISE_VERSION_MINOR, ".", TILEWISE_VERSION_PATCH);
}

fs::path entry_folder(const std::string& target) {
  const fs::path base = cache_folder();
  return base.empty() ? base : base / version_text() / target;
}

std::string entry_name(const std::string& key) {
  const NvrtcState& nvrtc = nvrtc_state();
  return cat(key, "-nvrtc", nvrtc.major, ".", nvrtc.minor, ".kernel");
}

// A pack's table of contents.
struct Pack {
  fs::path file;
  std::map<std::string, std::pair<size_t, size_t>> entries;  // key -> offset, bytes
};

std::optional<Pack> open_pack(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string magic;
  size_t count = 0;
  if (!std::getline(in, magic) || magic != kPackMagic || !(in >> count)) return std::nullopt;
  Pack pack{path, {}};
  std::vector<std::pair<std::string, size_t>> table;
  for (size_t i = 0; i < count; ++i) {
    std::string key;
    size_t bytes = 0;
    if (!(in >> key >> bytes)) return std::nullopt;
    table.emplace_back(key, bytes);
  }
  in.get();  // the newline that ends the table
  size_t offset = size_t(in.tellg());
  std::error_code error;
  const size_t file_bytes = fs::file_size(path, error);
  for (const auto& [key, bytes] : table) {
    if (error || offset > file_bytes || bytes > file_bytes - offset) return std::nullopt;
    pack.entries[key] = {offset, bytes};
    offset += bytes;
  }
  return pack;
}

std::vector<Pack> open_packs() {
  std::vector<fs::path> files;
  if (const std::string given = env("TILEWISE_PACK"); !given.empty()) files.push_back(given);
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(fs::path(own_path()).parent_path(), ignored))
    if (entry.path().extension() == ".twpack") files.push_back(entry.path());
  std::vector<Pack> packs;
  for (const fs::path& file : files)
    if (auto pack = open_pack(file)) packs.push_back(std::move(*pack));
  return packs;
}

}  // namespace

std::string kernel_key(const Config& config, const std::string& target) {
  static const std::string sources = [] {
    std::string all;
    for (const SourceFile& file : kernel_bundle())
      all += cat(file.path, "\n", file.text.size(), "\n", file.text);
    return sha256_hex(all);
  }();
  std::string text = cat(sources, "\n", kernel_source(config), kernel_expression(config), "\n");
  for (const std::string& option : compile_options(target)) text += option + "\n";
  return sha256_hex(text);
}

std::filesystem::path cache_folder() {
  if (const std::string folder = env("TILEWISE_CACHE_DIR"); !folder.empty()) return folder;
  if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg == '/') return fs::path(xdg) / "tilewise";
  if (const char* home = std::getenv("HOME"); home && *home == '/')
    return fs::path(home) / ".cache" / "tilewise";
  return {};
}

std::string encode_entry(const std::string& key, const CompiledKernel& k) {
  std::string bytes = cat(kEntryMagic, "\n", key, "\n", k.symbol, "\n", k.registers, " ", k.stack_bytes, " ",
                          k.spill_bytes, " ", k.serialized, " ", k.seconds, " ", k.warnings.size(), " ",
                          k.cubin.size(), "\n", k.warnings, k.cubin);
  return bytes + sha256_hex(bytes);
}

std::optional<CompiledKernel> decode_entry(const std::string& key, std::string_view bytes) {
  if (bytes.size() < kDigest) return std::nullopt;
  const std::string_view body = bytes.substr(0, bytes.size() - kDigest);
  if (!body.starts_with(cat(kEntryMagic, "\n", key, "\n")) || sha256_hex(body) != bytes.substr(body.size()))
    return std::nullopt;
  std::istringstream in{std::string(body)};
  std::string line;
  CompiledKernel k;
  size_t warning_bytes = 0, cubin_bytes = 0;
  std::getline(in, line);
  std::getline(in, line);
  std::getline(in, k.symbol);
  in >> k.registers >> k.stack_bytes >> k.spill_bytes >> k.serialized >> k.seconds >> warning_bytes >>
      cubin_bytes;
  in.get();
  const auto at = in.tellg();
  if (!in || size_t(at) + warning_bytes + cubin_bytes != body.size()) return std::nullopt;
  k.warnings = body.substr(size_t(at), warning_bytes);
  k.cubin = body.substr(size_t(at) + warning_bytes);
  return k;
}

std::optional<CompiledKernel> read_cache(const std::string& key, const std::string& target) {
  const fs::path folder = entry_folder(target);
  if (folder.empty()) return std::nullopt;
  if (nvrtc_state().usable) {
    const auto bytes = read_file(folder / entry_name(key));
    return bytes ? decode_entry(key, *bytes) : std::nullopt;
  }
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with(key) && entry.path().extension() == ".kernel")
      if (const auto bytes = read_file(entry.path()))
        if (auto kernel = decode_entry(key, *bytes)) return kernel;
  return std::nullopt;
}

void write_cache(const std::string& key, const std::string& target, const CompiledKernel& kernel) {
  const fs::path folder = entry_folder(target);
  if (make_folders(folder)) write_file(folder / entry_name(key), encode_entry(key, kernel));
}

std::optional<CompiledKernel> read_packs(const std::string& key) {
  static const std::vector<Pack> packs = open_packs();
  for (const Pack& pack : packs) {
    const auto found = pack.entries.find(key);
    if (found == pack.entries.end()) continue;
    const auto [offset, size] = found->second;
    std::ifstream in(pack.file, std::ios::binary);
    std::string bytes(size, '\0');
    if (in.seekg(std::streamoff(offset)) && in.read(bytes.data(), std::streamsize(size)))
      if (auto kernel = decode_entry(key, bytes)) return kernel;
  }
  return std::nullopt;
}

void write_pack(const fs::path& file, const std::vector<PackEntry>& entries) {
  std::string table = cat(kPackMagic, "\n", entries.size(), "\n"), contents;
  for (const PackEntry& e : entries) {
    const std::string bytes = encode_entry(e.key, e.kernel);
    table += cat(e.key, " ", bytes.size(), "\n");
    contents += bytes;
  }
  if (!write_file(file, table + contents))
    fail(TW_INVALID_ARGUMENT, "cannot write the pack ", file.string(), ": ", std::strerror(errno));
}

}  // namespace tilewise::cuda
