#include "capi/guard.h"
#include "core/overlap.h"
#include "cpu/backend.h"
#include "cuda/backend.h"

using namespace tilewise;

namespace {

cpu::Partial partial(const char* name, const tw_tensor* out, const tw_tensor* lse, const tw_tensor& like) {
  if (!out || !lse) invalid(name, ": NULL; pass out and lse of both parts and of the result");
  const int n = out->ndim;
  if (n != 3 && n != 4) invalid(name, ": out has ", n, " dimensions; must be (B, S, H, Dv) or (T, H, Dv)");
  if (n != like.ndim || !std::equal(out->size, out->size + n, like.size))
    invalid(name, ": out's shape differs from out_a's");
  if (!is_floating(tw_dtype(out->dtype))) invalid(name, ": out must be fp32, fp16 or bf16");
  const bool packed = n == 3;
  const int64_t *o = out->size, *l = lse->size;
  const bool fits =
      lse->dtype == TW_FP32 && (packed ? lse->ndim == 2 && l[0] == o[1] && l[1] == o[0]
                                       : lse->ndim == 3 && l[0] == o[0] && l[1] == o[2] && l[2] == o[1]);
  if (!fits) invalid(name, ": lse must be fp32 ", packed ? "(H, T)" : "(B, H, S)", " matching out");
  bool empty = false;
  for (int i = 0; i < n; ++i) empty = empty || out->size[i] == 0;
  if (!empty && (!out->data || !lse->data)) invalid(name, ": data is NULL");
  cpu::Partial p;
  const int64_t *s = out->stride, *t = lse->stride;
  p.out = {static_cast<std::byte*>(out->data), tw_dtype(out->dtype),
           packed ? Strides{0, s[0], s[1], s[2]} : Strides{s[0], s[1], s[2], s[3]}};
  auto* data = static_cast<float*>(lse->data);
  p.lse = packed ? RowView{data, 0, t[0], t[1], true} : RowView{data, t[0], t[1], t[2], true};
  return p;
}

// All six tensors on one GPU, or all on the CPU.
bool on_cuda(std::initializer_list<const tw_tensor*> tensors) {
  const tw_tensor& first = **tensors.begin();
  const bool cuda = first.device_type == TW_CUDA;
  for (const tw_tensor* t : tensors)
    if ((t->device_type == TW_CUDA) != cuda || (cuda && t->device_index != first.device_index))
      invalid("merge: tensors on different devices; all six must be on the CPU or on one GPU");
  return cuda;
}

common::CombineParams combine_params(const cpu::Partial& a, const cpu::Partial& b, const cpu::Partial& to,
                                     const int64_t* n, bool packed) {
  if (a.out.dtype != b.out.dtype)
    fail(TW_UNSUPPORTED, "merge: out_a is ", name_of(a.out.dtype), " and out_b ", name_of(b.out.dtype),
         "; on a GPU both must be of one dtype");
  common::CombineParams p{};
  p.first_out = a.out.data, p.more_out = b.out.data, p.out = to.out.data;
  p.first_lse = a.lse.data, p.more_lse = b.lse.data, p.lse = to.lse.data;
  p.first_stride = a.out.stride, p.more_stride = b.out.stride, p.out_stride = to.out.stride;
  p.first_lse_b = a.lse.b, p.first_lse_h = a.lse.h, p.first_lse_s = a.lse.s;
  p.more_lse_b = b.lse.b, p.more_lse_h = b.lse.h, p.more_lse_s = b.lse.s;
  p.lse_b = to.lse.b, p.lse_h = to.lse.h, p.lse_s = to.lse.s;
  p.parts = 2;
  p.part_element = i32(a.out.dtype == TW_FP32   ? Element::fp32
                       : a.out.dtype == TW_FP16 ? Element::fp16
                                                : Element::bf16);
  p.B = packed ? 1 : n[0], p.S = packed ? n[0] : n[1], p.H = packed ? n[1] : n[2];
  p.Dv = i32(packed ? n[2] : n[3]);
  return p;
}

}  // namespace

tw_status tw_merge(const tw_tensor* out_a, const tw_tensor* lse_a, const tw_tensor* out_b,
                   const tw_tensor* lse_b, const tw_tensor* out, const tw_tensor* lse, void* stream) {
  return capi::guard([&] {
    if (!out_a) invalid("a: NULL; pass out and lse of both parts and of the result");
    const cpu::Partial a = partial("a", out_a, lse_a, *out_a), b = partial("b", out_b, lse_b, *out_a),
                       result = partial("result", out, lse, *out_a);
    if (self_overlap(*out) >= 0 || self_overlap(*lse) >= 0) invalid("result: elements share memory");
    const bool packed = out->ndim == 3;
    const int64_t* n = out->size;
    if (on_cuda({out_a, lse_a, out_b, lse_b, out, lse}))
      return cuda::merge(combine_params(a, b, result, n, packed), result.out.dtype, out->device_index,
                         stream);
    cpu::merge(a, b, result, packed ? 1 : n[0], packed ? n[0] : n[1], packed ? n[1] : n[2],
               packed ? n[2] : n[3]);
  });
}
