#include "capi/guard.h"
#include "core/execution.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "plan/decision.h"

using namespace tilewise;

struct tw_plan {
  tw_attention call;  // as it was planned; what it points to may be gone
  Problem problem;
  plan::Decision decision;
  std::unique_ptr<Execution> execution;
};

namespace {

struct MakeExecution {
  const Problem& p;
  auto operator()(const plan::CpuChoice& c) const { return cpu::make_execution(p, c); }
  auto operator()(const plan::CudaChoice& c) const { return cuda::make_execution(p, c); }
};

tw_plan make_plan(const tw_attention& a, tw_pass pass) {
  tw_plan plan{a, make_problem(a, pass), {}, nullptr};
  const Problem& p = plan.problem;
  plan.decision = p.device == TW_CUDA ? plan::decide_cuda(p, cuda::machine(p.device_index))
                                      : plan::decide_cpu(p, cpu::machine());
  plan.execution = std::visit(MakeExecution{p}, plan.decision.choice);
  return plan;
}

void execute(const tw_plan& plan, const Problem& p, void* workspace, size_t bytes, void* stream) {
  const size_t need = plan.execution->workspace();
  if (bytes < need || (need && !workspace))
    fail(TW_OUT_OF_MEMORY, "workspace: ", workspace ? bytes : 0, " bytes; this plan needs ", need,
         " (tw_plan_workspace(), tw_attention_workspace())");
  if (need && reinterpret_cast<uintptr_t>(workspace) % 64)
    invalid("workspace: address ", workspace, " is not 64-byte aligned; 256 is best");
  if (p.pass == TW_BACKWARD) check_rng_state(p);
  plan.execution->run(p, workspace, stream);
  if (p.pass == TW_FORWARD) record_rng_state(p);
}

template <class T>
T* need(T* pointer, const char* name) {
  if (!pointer) invalid(name, ": NULL");
  return pointer;
}

}  // namespace

tw_status tw_plan_create(const tw_attention* a, tw_pass pass, tw_plan** plan) {
  return capi::guard([&] {
    *need(plan, "plan") = nullptr;
    *plan = new tw_plan(make_plan(capi::read_attention(a), pass));
  });
}

void tw_plan_destroy(tw_plan* plan) { delete plan; }

size_t tw_plan_workspace(const tw_plan* plan) { return plan ? plan->execution->workspace() : 0; }

tw_status tw_plan_prepare(const tw_plan* plan) {
  return capi::guard([&] { need(plan, "plan")->execution->prepare(); });
}

tw_status tw_plan_execute(const tw_plan* plan, const tw_attention* a, void* workspace, size_t workspace_bytes,
                          void* stream) {
  return capi::guard([&] {
    const tw_attention copy = capi::read_attention(a);
    const Problem& planned = need(plan, "plan")->problem;
    require_data(copy, planned.pass);
    std::optional<Problem> p = repeated(planned, plan->call, copy);
    if (!p) {
      p = make_problem(copy, planned.pass);
      check_same(planned, *p);
    }
    execute(*plan, *p, workspace, workspace_bytes, stream);
  });
}

tw_status tw_plan_explain(const tw_plan* plan, char* text, size_t capacity, size_t* length) {
  return capi::guard([&] {
    const tw_plan& p = *need(plan, "plan");
    capi::copy_text(plan::explain(p.problem, p.decision, p.execution->workspace()) + p.execution->details(),
                    text, capacity, length);
  });
}

tw_status tw_attention_workspace(const tw_attention* a, tw_pass pass, size_t* bytes) {
  return capi::guard(
      [&] { *need(bytes, "bytes") = make_plan(capi::read_attention(a), pass).execution->workspace(); });
}

tw_status tw_attention_run(const tw_attention* a, tw_pass pass, void* workspace, size_t workspace_bytes,
                           void* stream) {
  return capi::guard([&] {
    const tw_attention copy = capi::read_attention(a);
    const tw_plan plan = make_plan(copy, pass);
    require_data(copy, pass);
    execute(plan, plan.problem, workspace, workspace_bytes, stream);
  });
}
