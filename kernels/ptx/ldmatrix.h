// ldmatrix / stmatrix: 8x8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8
// (16 bytes, 16-byte aligned). Afterwards lane l holds elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1)
// of each matrix; with .trans of the transposed matrix.
#pragma once

#include "target.h"

namespace tilewise::ptx {

// ldmatrix.sync.aligned.m8n8.x1.shared.b16
TILEWISE_INSTRUCTION void ldmatrix_x1(u32& r0, u32 address) TILEWISE_PTX({
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r0) : "r"(address));
});

// ldmatrix.sync.aligned.m8n8.x2.shared.b16
TILEWISE_INSTRUCTION void ldmatrix_x2(u32 (&r)[2], u32 address) TILEWISE_PTX({
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
});

// ldmatrix.sync.aligned.m8n8.x4.shared.b16
TILEWISE_INSTRUCTION void ldmatrix_x4(u32 (&r)[4], u32 address) TILEWISE_PTX({
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
});

// ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16
TILEWISE_INSTRUCTION void ldmatrix_x2_trans(u32 (&r)[2], u32 address) TILEWISE_PTX({
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1])
               : "r"(address));
});

// ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16
TILEWISE_INSTRUCTION void ldmatrix_x4_trans(u32 (&r)[4], u32 address) TILEWISE_PTX({
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
});

// stmatrix.sync.aligned.m8n8.x4.shared.b16 (sm_90)
TILEWISE_INSTRUCTION void stmatrix_x4(u32 address, const u32 (&r)[4]) TILEWISE_PTX({
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
});

}  // namespace tilewise::ptx
