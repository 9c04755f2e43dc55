// A tensor in host memory that owns its data, and the element types that files hold.
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace tilewise::cli {

// What a file says its elements are. bits16 is numpy's uint16 or void16: bf16 when the user says so.
enum class FileType { fp64, fp32, fp16, bf16, bits16, boolean, int32, int64, other };

size_t size_of(FileType type);

// Elements of a shape; throws when the bytes would not fit in 63 bits. `name` is for the message.
int64_t count_elements(const std::string& name, const std::vector<int64_t>& shape, size_t element_size);

std::string shape_text(const std::vector<int64_t>& shape);

// 256-byte aligned memory.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes)
      : data_(static_cast<std::byte*>(::operator new(bytes ? bytes : 1, std::align_val_t(256)))),
        size_(bytes) {}
  std::byte* data() const { return data_.get(); }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(256)); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t size_ = 0;
};

// As read: row-major, or column-major when `fortran`.
struct FileTensor {
  FileType type = FileType::other;
  std::vector<int64_t> shape;
  bool fortran = false;
  Buffer data;
};

struct HostTensor {
  tw_dtype dtype = TW_DTYPE_NONE;
  std::vector<int64_t> shape;
  bool fortran = false;
  Buffer data;

  HostTensor() = default;
  HostTensor(const std::string& name, tw_dtype type, std::vector<int64_t> sizes);
  explicit operator bool() const { return dtype != TW_DTYPE_NONE; }
  int64_t elements() const;
  tw_tensor view() const;        // all zero when there is no tensor
  tw_tensor shape_only() const;  // the same without data
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data.data());
  }
};

// The file's tensor with elements of `to`, rounded to nearest even where it has fewer bits.
HostTensor convert(FileTensor file, tw_dtype to);

}  // namespace tilewise::cli
