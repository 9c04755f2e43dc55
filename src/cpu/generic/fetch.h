// Rows fetched ahead of their use, spread over the steps of a computation.
#pragma once

#include "cpu/generic/vec.h"
#include "cpu/task.h"

namespace tilewise::cpu {

// Fetches rows of `pieces` pieces each into the L2 cache, one piece at a time. A fetch waits in the L1
// cache's miss buffers, which the loads of the computation need too: so they are spread evenly over its
// steps.
struct Fetch {
  const char* row;
  i64 row_bytes, piece_bytes;
  int rows, pieces, piece;
};
TILEWISE_INLINE void fetch_piece(Fetch& f) {
  if (f.rows <= 0) return;
  const char* p = f.row + f.piece * f.piece_bytes;
  for (i64 b = 0; b < f.piece_bytes; b += 64) __builtin_prefetch(p + b, 0, 2);
  if (++f.piece < f.pieces) return;
  f.piece = 0;
  f.row += f.row_bytes;
  --f.rows;
}
template <class T>
TILEWISE_INLINE Fetch fetch_rows(const Matrix& m, i32 begin, i32 end, i64 columns, i64 piece_bytes) {
  const i64 lines = (piece_bytes + 63) / 64 * 64;
  return {reinterpret_cast<const char*>(static_cast<const T*>(m.data) + begin * m.row),
          m.row * i64(sizeof(T)),
          lines,
          end - begin,
          int((columns * i64(sizeof(T)) + lines - 1) / lines),
          0};
}

}  // namespace tilewise::cpu
