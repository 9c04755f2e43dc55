// SHA-256 (FIPS 180-4): names cache entries and guards their contents. Our own fifty lines, because a cache
// must not make the library depend on a cryptography package.
#pragma once

#include <string>
#include <string_view>

namespace tilewise::cuda {

std::string sha256_hex(std::string_view data);  // 64 lower-case digits

}  // namespace tilewise::cuda
