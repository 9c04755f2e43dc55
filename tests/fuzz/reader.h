// Takes numbers from fuzz input, zeros after its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tilewise::fuzz {

class Reader {
 public:
  Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t byte() {
    if (!size_) return 0;
    --size_;
    return *data_++;
  }
  template <class T>
  T raw() {
    T x{};
    unsigned char bytes[sizeof(T)];
    for (unsigned char& b : bytes) b = byte();
    std::memcpy(&x, bytes, sizeof x);
    return x;
  }
  // 0 to most.
  int64_t upto(int64_t most) { return byte() % (most + 1); }
  bool chance(int in) { return byte() % in == 0; }

 private:
  const uint8_t* data_;
  size_t size_;
};

}  // namespace tilewise::fuzz
