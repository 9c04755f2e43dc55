// The kernels that usual problems need, and the GPUs that they can be built for without one at hand.
#include <algorithm>

#include "core/error.h"
#include "core/problem.h"
#include "kernels/common/product_rate.h"
#include "plan/cuda.h"
#include "plan/decision.h"

namespace tilewise::plan {
namespace {

View contiguous(tw_dtype dtype, i64 S, i64 H, i64 D) { return {nullptr, dtype, {S * H * D, H * D, D, 1}}; }

Problem problem(tw_pass pass, tw_dtype dtype, i64 D, i64 S = 1024) {
  Problem p;
  p.pass = pass;
  p.device = TW_CUDA;
  p.dtype = dtype;
  p.B = 2, p.H = p.Hk = 4, p.Sq = p.Sk = S, p.D = p.Dv = D;
  p.total_q = p.total_k = p.B * p.Sq;
  p.q = p.k = p.v = p.out = contiguous(dtype, p.Sq, p.H, D);
  p.lse.given = true;
  if (pass == TW_BACKWARD) p.dout = p.dq = p.dk = p.dv = p.q;
  return p;
}

void make_packed(Problem& p) {
  p.packed = true;
  p.cu_seqlens_q.dtype = p.cu_seqlens_k.dtype = TW_INT32;
  for (View* v : {&p.q, &p.k, &p.v, &p.out, &p.dout, &p.dq, &p.dk, &p.dv}) v->stride.b = 0;
}

void make_scores(ScoreView& v, tw_dtype dtype, const Problem& p) {
  v.dtype = dtype;
  v.stride = {0, p.Sq * p.Sk, p.Sk, 1};
}

// Each feature alone, on a causal problem.
void add_features(std::vector<Problem>& list, tw_pass pass, tw_dtype dtype, i64 D) {
  const auto add = [&](auto&& change) {
    Problem p = problem(pass, dtype, D);
    p.causal = true;
    change(p);
    list.push_back(p);
  };
  add([](Problem& p) { p.softcap = 30; });
  add([](Problem& p) { p.has_alibi = true; });
  add([](Problem& p) { make_scores(p.bias, p.dtype, p); });
  add([](Problem& p) { make_scores(p.mask, TW_BOOL, p); });
  add([](Problem& p) { p.dropout_p = 0.1; });
  if (pass == TW_BACKWARD) add([](Problem& p) { p.deterministic = true; });
}

std::vector<Problem> common_problems() {
  std::vector<Problem> list;
  for (tw_pass pass : {TW_FORWARD, TW_BACKWARD})
    for (tw_dtype dtype : {TW_BF16, TW_FP16, TW_FP32}) {
      for (i64 D : {32, 64, 96, 128, 192, 256})
        for (bool causal : {false, true})
          for (bool packed : {false, true})
            for (i64 S : {1024, 4096}) {  // some tiles are chosen by the number of rows
              Problem p = problem(pass, dtype, D, S);
              p.causal = causal;
              if (packed) make_packed(p);
              list.push_back(p);
            }
      if (dtype != TW_FP32)
        for (i64 D : {64, 128}) add_features(list, pass, dtype, D);
    }
  return list;
}

}  // namespace

CudaMachine machine_of_arch(int arch) {
  CudaMachine m;
  m.name = cat("a GPU of compute capability ", arch / 10, ".", arch % 10);
  m.arch = arch;
  m.multiprocessors = 128;
  m.l2_bytes = i64{40} << 20;
  switch (arch) {  // CUDA C++ Programming Guide, table of technical specifications: shared memory per thread
                   // block
    case 80:
    case 87: m.shared_memory = 163 * 1024; break;
    case 86:
    case 89:
    case 120:
    case 121: m.shared_memory = 99 * 1024; break;
    case 90:
    case 100:
    case 103:
    case 110: m.shared_memory = 227 * 1024; break;
    default: m.unavailable = cat("sm_", arch, " is not a GPU that this version knows");
  }
  return m;
}

std::vector<Config> listed_kernels(int arch) {
  const CudaMachine m = machine_of_arch(arch);
  std::vector<Config> list;
  const auto add = [&](const Config& c) {
    if (std::find(list.begin(), list.end(), c) == list.end()) list.push_back(c);
  };
  for (Problem p : common_problems())
    for (const std::string& algorithm : cuda_algorithms()) try {
        p.algorithm = algorithm.c_str();
        const Decision d = decide_cuda(p, m);
        for (const Config& c : std::get<CudaChoice>(d.choice).kernels) add(c);
      } catch (const Error& e) {
        if (e.status() != TW_UNSUPPORTED) throw;
      }
  for (Element e : {Element::bf16, Element::fp32}) {  // the launcher's own, beside every family
    Config uncovered;
    uncovered.family = Family::common;
    uncovered.kernel = Kernel::uncovered;
    uncovered.element = e;
    add(uncovered);
  }
  for (Element e : {Element::bf16, Element::fp16, Element::fp32}) add(common::rate_config(arch, e));
  return list;
}

}  // namespace tilewise::plan
