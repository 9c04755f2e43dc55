#include "cli/io/operands.h"

#include "cli/io/npy.h"
#include "cli/io/safetensors.h"
#include "core/error.h"

namespace tilewise::cli {
namespace {

struct Place {
  std::string path, tensor;  // tensor: "" for .npy
};

std::string own_name(const std::string& option) {  // --cu-seqlens-q -> cu_seqlens_q
  std::string name = option.substr(option.find_first_not_of('-'));
  for (char& c : name)
    if (c == '-') c = '_';
  return name;
}

Place parse_place(const std::string& option, const std::string& text, const std::string& tensors_file) {
  constexpr std::string_view kSuffix = ".safetensors";
  if (text.ends_with(".npy")) return {text, ""};
  if (text.ends_with(kSuffix)) return {text, own_name(option)};
  if (const size_t at = text.find(std::string(kSuffix) + ":"); at != std::string::npos) {
    const std::string name = text.substr(at + kSuffix.size() + 1);
    return {text.substr(0, at + kSuffix.size()), name.empty() ? own_name(option) : name};
  }
  if (!tensors_file.empty()) return {tensors_file, text.empty() ? own_name(option) : text};
  invalid(option, ": '", text, "'; must be FILE.npy or FILE.safetensors:NAME (or a NAME, with --tensors)");
}

std::string canonical(const std::string& path) {
  std::error_code error;
  const auto full = std::filesystem::weakly_canonical(path, error);
  return error ? path : full.string();
}

bool floating_type(FileType t) {
  return t == FileType::fp64 || t == FileType::fp32 || t == FileType::fp16 || t == FileType::bf16;
}

const char* name_of_file_type(FileType t) {
  switch (t) {
    case FileType::fp64: return "fp64";
    case FileType::fp32: return "fp32";
    case FileType::fp16: return "fp16";
    case FileType::bf16: return "bf16";
    case FileType::bits16: return "16-bit integers (bf16 bits?)";
    case FileType::boolean: return "bool";
    case FileType::int32: return "int32";
    case FileType::int64: return "int64";
    default: return "of another type";
  }
}

}  // namespace

FileTensor Reader::read(const std::string& option, const std::string& text) {
  const Place place = parse_place(option, text, tensors_file_);
  const InputFile file(option, place.path);
  files_.emplace(canonical(place.path), option);
  return place.tensor.empty() ? read_npy(file) : read_safetensors(file, place.tensor);
}

HostTensor Reader::floating(const std::string& option, const std::string& place) {
  if (place.empty() && tensors_file_.empty())
    invalid(option, ": missing; give ", option, " FILE.npy, or all tensors with --tensors FILE.safetensors");
  FileTensor t = read(option, place);
  if (t.type == FileType::bits16) {
    if (dtype_ != TW_BF16)
      invalid(option, ": uint16; numpy has no bf16: pass --dtype bf16 if these are its bits");
    return convert(std::move(t), TW_BF16);
  }
  if (!floating_type(t.type))
    invalid(option, ": ", name_of_file_type(t.type), "; must be fp32, fp16 or bf16");
  if (dtype_) return convert(std::move(t), dtype_);
  switch (t.type) {
    case FileType::fp32: return convert(std::move(t), TW_FP32);
    case FileType::fp16: return convert(std::move(t), TW_FP16);
    case FileType::bf16: return convert(std::move(t), TW_BF16);
    default: invalid(option, ": fp64; attention runs in fp32, fp16 or bf16: pass --dtype fp32 to round it");
  }
}

HostTensor Reader::bias(const std::string& option, const std::string& place) {
  if (place.empty()) return {};
  FileTensor t = read(option, place);
  if (t.type == FileType::boolean)
    invalid(option, ": bool; an additive bias is fp32, fp16 or bf16 (--mask takes bool)");
  if (t.type == FileType::bits16 && dtype_ == TW_BF16) return convert(std::move(t), TW_BF16);
  if (!floating_type(t.type))
    invalid(option, ": ", name_of_file_type(t.type), "; must be fp32, fp16 or bf16");
  const tw_dtype to = t.type == FileType::fp16 ? TW_FP16 : t.type == FileType::bf16 ? TW_BF16 : TW_FP32;
  return convert(std::move(t), to);
}

HostTensor Reader::fp32(const std::string& option, const std::string& place) {
  if (place.empty()) return {};
  FileTensor t = read(option, place);
  if (!floating_type(t.type)) invalid(option, ": ", name_of_file_type(t.type), "; must be fp32");
  return convert(std::move(t), TW_FP32);
}

HostTensor Reader::boolean(const std::string& option, const std::string& place) {
  if (place.empty()) return {};
  FileTensor t = read(option, place);
  if (t.type != FileType::boolean)
    invalid(option, ": ", name_of_file_type(t.type), "; must be bool, true = visible",
            floating_type(t.type) ? " (--bias takes an additive mask)" : " (a.astype(bool))");
  return convert(std::move(t), TW_BOOL);
}

HostTensor Reader::index(const std::string& option, const std::string& place) {
  if (place.empty()) return {};
  FileTensor t = read(option, place);
  if (t.type != FileType::int32 && t.type != FileType::int64)
    invalid(option, ": ", name_of_file_type(t.type), "; must be int32 or int64");
  const tw_dtype type = t.type == FileType::int32 ? TW_INT32 : TW_INT64;
  return convert(std::move(t), type);
}

void Writer::declare(const std::string& option, const std::string& text,
                     const std::map<std::string, std::string>& inputs) {
  if (text.empty()) return;
  const Place place = parse_place(option, text, "");
  const std::string path = canonical(place.path);
  if (const auto input = inputs.find(path); input != inputs.end())
    invalid(option, ": '", place.path, "' is also ", input->second,
            "'s file; write the result to a file of its own");
  Destination& d = files_[path];
  if (!d.file) {
    d.file = std::make_unique<OutputFile>(option, place.path);
    d.safetensors = !place.tensor.empty();
  } else if (!d.safetensors) {
    invalid(option, ": '", place.path, "' is also ", d.tensors.front().second, "'s file; name another");
  }
  for (const auto& [name, other] : d.tensors)
    if (name == place.tensor)
      invalid(option, ": tensor '", name, "' of '", place.path, "' is also ", other, "'s; name another");
  d.tensors.emplace_back(place.tensor, option);
}

void Writer::commit(const std::map<std::string, const HostTensor*>& tensors) {
  for (auto& [path, d] : files_) {
    if (d.safetensors) {
      std::vector<std::pair<std::string, const HostTensor*>> named;
      for (const auto& [name, option] : d.tensors) named.emplace_back(name, tensors.at(option));
      write_safetensors(*d.file, named);
    } else {
      write_npy(*d.file, *tensors.at(d.tensors.front().second));
    }
    d.file->finish();
  }
  for (auto& [path, d] : files_) d.file->commit();
}

}  // namespace tilewise::cli
