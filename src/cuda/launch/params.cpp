#include "cuda/launch/params.h"

#include "core/error.h"
#include "cuda/driver/driver.h"

namespace tilewise::cuda {
namespace {

// Kernels keep lengths and windows in 32 bits: make_problem() and clamp_window() have bounded them.
i32 small(i64 x) { return i32(x); }

void check_pointer(const void* pointer, int device_index, const char* name) {
  if (!pointer) return;
  const int owner = device_of_pointer(pointer, device_index, name);
  if (owner != device_index)
    invalid(name, ": memory of CUDA device ", owner, ", while the call says device ", device_index,
            "; all tensors and the workspace must be on one device");
}

}  // namespace

Element element_of(tw_dtype dtype) {
  switch (dtype) {
    case TW_FP16: return Element::fp16;
    case TW_BF16: return Element::bf16;
    default: return Element::fp32;
  }
}

AttentionParams attention_params(const Problem& p) {
  AttentionParams a{};
  a.q = p.q.data, a.k = p.k.data, a.v = p.v.data, a.out = p.out.data;
  a.q_stride = p.q.stride, a.k_stride = p.k.stride, a.v_stride = p.v.stride, a.out_stride = p.out.stride;
  a.lse = p.lse.data;
  a.lse_b = p.lse.b, a.lse_h = p.lse.h, a.lse_s = p.lse.s;
  a.B = small(p.B), a.Sq = small(p.Sq), a.Sk = small(p.Sk);
  a.H = small(p.H), a.Hk = small(p.Hk), a.group = small(p.group());
  a.D = small(p.D), a.Dv = small(p.Dv);

  a.cu_seqlens_q = p.cu_seqlens_q.data, a.cu_q_is_64 = p.cu_seqlens_q.dtype == TW_INT64;
  a.cu_seqlens_k = p.cu_seqlens_k.data, a.cu_k_is_64 = p.cu_seqlens_k.dtype == TW_INT64;
  a.seqused_q = p.seqused_q.data, a.used_q_is_64 = p.seqused_q.dtype == TW_INT64;
  a.seqused_k = p.seqused_k.data, a.used_k_is_64 = p.seqused_k.dtype == TW_INT64;
  a.cu_q_stride = p.cu_seqlens_q.stride, a.cu_k_stride = p.cu_seqlens_k.stride;
  a.used_q_stride = p.seqused_q.stride, a.used_k_stride = p.seqused_k.stride;
  a.total_q = p.total_q, a.total_k = p.total_k;

  a.scale = p.scale, a.softcap = p.softcap;
  const Band<i64> band = p.band(1, 1);
  a.window_left = small(band.left), a.window_right = small(band.right);
  a.top_left = p.top_left;

  a.bias = p.bias.data, a.bias_stride = p.bias.stride;
  a.bias_element = i32(element_of(p.bias.dtype));
  a.mask = reinterpret_cast<const unsigned char*>(p.mask.data), a.mask_stride = p.mask.stride;
  a.alibi = p.alibi, a.alibi_b = p.alibi_b, a.alibi_h = p.alibi_h;
  a.sink = p.sink, a.sink_h = p.sink_h;

  a.seed = p.seed, a.offset = p.offset, a.philox_state = p.philox_state;
  a.dropout_threshold = dropout_threshold(p.dropout_p);
  a.inv_keep = float(1 / (1 - p.dropout_p));

  a.dout = p.dout.data, a.dout_stride = p.dout.stride;
  a.dlse = p.dlse.data, a.dlse_b = p.dlse.b, a.dlse_h = p.dlse.h, a.dlse_s = p.dlse.s;
  a.dq = p.dq.data, a.dk = p.dk.data, a.dv = p.dv.data;
  a.dsink = p.dsink, a.dsink_h = p.dsink_h;
  a.dq_stride = p.dq.stride, a.dk_stride = p.dk.stride, a.dv_stride = p.dv.stride;
  return a;
}

void check_alignment(const Problem& p) {
  const auto check = [](const View& v, const char* name) {
    if (reinterpret_cast<uintptr_t>(v.data) % 16)
      invalid(name, ": address ", static_cast<const void*>(v.data),
              " is not a multiple of 16 bytes, as the plan took for granted; make the plan with this "
              "tensor's data, or align it");
  };
  check(p.q, "q"), check(p.k, "k"), check(p.v, "v"), check(p.dout, "dout");
}

void KnownMemory::check(const Problem& p, const void* workspace) {
  const auto check = [&](bool read, const void* pointer, const char* name) {
    if (!read || !pointer) return;
    const uintptr_t page = reinterpret_cast<uintptr_t>(pointer) / kPageBytes + 1;
    std::atomic<uintptr_t>& known = pages_[uint64_t{page} * 0x9E3779B97F4A7C15u >> (64 - kPlaceBits)];
    if (known.load(std::memory_order_relaxed) == page) return;
    check_pointer(pointer, p.device_index, name);
    known.store(page, std::memory_order_relaxed);
  };
  const bool queries = p.total_q * p.H > 0, keys = p.total_k * p.Hk > 0, scores = queries && keys;
  check(queries, p.q.data, "q"), check(keys, p.k.data, "k"), check(keys, p.v.data, "v");
  check(queries, p.out.data, "out"), check(queries, p.lse.data, "lse");
  check(scores, p.bias.data, "bias"), check(scores, p.mask.data, "mask");
  check(queries, p.alibi, "alibi_slopes"), check(queries, p.sink, "sink");
  check(true, p.cu_seqlens_q.data, "cu_seqlens_q"), check(true, p.cu_seqlens_k.data, "cu_seqlens_k");
  check(true, p.seqused_q.data, "seqused_q"), check(true, p.seqused_k.data, "seqused_k");
  check(queries, p.dout.data, "dout"), check(queries, p.dlse.data, "dlse"), check(queries, p.dq.data, "dq");
  check(keys, p.dk.data, "dk"), check(keys, p.dv.data, "dv"), check(scores, p.dbias.data, "dbias");
  check(queries, p.dsink, "dsink"), check(true, p.philox_state, "philox_state"),
      check(true, workspace, "workspace");
}

}  // namespace tilewise::cuda
