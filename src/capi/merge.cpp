#include "capi/guard.h"
#include "core/overlap.h"
#include "cpu/backend.h"

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

}  // namespace

tw_status tw_merge(const tw_tensor* out_a, const tw_tensor* lse_a, const tw_tensor* out_b,
                   const tw_tensor* lse_b, const tw_tensor* out, const tw_tensor* lse, void* /*stream*/) {
  return capi::guard([&] {
    if (!out_a) invalid("a: NULL; pass out and lse of both parts and of the result");
    const cpu::Partial a = partial("a", out_a, lse_a, *out_a), b = partial("b", out_b, lse_b, *out_a),
                       result = partial("result", out, lse, *out_a);
    for (const tw_tensor* t : {out_a, lse_a, out_b, lse_b, out, lse})
      if (t->device_type == TW_CUDA)
        fail(TW_UNSUPPORTED, "merge: CUDA tensors are not supported yet; CPU tensors are");
    if (self_overlap(*out) >= 0 || self_overlap(*lse) >= 0) invalid("result: elements share memory");
    const bool packed = out->ndim == 3;
    const int64_t* n = out->size;
    cpu::merge(a, b, result, packed ? 1 : n[0], packed ? n[0] : n[1], packed ? n[1] : n[2],
               packed ? n[2] : n[3]);
  });
}
