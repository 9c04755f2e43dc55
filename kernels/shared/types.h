// Integer names shared by host code, NVRTC and the tests. kernels/ includes nothing but itself, so <cstdint> is out of reach.
#pragma once

namespace tilewise {

using i32 = int;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

static_assert(sizeof(i32) == 4 && sizeof(i64) == 8);

}  // namespace tilewise
