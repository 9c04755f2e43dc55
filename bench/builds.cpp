// For builds.py: calls of several builds of libtilewise in one process. Each build is opened by itself; a
// call is one plan of it and that plan's tensors, dense (B, S, H, D) or packed (B S, H, D) with B sequences
// of length S.
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <initializer_list>

#include "tilewise/tilewise.h"

namespace {

struct Build {
  decltype(&tw_attention_init) init;
  decltype(&tw_plan_create) create;
  decltype(&tw_plan_workspace) workspace;
  decltype(&tw_plan_prepare) prepare;
  decltype(&tw_plan_execute) execute;
  decltype(&tw_last_error) error;
};

struct Call {
  const Build* build;
  tw_attention a;
  tw_plan* plan;
  void* workspace;
};

tw_tensor contiguous(void* data, int32_t dtype, std::initializer_list<int64_t> size) {
  tw_tensor t{};
  t.data = data, t.dtype = dtype, t.ndim = int32_t(size.size()), t.device_type = TW_CUDA;
  int64_t stride = 1;
  for (int i = t.ndim - 1; i >= 0; --i)
    t.size[i] = size.begin()[i], t.stride[i] = stride, stride *= t.size[i];
  return t;
}

}  // namespace

extern "C" {

// The layout of builds.py's Problem.
struct Problem {
  int64_t batch, length, heads, kv_heads, dim;
  int32_t dtype, pass, causal, deterministic, packed;
  const char* algorithm;  // "" = the planner's choice
};

// Null where the call does not read them, all of them in a call that is only compiled.
struct Tensors {
  void *q, *k, *v, *out, *lse, *dout, *dq, *dk, *dv, *offsets;
};

size_t struct_bytes() { return sizeof(Problem) + sizeof(Tensors); }

void* open_build(const char* path) {
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) return std::fprintf(stderr, "%s\n", dlerror()), nullptr;
  const auto find = [&]<class F>(F& f, const char* name) {
    f = reinterpret_cast<F>(dlsym(library, name));
    return f != nullptr;
  };
  auto* const b = new Build{};
  const bool found = find(b->init, "tw_attention_init") && find(b->create, "tw_plan_create") &&
                     find(b->workspace, "tw_plan_workspace") && find(b->prepare, "tw_plan_prepare") &&
                     find(b->execute, "tw_plan_execute") && find(b->error, "tw_last_error");
  if (!found) return std::fprintf(stderr, "%s is not a libtilewise\n", path), nullptr;
  return b;
}

// A call whose plan is made, or null after a message.
void* make_call(const void* build, const Problem* p, const Tensors* t) {
  const auto* const b = static_cast<const Build*>(build);
  auto* const call = new Call{b, {}, nullptr, nullptr};
  tw_attention& a = call->a;
  const int64_t B = p->batch, S = p->length, H = p->heads, Hk = p->kv_heads, D = p->dim;
  if (b->init(&a, sizeof a) != TW_OK) return std::fprintf(stderr, "%s\n", b->error()), nullptr;
  const auto rows = [&](void* data, int64_t heads) {
    return p->packed ? contiguous(data, p->dtype, {B * S, heads, D})
                     : contiguous(data, p->dtype, {B, S, heads, D});
  };
  a.q = rows(t->q, H), a.k = rows(t->k, Hk), a.v = rows(t->v, Hk), a.out = rows(t->out, H);
  a.lse = p->packed ? contiguous(t->lse, TW_FP32, {H, B * S}) : contiguous(t->lse, TW_FP32, {B, H, S});
  if (p->pass == TW_BACKWARD)
    a.dout = rows(t->dout, H), a.dq = rows(t->dq, H), a.dk = rows(t->dk, Hk), a.dv = rows(t->dv, Hk);
  if (p->packed) {
    a.cu_seqlens_q = a.cu_seqlens_k = contiguous(t->offsets, TW_INT32, {B + 1});
    a.max_seqlen_q = a.max_seqlen_k = S;
  }
  a.options.causal = p->causal, a.options.deterministic = p->deterministic;
  a.options.algorithm = *p->algorithm ? p->algorithm : nullptr;
  if (b->create(&a, tw_pass(p->pass), &call->plan) == TW_OK) return call;
  return std::fprintf(stderr, "%s\n", b->error()), nullptr;
}

size_t workspace_of(const void* call) {
  const auto* const c = static_cast<const Call*>(call);
  return c->build->workspace(c->plan);
}

void set_workspace(void* call, void* workspace) { static_cast<Call*>(call)->workspace = workspace; }

int prepare(const void* call) {
  const auto* const c = static_cast<const Call*>(call);
  const tw_status status = c->build->prepare(c->plan);
  if (status != TW_OK) std::fprintf(stderr, "%s\n", c->build->error());
  return status;
}

int run(const void* call, void* stream) {
  const auto* const c = static_cast<const Call*>(call);
  const tw_status status = c->build->execute(c->plan, &c->a, c->workspace, workspace_of(call), stream);
  if (status != TW_OK) std::fprintf(stderr, "%s\n", c->build->error());
  return status;
}

}  // extern "C"
