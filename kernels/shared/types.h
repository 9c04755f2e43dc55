// Integer names shared by host code, NVRTC and the tests. kernels/ includes nothing but itself, so <cstdint>
// is out of reach.
#pragma once

namespace tilewise {

using i32 = int;
using u32 = unsigned int;
using i64 = long;  // the same type as int64_t on 64-bit Linux
using u64 = unsigned long;

static_assert(sizeof(i32) == 4 && sizeof(i64) == 8, "a 64-bit Linux ABI (LP64)");

}  // namespace tilewise
