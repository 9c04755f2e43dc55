/* Tilewise: exact attention, one tile at a time. C11 interface.
 *
 * One struct, tw_attention, describes an attention problem: its tensors and its options. Fill it, then either call
 * tw_attention_run(), or make a plan once and execute it many times:
 *
 *     tw_attention a;
 *     tw_attention_init(&a, sizeof a);
 *     a.q = ...; a.k = ...; a.v = ...; a.out = ...;
 *     tw_plan *plan;
 *     if (tw_plan_create(&a, TW_FORWARD, &plan) != TW_OK) puts(tw_last_error());
 *     size_t bytes = tw_plan_workspace(plan);
 *     tw_plan_execute(plan, &a, workspace, bytes, NULL);
 *     tw_plan_destroy(plan);
 *
 * Shapes (B batch, Sq/Sk lengths, H query heads, Hk key/value heads, H % Hk == 0, D and Dv head dims):
 *     q (B, Sq, H, D)   k (B, Sk, Hk, D)   v (B, Sk, Hk, Dv)   out (B, Sq, H, Dv)   lse (B, H, Sq) fp32
 * packed, with cu_seqlens_q and cu_seqlens_k of B + 1 offsets:
 *     q (Tq, H, D)      k (Tk, Hk, D)      v (Tk, Hk, Dv)      out (Tq, H, Dv)      lse (H, Tq) fp32
 * Strides are free in every dimension and count elements. Nothing is allocated, printed or synchronised behind the caller's
 * back: workspace and stream are the caller's. Every function that can fail returns a tw_status; tw_last_error() has the
 * sentence that says which argument, its value, the limit, and the nearest thing that works.
 */
#ifndef TILEWISE_H
#define TILEWISE_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TW_API __declspec(dllexport)
#else
#define TW_API __attribute__((visibility("default")))
#endif

#define TILEWISE_VERSION_MAJOR 0
#define TILEWISE_VERSION_MINOR 1
#define TILEWISE_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* In C++ an enumeration holds any int that a caller passes, so that a wrong one is refused, not undefined. */
#ifdef __cplusplus
#define TW_ENUM(name) enum name : int
#else
#define TW_ENUM(name) enum name
#endif

typedef TW_ENUM(tw_status) {
  TW_OK = 0,
  TW_INVALID_ARGUMENT = 1, /* a shape, dtype, stride, range or device mistake; nothing was written */
  TW_UNSUPPORTED = 2,      /* a legal problem that no kernel of this build or machine can run */
  TW_OUT_OF_MEMORY = 3,    /* the workspace is too small, or host memory ran out */
  TW_DEVICE_ERROR = 4,     /* the GPU's driver reported a failure */
  TW_COMPILER_ERROR = 5,   /* NVRTC is missing, too old, off, or refused a kernel */
  TW_INTERNAL = 6          /* a bug of ours */
} tw_status;

typedef TW_ENUM(tw_dtype) {
  TW_DTYPE_NONE = 0, /* an absent tensor */
  TW_FP32 = 1,
  TW_FP16 = 2,
  TW_BF16 = 3,
  TW_BOOL = 4, /* one byte, nonzero = true */
  TW_INT32 = 5,
  TW_INT64 = 6
} tw_dtype;

typedef TW_ENUM(tw_device_type) { TW_CPU = 1, TW_CUDA = 2 } tw_device_type; /* DLPack's numbers */

typedef TW_ENUM(tw_pass) { TW_FORWARD = 1, TW_BACKWARD = 2 } tw_pass;

typedef TW_ENUM(tw_alignment) {
  TW_BOTTOM_RIGHT = 0, /* the last query is aligned with the last key: query i sees keys j <= i + Sk - Sq */
  TW_TOP_LEFT = 1      /* the first query is aligned with the first key: j <= i */
} tw_alignment;

/* A view of memory. dtype TW_DTYPE_NONE (all zero) means that the tensor is not given.
 * size and stride count elements; a stride of 0 expands a dimension. */
typedef struct tw_tensor {
  void *data;
  int32_t dtype;        /* tw_dtype */
  int32_t ndim;         /* 1 to 4 */
  int64_t size[4];
  int64_t stride[4];
  int32_t device_type;  /* tw_device_type; 0 is read as TW_CPU */
  int32_t device_index; /* CUDA ordinal */
} tw_tensor;

/* Threads of the caller's, for the CPU's tasks: calls work(job) on this thread and, at the same time, on up to threads - 1 others;
 * returns when all these calls have returned. Fewer calls are right too, and what they leave is done after them: a thread pool
 * that is busy or small may call once or not at all. An OpenMP program's, say:
 *     void run(void *context, int32_t threads, void (*work)(void *), void *job) {
 *     #pragma omp parallel num_threads(threads)
 *       work(job);
 *     } */
typedef void (*tw_run_parallel)(void *context, int32_t threads, void (*work)(void *job), void *job);

typedef struct tw_options {
  double scale;         /* on q . k; NaN (the default) = 1 / sqrt(D) */
  double softcap;       /* c > 0: s = c tanh(s / c); 0 = off */
  int32_t causal;       /* 1: window_right = min(window_right, 0) */
  int32_t alignment;    /* tw_alignment of the causal mask and the window */
  int64_t window_left;  /* keys to the left of the aligned diagonal, inclusive; -1 = all */
  int64_t window_right; /* keys to its right; -1 = all */
  double dropout_p;     /* probability of dropping a probability, in [0, 1) */
  uint64_t seed;        /* Philox stream: (seed, offset) */
  uint64_t offset;
  const uint64_t *philox_state; /* {seed, offset} in memory of the tensors' device; overrides the two above */
  int32_t deterministic;   /* backward bitwise reproducible (the CPU always is) */
  int32_t batch_invariant; /* a sequence's result does not depend on the batch around it */
  int32_t threads;         /* CPU threads; 0 = all */
  int32_t check_metadata;  /* also check device-resident cu_seqlens and seqused (synchronises) */
  const char *algorithm;   /* NULL = the planner's choice; else a name that `tilewise explain` lists */
  tw_run_parallel run_parallel; /* CPU: runs the tasks on the caller's threads; NULL = on the library's. May differ from call to call */
  void *parallel_context;       /* handed to it */
} tw_options;

/* One attention problem. Which tensors a pass needs:
 *   TW_FORWARD   q k v out [lse]
 *   TW_BACKWARD  q k v out lse dout dq dk dv [dlse dbias dsink]; out, lse as the forward wrote them
 * bias, mask, alibi_slopes, sink, cu_seqlens_*, seqused_* and the options are those of the forward. */
typedef struct tw_attention {
  size_t struct_size; /* sizeof(tw_attention), set by tw_attention_init() */
  tw_tensor q, k, v, out, lse;
  tw_tensor bias;         /* added to the scores; (B, H, Sq, Sk) or broadcastable to it by sizes of 1 or strides of 0 */
  tw_tensor mask;         /* TW_BOOL, same shapes, true = visible */
  tw_tensor alibi_slopes; /* fp32 (H) or (B, H): s -= slope |i + Sk - Sq - j| */
  tw_tensor sink;         /* fp32 (H): exp(sink[h]) is added to the softmax denominator */
  tw_tensor cu_seqlens_q, cu_seqlens_k; /* int32 or int64 (B + 1), starting at 0, never decreasing */
  tw_tensor seqused_q, seqused_k;       /* int32 or int64 (B): used length of each sequence or slot */
  int64_t max_seqlen_q, max_seqlen_k;   /* packed tensors on a GPU: longest sequence; 0 = the whole packed length */
  tw_tensor dout, dlse;   /* as out, lse */
  tw_tensor dq, dk, dv;   /* as q, k, v; overwritten */
  tw_tensor dbias;        /* as bias: summed over the dimensions that bias broadcasts; fp32 or bias's dtype */
  tw_tensor dsink;        /* as sink */
  tw_tensor rng_state;    /* optional, CPU, TW_INT64 (3): the dropout that the forward drew, {seed, offset, bits of dropout_p as a
                             double}. The forward writes it; the backward refuses options that differ from it. */
  tw_options options;
} tw_attention;

typedef struct tw_plan tw_plan;

/* Defaults everywhere: no tensors, scale 1/sqrt(D), no mask, windows of -1. `struct_size` is the caller's sizeof(tw_attention). */
TW_API tw_status tw_attention_init(tw_attention *a, size_t struct_size);

/* Checks the problem and decides how it will run. Data pointers may be NULL here (they are then taken to be 16-byte aligned);
 * everything else must be final. The plan may be used from several threads at once. */
TW_API tw_status tw_plan_create(const tw_attention *a, tw_pass pass, tw_plan **plan);
TW_API void tw_plan_destroy(tw_plan *plan);

/* Bytes of workspace that execution needs, on the tensors' device, 256-byte aligned. A pure function of the problem. */
TW_API size_t tw_plan_workspace(const tw_plan *plan);

/* Compiles what the plan needs, so that execution neither compiles nor loads anything (before stream capture, say). */
TW_API tw_status tw_plan_prepare(const tw_plan *plan);

/* Runs the plan on tensors of the planned shapes. `stream` is a CUstream for CUDA tensors and ignored on the CPU, where the
 * call returns when the result is there. Outputs are overwritten whole. */
TW_API tw_status tw_plan_execute(const tw_plan *plan, const tw_attention *a, void *workspace, size_t workspace_bytes,
                                 void *stream);

/* The decision in words: kernel, configuration, workspace, and why each other candidate was not taken. Writes at most `capacity`
 * bytes with a final 0 and stores the full length (without the 0) in *length; either pointer may be NULL. */
TW_API tw_status tw_plan_explain(const tw_plan *plan, char *text, size_t capacity, size_t *length);

/* plan, workspace query and execution in one call: the workspace must hold tw_attention_workspace() bytes. */
TW_API tw_status tw_attention_workspace(const tw_attention *a, tw_pass pass, size_t *bytes);
TW_API tw_status tw_attention_run(const tw_attention *a, tw_pass pass, void *workspace, size_t workspace_bytes, void *stream);

/* Merges two partial results over disjoint sets of keys, exactly (log-sum-exp weighting, in fp32):
 *   lse = log(exp(lse_a) + exp(lse_b)),  out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b.
 * out (B, S, H, Dv) or (T, H, Dv), lse (B, H, S) or (H, T) fp32. An lse of -inf is an empty part. `out` and `lse` may be those
 * of either part. CPU tensors, or CUDA tensors with their stream. */
TW_API tw_status tw_merge(const tw_tensor *out_a, const tw_tensor *lse_a, const tw_tensor *out_b, const tw_tensor *lse_b,
                          const tw_tensor *out, const tw_tensor *lse, void *stream);

/* What this build and machine offer (version, instruction sets, GPUs, NVRTC), in words. As tw_plan_explain(). */
TW_API tw_status tw_info(char *text, size_t capacity, size_t *length);

/* "0.1.0" */
TW_API const char *tw_version(void);

/* The message of the last failed call of this thread; "" after none. Valid until the next call of this thread. */
TW_API const char *tw_last_error(void);

/* "TW_INVALID_ARGUMENT" and so on. */
TW_API const char *tw_status_name(tw_status status);

#ifdef __cplusplus
}
#endif

#endif /* TILEWISE_H */
