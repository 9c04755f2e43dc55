#include "cli/io/npy.h"

#include <array>
#include <charconv>

#include "core/error.h"

namespace tilewise::cli {
namespace {

constexpr uint64_t kMaxHeader = 65536;  // numpy itself reads at most 10,000 characters

// Reads the subset of Python literals that a .npy header is made of: strings, True, False, integers, tuples.
class Literal {
 public:
  Literal(const std::string& name, std::string_view text) : name_(name), text_(text) {}

  [[noreturn]] void refuse(const std::string& what) const {
    invalid(name_, ": .npy header: ", what, " at character ", position_, "; write the file with numpy.save");
  }
  void skip_space() {
    while (position_ < text_.size() &&
           (text_[position_] == ' ' || text_[position_] == '\n' || text_[position_] == '\t'))
      ++position_;
  }
  bool accept(char c) {
    skip_space();
    if (position_ >= text_.size() || text_[position_] != c) return false;
    ++position_;
    return true;
  }
  void expect(char c) {
    if (!accept(c)) refuse(std::string("'") + c + "' is missing");
  }
  std::string string() {
    skip_space();
    const char quote = position_ < text_.size() ? text_[position_] : 0;
    if (quote != '\'' && quote != '"') refuse("a string is missing");
    const size_t end = text_.find(quote, position_ + 1);
    if (end == std::string_view::npos) refuse("a string does not end");
    const std::string_view value = text_.substr(position_ + 1, end - position_ - 1);
    if (value.size() > 64 || value.find('\\') != std::string_view::npos) refuse("a string is not plain");
    position_ = end + 1;
    return std::string(value);
  }
  bool boolean() {
    skip_space();
    for (auto [word, value] : {std::pair{std::string_view("True"), true}, {std::string_view("False"), false}})
      if (text_.substr(position_, word.size()) == word) {
        position_ += word.size();
        return value;
      }
    refuse("True or False is missing");
  }
  int64_t integer() {
    skip_space();
    int64_t value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (error != std::errc()) refuse("a size is not a 64-bit integer");
    position_ += size_t(end - begin);
    accept('L');  // written by Python 2
    return value;
  }
  std::vector<int64_t> tuple() {
    std::vector<int64_t> values;
    expect('(');
    while (!accept(')')) {
      values.push_back(integer());
      if (values.size() > 32) refuse("more than 32 dimensions");
      if (!accept(',') && values.size() == 1) refuse("',' is missing");
    }
    return values;
  }
  void end() {
    skip_space();
    if (position_ != text_.size()) refuse("text after the dictionary");
  }

 private:
  const std::string& name_;
  std::string_view text_;
  size_t position_ = 0;
};

FileType file_type(const std::string& name, const std::string& descr) {
  if (descr.size() >= 2 && descr[0] == '>' && descr.back() != '1')
    invalid(name, ": elements are big-endian ('", descr, "'); save a.astype('<", descr.substr(1), "')");
  const std::string kind = descr.empty() ? "" : descr.substr(1);
  if (descr.empty() || std::string("<|=").find(descr[0]) == std::string::npos) return FileType::other;
  if (kind == "f8") return FileType::fp64;
  if (kind == "f4") return FileType::fp32;
  if (kind == "f2") return FileType::fp16;
  if (kind == "u2" || kind == "V2") return FileType::bits16;  // V2: how numpy saves ml_dtypes.bfloat16
  if (kind == "b1") return FileType::boolean;
  if (kind == "i4") return FileType::int32;
  if (kind == "i8") return FileType::int64;
  return FileType::other;
}

const char* descr_of(tw_dtype type) {
  switch (type) {
    case TW_FP16: return "<f2";
    case TW_BF16: return "<u2";
    case TW_BOOL: return "|b1";
    case TW_INT32: return "<i4";
    case TW_INT64: return "<i8";
    default: return "<f4";
  }
}

}  // namespace

NpyHeader parse_npy_header(const std::string& name, std::string_view text) {
  Literal in(name, text);
  NpyHeader header;
  std::string descr;
  bool has_descr = false, has_order = false, has_shape = false;
  auto once = [&](bool& seen, const std::string& key) {
    if (seen) in.refuse("'" + key + "' is given twice");
    seen = true;
  };
  in.expect('{');
  while (!in.accept('}')) {
    const std::string key = in.string();
    in.expect(':');
    if (key == "descr") {
      once(has_descr, key);
      if (in.accept('[')) invalid(name, ": a structured array; save one field, e.g. numpy.save(f, a['q'])");
      descr = in.string();
    } else if (key == "fortran_order") {
      once(has_order, key);
      header.fortran = in.boolean();
    } else if (key == "shape") {
      once(has_shape, key);
      header.shape = in.tuple();
    } else {
      in.refuse("unknown key '" + key + "'");
    }
    if (!in.accept(',')) {
      in.expect('}');
      break;
    }
  }
  in.end();
  if (!has_descr || !has_order || !has_shape) in.refuse("'descr', 'fortran_order' or 'shape' is missing");
  header.type = file_type(name, descr);
  if (header.type == FileType::other)
    invalid(name, ": dtype '", descr,
            "'; must be float32, float16, float64, uint16 (bf16 bits), bool, int32 or int64");
  return header;
}

FileTensor read_npy(const InputFile& file) {
  const std::string& name = file.name();
  std::array<unsigned char, 12> start{};
  file.read(0, start.data(), size_t(std::min<uint64_t>(file.size(), start.size())));
  if (file.size() < 10 || std::memcmp(start.data(), "\x93NUMPY", 6) != 0)
    invalid(name, ": '", file.path(), "' is not a .npy file (it does not start with \\x93NUMPY)");
  const int major = start[6], minor = start[7];
  if (major < 1 || major > 3 || minor != 0)
    invalid(name, ": .npy version ", major, ".", minor, "; must be 1.0, 2.0 or 3.0");
  const uint64_t prefix = major == 1 ? 10 : 12;
  uint64_t length = start[8] | uint64_t(start[9]) << 8;
  if (major > 1) length |= uint64_t(start[10]) << 16 | uint64_t(start[11]) << 24;
  if (length > kMaxHeader) invalid(name, ": .npy header of ", length, " bytes; at most ", kMaxHeader);
  if (prefix + length > file.size())
    invalid(name, ": '", file.path(), "' is truncated: ", file.size(), " bytes, and its header alone says ",
            prefix + length);
  std::string text(size_t(length), '\0');
  file.read(prefix, text.data(), text.size());

  NpyHeader header = parse_npy_header(name, text);
  const uint64_t bytes =
      uint64_t(count_elements(name, header.shape, size_of(header.type))) * size_of(header.type);
  const uint64_t there = file.size() - prefix - length;
  if (bytes != there)
    invalid(name, ": '", file.path(), "' is ", there < bytes ? "truncated" : "too long", ": shape ",
            shape_text(header.shape), " needs ", bytes, " bytes of data, the file has ", there);
  FileTensor t{header.type, std::move(header.shape), header.fortran, Buffer(size_t(bytes))};
  file.read(prefix + length, t.data.data(), size_t(bytes));
  return t;
}

void write_npy(OutputFile& file, const HostTensor& tensor) {
  std::string header =
      cat("{'descr': '", descr_of(tensor.dtype), "', 'fortran_order': ", tensor.fortran ? "True" : "False",
          ", 'shape': ", shape_text(tensor.shape), ", }");
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  const char prefix[] = {
      '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, char(header.size() & 255), char(header.size() >> 8)};
  file.write(prefix, sizeof prefix);
  file.write(header);
  file.write(tensor.data.data(), tensor.data.size());
}

}  // namespace tilewise::cli
