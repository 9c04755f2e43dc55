// One aggregate describes one compiled kernel. The plan layer fills it, the JIT prints it into the source
// with designated initialisers as a template argument and hashes it into the cache key, `explain` shows it,
// tests list it. Sizes of tensors are run-time values (params.h); only what changes the code is here.
#pragma once

#include "types.h"

namespace tilewise {

enum class Family : int { mma, wgmma, unfused, fa1, common };
enum class Kernel : int {
  forward,
  backward,     // dK and dV, and dQ added in global memory unless deterministic
  backward_dq,  // dQ alone, of the deterministic backward
  backward_prepare,
  backward_convert,     // the fp32 accumulators of dQ to the caller's tensor
  backward_dbias,       // those of dbias
  backward_sink,        // dsink
  backward_statistics,  // a bias: lse where it is too large for one fp32 number
  backward_repair,      // rows of gradients that a NaN behind a boolean mask spoiled
  // head dims that no tile holds
  wide_forward,
  wide_dkv,
  wide_dq,
  wide_dbias,  // for every head dim: a deterministic dbias of a bias that broadcasts
  combine_splits,
  uncovered,     // zeros where no sequence is
  product_rate,  // no attention: what the tensor cores can do at best
  // the unfused baseline's
  product_nt,
  product_nn,
  product_tn,
  softmax,
  softmax_backward,
};
enum class Element : int { fp32, fp16, bf16 };

struct Config {
  Family family = Family::mma;
  Kernel kernel = Kernel::forward;
  Element element = Element::bf16;
  int d = 128;               // head dim of q and k in shared memory: the tile's, >= the tensor's D
  int dv = 128;              // head dim of v and out in shared memory
  int Br = 128;              // query rows of a tile
  int Bc = 64;               // key rows of a tile
  int warps = 4;             // MMA warps of a thread block (the wgmma family adds its producer warpgroup)
  int stages = 1;            // K/V buffers in flight
  int min_blocks = 1;        // thread blocks per multiprocessor that registers must allow
  bool q_registers = false;  // wgmma: Q is held in registers, not read from shared memory for every block
  // Backward: how many warps share out the rows of S^T and dP^T (keys), of dK and dV (keys), of dQ (queries);
  // the others share out the columns.
  int warps_s = 4;
  int warps_dkv = 4;
  int warps_dq = 2;

  // Features. Off costs nothing: the functor is not there.
  bool masked = false;  // a causal or window band (one code path: ranges.h)
  bool softcap = false;
  bool alibi = false;
  bool bias = false;
  bool boolean_mask = false;
  bool dropout = false;
  bool varlen = false;  // cu_seqlens or seqused given
  // Rows that 16-byte copies cannot read (d-stride not 1, or base, row stride or row length not a multiple of
  // 16 bytes) in any of q, k, v, dout: they reach shared memory element by element.
  bool strided = false;
  bool dbias = false;  // backward: the bias wants its gradient
  bool deterministic = false;

  constexpr bool operator==(const Config&) const = default;
};

// The backward's scores and lse in natural units: of a large one times log2 e the rounding would show. The
// others save a multiplication a score.
constexpr bool natural_scores(const Config& c) {
  return c.element == Element::fp32 || c.bias || c.family == Family::fa1;
}

}  // namespace tilewise
