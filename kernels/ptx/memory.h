// Loads and stores. Every access of a kernel goes through here, so that the emulator can check each one.
#pragma once

#include "target.h"

namespace tilewise::ptx {

struct alignas(8) Vec2 {
  u32 w[2];
};
struct alignas(16) Vec4 {
  u32 w[4];
};

// Emulation: [pointer, pointer + bytes) lies inside a registered tensor. Device: nothing.
TILEWISE_INSTRUCTION void check_global(const void* pointer, int bytes, bool write) TILEWISE_PTX({});

// ld.global of 1, 2, 4, 8 or 16 bytes
template <class T>
TILEWISE_INLINE T load_global(const T* pointer) {
  check_global(pointer, sizeof(T), false);
  return *pointer;
}

// st.global of 1, 2, 4, 8 or 16 bytes
template <class T>
TILEWISE_INLINE void store_global(T* pointer, const T& value) {
  check_global(pointer, sizeof(T), true);
  *pointer = value;
}

// atom.global.add.u32: returns what was there
TILEWISE_INSTRUCTION u32 atom_add(u32* pointer, u32 x) TILEWISE_PTX({
  u32 old;
  asm volatile("atom.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(pointer), "r"(x) : "memory");
  return old;
});

// red.global.add.f32
TILEWISE_INSTRUCTION void red_add(float* pointer, float x) TILEWISE_PTX({
  asm volatile("red.global.add.f32 [%0], %1;" ::"l"(pointer), "f"(x) : "memory");
});

// Does the target add 16 bytes at once? (The emulator does.)
inline constexpr bool kVectorAdds = TILEWISE_ARCH == 0 || TILEWISE_ARCH >= 900;

// red.global.add.v4.f32 (sm_90 and later; four scalar ones before); 16-byte aligned
TILEWISE_INSTRUCTION void red_add_v4(float* pointer, float a, float b, float c, float d) TILEWISE_PTX({
  if constexpr (TILEWISE_ARCH >= 900) {
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(pointer), "f"(a), "f"(b), "f"(c),
                 "f"(d)
                 : "memory");
  } else {
    red_add(pointer, a);
    red_add(pointer + 1, b);
    red_add(pointer + 2, c);
    red_add(pointer + 3, d);
  }
});

// ld.shared.b32
TILEWISE_INSTRUCTION u32 ld_shared(u32 address) TILEWISE_PTX({
  u32 x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(address));
  return x;
});

// ld.shared.v2.b32
TILEWISE_INSTRUCTION Vec2 ld_shared_v2(u32 address) TILEWISE_PTX({
  Vec2 x;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(x.w[0]), "=r"(x.w[1]) : "r"(address));
  return x;
});

// ld.shared.v4.b32
TILEWISE_INSTRUCTION Vec4 ld_shared_v4(u32 address) TILEWISE_PTX({
  Vec4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.w[0]), "=r"(x.w[1]), "=r"(x.w[2]), "=r"(x.w[3])
               : "r"(address));
  return x;
});

// st.shared.b16
TILEWISE_INSTRUCTION void st_shared_b16(u32 address, u32 x) TILEWISE_PTX({
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"((unsigned short)x) : "memory");
});

// st.shared.b32
TILEWISE_INSTRUCTION void st_shared(u32 address, u32 x) TILEWISE_PTX({
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
});

// st.shared.v2.b32
TILEWISE_INSTRUCTION void st_shared_v2(u32 address, Vec2 x) TILEWISE_PTX({
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(x.w[0]), "r"(x.w[1]) : "memory");
});

// st.shared.v4.b32
TILEWISE_INSTRUCTION void st_shared_v4(u32 address, Vec4 x) TILEWISE_PTX({
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x.w[0]), "r"(x.w[1]),
               "r"(x.w[2]), "r"(x.w[3])
               : "memory");
});

}  // namespace tilewise::ptx
