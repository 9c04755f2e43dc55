// mma.sync: one warp's matrix product C += A B with fp32 accumulators. With g = lane / 4, q = lane % 4:
//   C m16n8   c[0], c[1]: row g, columns 2q, 2q + 1;  c[2], c[3]: row g + 8
//   A m16k16  a[0]: row g, k 2q, 2q + 1;  a[1]: row g + 8;  a[2]: row g, k 2q + 8, 2q + 9;  a[3]: row g + 8
//   B k16n8   b0: k 2q, 2q + 1 of column g;  b1: k 2q + 8, 2q + 9
//   A m16k8   (tf32) a[0]: (g, q)  a[1]: (g + 8, q)  a[2]: (g, q + 4)  a[3]: (g + 8, q + 4)
//   B k8n8    (tf32) b0: (k q, column g)  b1: (k q + 4, column g)
#pragma once

#include "target.h"

namespace tilewise::ptx {

// mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
TILEWISE_INSTRUCTION void mma_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) TILEWISE_PTX({
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
});

// mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
TILEWISE_INSTRUCTION void mma_f16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) TILEWISE_PTX({
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
});

// mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32: reads the upper 19 bits of each fp32 operand
TILEWISE_INSTRUCTION void mma_tf32(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) TILEWISE_PTX({
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
});

}  // namespace tilewise::ptx
