#include "cli/io/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace tilewise::cli {
namespace {

using nlohmann::json;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

// Follows the parser event by event and accepts nothing but the format's structure, so that a hostile header
// costs no more memory than its tensors' entries:
//   depth 1: name or __metadata__   depth 2: dtype, shape, data_offsets (or metadata strings)   depth 3:
//   their integers
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  HeaderReader(const std::string& name, SafetensorsHeader& header) : name_(name), header_(header) {}

  bool start_object(std::size_t) override {
    if (++depth_ > 2 || in_array_) refuse("an object where none belongs");
    if (depth_ == 2) has_dtype_ = has_shape_ = has_offsets_ = false;
    return true;
  }
  bool end_object() override {
    if (depth_-- == 2 && !in_metadata_) {
      if (!has_dtype_ || !has_shape_ || !has_offsets_) refuse("dtype, shape or data_offsets is missing");
      entry_ = nullptr;
    }
    if (depth_ == 1) in_metadata_ = false;
    return true;
  }
  bool key(string_t& key) override {
    if (depth_ == 1) {
      current_ = key;
      in_metadata_ = key == "__metadata__";
      if (in_metadata_) return true;
      const auto [at, fresh] = header_.tensors.try_emplace(key);
      if (!fresh) refuse("the name is given twice");
      entry_ = &at->second;
    } else {
      field_ = key;
      if (!in_metadata_ && key != "dtype" && key != "shape" && key != "data_offsets")
        refuse("unknown key '" + key + "'");
    }
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || in_array_ || field_ != "dtype") refuse("a string where none belongs");
    entry_->dtype = value;
    return once(has_dtype_);
  }
  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_array_ || field_ == "dtype") refuse("an array where none belongs");
    in_array_ = true;
    values_.clear();
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) refuse("a number where none belongs");
    if (value > uint64_t(INT64_MAX)) refuse("a number above 9223372036854775807");
    if (values_.size() == 32) refuse("more than 32 dimensions");
    values_.push_back(value);
    return true;
  }
  bool end_array() override {
    in_array_ = false;
    if (field_ == "shape") {
      entry_->shape.assign(values_.begin(), values_.end());
      return once(has_shape_);
    }
    if (values_.size() != 2) refuse("data_offsets must be [begin, end]");
    entry_->begin = values_[0];
    entry_->end = values_[1];
    return once(has_offsets_);
  }
  bool null() override { refuse("null where none belongs"); }
  bool boolean(bool) override { refuse("a boolean where none belongs"); }
  bool number_integer(number_integer_t) override { refuse("a negative number"); }
  bool number_float(number_float_t, const string_t&) override {
    refuse("a fraction, or an integer beyond 64 bits");
  }
  bool binary(binary_t&) override { refuse("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    invalid(name_, ": .safetensors header is not JSON at byte ", position);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    invalid(name_, ": .safetensors header: ", what,
            current_.empty() ? "" : " (tensor '" + current_.substr(0, 80) + "')");
  }
  bool once(bool& seen) {
    if (seen) refuse("'" + field_ + "' is given twice");
    return seen = true;
  }

  const std::string& name_;
  SafetensorsHeader& header_;
  std::string current_, field_;
  SafetensorsEntry* entry_ = nullptr;
  std::vector<uint64_t> values_;
  int depth_ = 0;
  bool in_metadata_ = false, in_array_ = false, has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
};

struct Dtype {
  const char* name;
  FileType type;
  size_t size;
};
constexpr Dtype kDtypes[] = {
    {"F64", FileType::fp64, 8},  {"F32", FileType::fp32, 4},      {"F16", FileType::fp16, 2},
    {"BF16", FileType::bf16, 2}, {"BOOL", FileType::boolean, 1},  {"I32", FileType::int32, 4},
    {"I64", FileType::int64, 8}, {"U16", FileType::bits16, 2},    {"U64", FileType::other, 8},
    {"U32", FileType::other, 4}, {"I16", FileType::other, 2},     {"I8", FileType::other, 1},
    {"U8", FileType::other, 1},  {"F8_E4M3", FileType::other, 1}, {"F8_E5M2", FileType::other, 1},
};

const Dtype& dtype_of(const std::string& name, const std::string& tensor, const std::string& dtype) {
  for (const Dtype& d : kDtypes)
    if (dtype == d.name) return d;
  invalid(name, ": .safetensors header: dtype '", dtype.substr(0, 40), "' of tensor '", tensor,
          "' is unknown");
}

const char* dtype_name(tw_dtype type) {
  switch (type) {
    case TW_FP16: return "F16";
    case TW_BF16: return "BF16";
    case TW_BOOL: return "BOOL";
    case TW_INT32: return "I32";
    case TW_INT64: return "I64";
    default: return "F32";
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& name, std::string_view text,
                                           uint64_t data_bytes) {
  SafetensorsHeader header;
  if (text.empty() || text.front() != '{') invalid(name, ": .safetensors header does not start with '{'");
  HeaderReader reader(name, header);
  json::sax_parse(text, &reader);
  std::vector<const SafetensorsEntry*> order;
  for (const auto& [tensor, e] : header.tensors) {
    const size_t size = dtype_of(name, tensor, e.dtype).size;
    const uint64_t bytes = uint64_t(count_elements(name, e.shape, size)) * size;
    if (e.begin > e.end || e.end > data_bytes || e.end - e.begin != bytes)
      invalid(name, ": .safetensors header: tensor '", tensor.substr(0, 80), "' of shape ",
              shape_text(e.shape), " ", e.dtype, " needs ", bytes, " bytes, its data_offsets are [", e.begin,
              ", ", e.end, "] of ", data_bytes);
    order.push_back(&e);
  }
  std::sort(order.begin(), order.end(),
            [](auto* a, auto* b) { return std::pair(a->begin, a->end) < std::pair(b->begin, b->end); });
  uint64_t expected = 0;
  for (const SafetensorsEntry* e : order) {
    if (e->begin != expected)
      invalid(name, ": .safetensors header: ", e->begin < expected ? "tensors overlap" : "a hole",
              " at byte ", std::min(e->begin, expected), " of the data");
    expected = e->end;
  }
  if (expected != data_bytes)
    invalid(name, ": the file has ", data_bytes, " bytes of data, its tensors fill ", expected);
  return header;
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  unsigned char start[8] = {};
  if (file.size() < 10)
    invalid(file.name(), ": '", file.path(), "' is not a .safetensors file (", file.size(), " bytes)");
  file.read(0, start, 8);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | start[i];
  if (length > kMaxHeader)
    invalid(file.name(), ": .safetensors header of ", length, " bytes; at most ", kMaxHeader);
  if (8 + length > file.size())
    invalid(file.name(), ": '", file.path(), "' is truncated: ", file.size(),
            " bytes, and its header alone says ", 8 + length);
  std::string text(size_t(length), '\0');
  file.read(8, text.data(), text.size());
  SafetensorsHeader header = parse_safetensors_header(file.name(), text, file.size() - 8 - length);
  header.data_offset = 8 + length;
  return header;
}

FileTensor read_safetensors(const InputFile& file, const std::string& tensor) {
  const SafetensorsHeader header = read_safetensors_header(file);
  const auto at = header.tensors.find(tensor);
  if (at == header.tensors.end()) {
    std::string names;
    for (const auto& [other, entry] : header.tensors)
      if (names.size() < 200) names += (names.empty() ? "" : ", ") + other;
    invalid(file.name(), ": '", file.path(), "' has no tensor '", tensor, "'; it has ",
            names.empty() ? "none" : names);
  }
  const SafetensorsEntry& e = at->second;
  const FileType type = dtype_of(file.name(), tensor, e.dtype).type;
  if (type == FileType::other)
    invalid(file.name(), ": tensor '", tensor, "' is ", e.dtype,
            "; must be F32, F16, BF16, F64, BOOL, I32 or I64");
  FileTensor t{type, e.shape, false, Buffer(size_t(e.end - e.begin))};
  file.read(header.data_offset + e.begin, t.data.data(), t.data.size());
  return t;
}

void write_safetensors(OutputFile& file,
                       const std::vector<std::pair<std::string, const HostTensor*>>& tensors) {
  json header = json::object();
  uint64_t offset = 0;
  for (const auto& [name, t] : tensors) {
    header[name] = {{"dtype", dtype_name(t->dtype)},
                    {"shape", t->shape},
                    {"data_offsets", {offset, offset + t->data.size()}}};
    offset += t->data.size();
  }
  std::string text = header.dump();
  text.append((64 - (8 + text.size()) % 64) % 64, ' ');
  unsigned char start[8];
  for (int i = 0; i < 8; ++i) start[i] = static_cast<unsigned char>(text.size() >> (8 * i));
  file.write(start, sizeof start);
  file.write(text);
  for (const auto& [name, t] : tensors) file.write(t->data.data(), t->data.size());
}

}  // namespace tilewise::cli
