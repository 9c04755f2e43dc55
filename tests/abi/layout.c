/* The layout of version 0.1's structs. Compiling this file is the test: a line that no longer holds breaks
 * callers. */
#include "tilewise/tilewise.h"

#define OFFSET(type, member, bytes) \
  _Static_assert(offsetof(type, member) == bytes, #type "." #member " moved")
#define SIZE(type, bytes) _Static_assert(sizeof(type) == bytes, #type " has another size")
#define VALUE(name, number) _Static_assert(name == number, #name " has another value")

OFFSET(tw_tensor, data, 0);
OFFSET(tw_tensor, dtype, 8);
OFFSET(tw_tensor, ndim, 12);
OFFSET(tw_tensor, size, 16);
OFFSET(tw_tensor, stride, 48);
OFFSET(tw_tensor, device_type, 80);
OFFSET(tw_tensor, device_index, 84);
SIZE(tw_tensor, 88);
OFFSET(tw_options, scale, 0);
OFFSET(tw_options, softcap, 8);
OFFSET(tw_options, causal, 16);
OFFSET(tw_options, alignment, 20);
OFFSET(tw_options, window_left, 24);
OFFSET(tw_options, window_right, 32);
OFFSET(tw_options, dropout_p, 40);
OFFSET(tw_options, seed, 48);
OFFSET(tw_options, offset, 56);
OFFSET(tw_options, philox_state, 64);
OFFSET(tw_options, deterministic, 72);
OFFSET(tw_options, batch_invariant, 76);
OFFSET(tw_options, threads, 80);
OFFSET(tw_options, check_metadata, 84);
OFFSET(tw_options, algorithm, 88);
OFFSET(tw_options, run_parallel, 96);
OFFSET(tw_options, parallel_context, 104);
SIZE(tw_options, 112);
OFFSET(tw_attention, struct_size, 0);
OFFSET(tw_attention, q, 8);
OFFSET(tw_attention, k, 96);
OFFSET(tw_attention, v, 184);
OFFSET(tw_attention, out, 272);
OFFSET(tw_attention, lse, 360);
OFFSET(tw_attention, bias, 448);
OFFSET(tw_attention, mask, 536);
OFFSET(tw_attention, alibi_slopes, 624);
OFFSET(tw_attention, sink, 712);
OFFSET(tw_attention, cu_seqlens_q, 800);
OFFSET(tw_attention, cu_seqlens_k, 888);
OFFSET(tw_attention, seqused_q, 976);
OFFSET(tw_attention, seqused_k, 1064);
OFFSET(tw_attention, max_seqlen_q, 1152);
OFFSET(tw_attention, max_seqlen_k, 1160);
OFFSET(tw_attention, dout, 1168);
OFFSET(tw_attention, dlse, 1256);
OFFSET(tw_attention, dq, 1344);
OFFSET(tw_attention, dk, 1432);
OFFSET(tw_attention, dv, 1520);
OFFSET(tw_attention, dbias, 1608);
OFFSET(tw_attention, dsink, 1696);
OFFSET(tw_attention, rng_state, 1784);
OFFSET(tw_attention, options, 1872);
SIZE(tw_attention, 1984);

VALUE(TW_OK, 0);
VALUE(TW_INVALID_ARGUMENT, 1);
VALUE(TW_UNSUPPORTED, 2);
VALUE(TW_OUT_OF_MEMORY, 3);
VALUE(TW_DEVICE_ERROR, 4);
VALUE(TW_COMPILER_ERROR, 5);
VALUE(TW_INTERNAL, 6);
VALUE(TW_DTYPE_NONE, 0);
VALUE(TW_FP32, 1);
VALUE(TW_FP16, 2);
VALUE(TW_BF16, 3);
VALUE(TW_BOOL, 4);
VALUE(TW_INT32, 5);
VALUE(TW_INT64, 6);
VALUE(TW_CPU, 1);
VALUE(TW_CUDA, 2);
VALUE(TW_FORWARD, 1);
VALUE(TW_BACKWARD, 2);
VALUE(TW_BOTTOM_RIGHT, 0);
VALUE(TW_TOP_LEFT, 1);
