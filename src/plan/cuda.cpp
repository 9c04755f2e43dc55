#include "plan/cuda.h"

#include <algorithm>

#include "core/env.h"
#include "core/error.h"
#include "kernels/baseline/fa1.h"
#include "kernels/mma/backward_tiles.h"
#include "kernels/mma/tiles.h"
#include "kernels/mma/wide.h"
#include "kernels/wgmma/launch.h"
#include "plan/decision.h"

namespace tilewise::plan {
namespace {

Element element_of(tw_dtype t) {
  return t == TW_FP32 ? Element::fp32 : t == TW_FP16 ? Element::fp16 : Element::bf16;
}

// 16-byte copies reach every row: columns side by side, everything else in steps of 16 bytes.
bool rows_of_16_bytes(const View& v) {
  if (!v) return true;
  const i64 bytes = i64(size_of(v.dtype));
  const Strides s = v.stride;
  return s.d == 1 && (s.s * bytes) % 16 == 0 && (s.h * bytes) % 16 == 0 && (s.b * bytes) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(v.data) % 16 == 0;
}

bool strided(const Problem& p) {
  const i64 bytes = i64(size_of(p.dtype));
  return p.D * bytes % 16 || p.Dv * bytes % 16 || !rows_of_16_bytes(p.q) || !rows_of_16_bytes(p.k) ||
         !rows_of_16_bytes(p.v) || !rows_of_16_bytes(p.dout);
}

// What the problem alone says about every kernel that works on it.
Config features(const Problem& p) {
  Config c;
  c.element = element_of(p.dtype);
  c.masked = p.band_masked();
  c.softcap = p.softcap > 0;
  c.alibi = p.has_alibi;
  c.bias = bool(p.bias);
  c.boolean_mask = bool(p.mask);
  c.dropout = p.dropout_p > 0;
  c.varlen = p.varlen();
  c.strided = strided(p);
  c.dbias = p.pass == TW_BACKWARD && bool(p.dbias);
  c.deterministic = p.pass == TW_BACKWARD && p.deterministic;
  return c;
}

// A way to run a problem, known to the user by name. `plan` fills the kernels or says why it cannot.
struct Candidate {
  const char* name;
  Family family;
  bool baseline;  // what the paper compares with: runs only when asked for
  const char* meaning;
  std::string (*plan)(const Problem& p, const CudaMachine& m, CudaChoice& choice);
};

std::string no_tile(const Problem& p, const CudaMachine& m) {
  return cat("no tile holds D ", p.D, " and Dv ", p.Dv, " (at most 256) in the ", m.shared_memory / 1024,
             " KB of shared memory that a thread block has here");
}

std::string plan_wgmma(const Problem& p, const CudaMachine& m, CudaChoice& choice) {
  if (m.arch != 90) return cat("needs the wgmma instructions of sm_90; this is sm_", m.arch);
  if (p.pass == TW_BACKWARD) return "forward only";
  if (p.dtype == TW_FP32) return "fp16 and bf16 only";
  if (!(p.scale > 0)) return cat("needs a scale above 0; this is ", p.scale);
  for (const View* v : {&p.q, &p.k, &p.v})
    if (!wgmma::tma_readable(reinterpret_cast<uintptr_t>(v->data), v->stride))
      return "tensor maps need q, k and v with contiguous rows, an address of a multiple of 16 bytes and "
             "strides of "
             "multiples of 8 elements";
  if (!wgmma::tma_writable(reinterpret_cast<uintptr_t>(p.out.data), p.out.stride, p.Dv))
    return "the tensor map of out needs contiguous rows of a multiple of 8 elements, an address of a "
           "multiple "
           "of 16 bytes and strides of multiples of 8 elements";
  Config c = features(p);
  c.strided = false;
  const i64 rows = p.Sq << wgmma::most_packed_log2(c, i32(p.group()), p.Sq);
  if (!wgmma::choose_forward_tiles(c, int(p.D), int(p.Dv), rows, p.Sk) ||
      wgmma::forward_smem_bytes(c) > m.shared_memory)
    return no_tile(p, m);
  if (rows * p.B * p.H > i64{1} << 30 || p.total_k > i64{1} << 30)
    return "counts rows of q and k in 31 bits, and this has more";
  choice.kernels = {c};
  return "";
}

// Does one element of bias stand for several scores?
bool broadcasts(const Problem& p) {
  const i64 want[4] = {p.B, p.H, p.Sq, p.Sk};
  for (int i = 0; i < 4; ++i)
    if (p.bias.size[i] == 1 && want[i] > 1) return true;
  return false;
}

Config wide_config(Config c, Kernel kernel) {
  mma::choose_wide_tiles(c, kernel);
  return c;
}

// The main kernels add dbias atomically, in any order where a bias broadcasts. True: it must not be so, and a
// kernel of its own takes dbias from them.
bool take_dbias(const Problem& p, Config& c, CudaChoice& choice) {
  if (!c.dbias || !p.deterministic || !broadcasts(p)) return false;
  c.dbias = false;
  choice.notes.push_back(
      "dbias: the bias broadcasts and its gradient is to be deterministic, so a kernel of its own computes S "
      "and dP once more");
  return true;
}

std::string plan_mma(const Problem& p, const CudaMachine& m, CudaChoice& choice) {
  Config c = features(p);
  if (p.pass == TW_FORWARD) {
    if (!mma::choose_forward_tiles(c, int(p.D), int(p.Dv), {m.shared_memory, m.arch})) return no_tile(p, m);
    choice.kernels = {c};
    return "";
  }
  const bool own_dbias = take_dbias(p, c, choice);
  if (!mma::choose_backward_tiles(c, int(p.D), int(p.Dv), {m.shared_memory, m.arch})) return no_tile(p, m);
  Config dq = c;
  dq.dbias = false;  // the main kernel's
  if (c.deterministic && !mma::choose_backward_dq_tiles(dq, int(p.D), int(p.Dv), m.shared_memory))
    return no_tile(p, m);
  const auto around = [&](Kernel kernel) { choice.kernels.push_back(mma::around_backward(kernel, c)); };
  around(Kernel::backward_prepare);
  if (c.bias) around(Kernel::backward_statistics);
  if (p.has_dsink) around(Kernel::backward_sink);
  choice.kernels.push_back(c);
  if (c.deterministic)
    choice.kernels.push_back(dq);
  else
    around(Kernel::backward_convert);
  if (c.deterministic && mma::repairs(c)) around(Kernel::backward_repair);
  if (own_dbias) choice.kernels.push_back(wide_config(c, Kernel::wide_dbias));
  if (p.dbias) around(Kernel::backward_dbias);
  return "";
}

std::string plan_wide(const Problem& p, const CudaMachine& m, CudaChoice& choice) {
  Config c = features(p);
  c.deterministic = false;  // each of these kernels adds up in one order
  if (mma::wide_smem_bytes(wide_config(c, Kernel::wide_dkv)) > m.shared_memory) return no_tile(p, m);
  if (p.pass == TW_FORWARD) {
    choice.kernels = {wide_config(c, Kernel::wide_forward)};
    return "";
  }
  const bool own_dbias = take_dbias(p, c, choice);
  const auto around = [&](Kernel kernel) {
    Config main = c;
    main.dv = 512, main.deterministic = true;  // any head dim; dQ has a kernel of its own
    choice.kernels.push_back(mma::around_backward(kernel, main));
  };
  around(Kernel::backward_prepare);
  if (c.bias) around(Kernel::backward_statistics);
  if (p.has_dsink) around(Kernel::backward_sink);
  choice.kernels.push_back(wide_config(c, Kernel::wide_dkv));
  c.dbias = false;  // the other kernel's
  choice.kernels.push_back(wide_config(c, Kernel::wide_dq));
  if (mma::repairs(c)) around(Kernel::backward_repair);
  if (own_dbias) choice.kernels.push_back(wide_config(c, Kernel::wide_dbias));
  if (p.dbias) around(Kernel::backward_dbias);
  return "";
}

// What neither baseline carries; "" when the problem has none of it.
std::string beyond_baselines(const Problem& p) {
  const std::pair<bool, const char*> features[] = {{p.varlen(), "cu_seqlens and seqused"},
                                                   {p.softcap > 0, "softcap"},
                                                   {bool(p.bias), "bias"},
                                                   {bool(p.mask), "boolean masks"},
                                                   {p.has_alibi, "alibi_slopes"},
                                                   {p.has_sink, "sink"},
                                                   {p.dropout_p > 0, "dropout"},
                                                   {p.batch_invariant, "batch_invariant"}};
  for (const auto& [present, name] : features)
    if (present) return cat("a baseline, without ", name);
  return "";
}

std::string plan_unfused(const Problem& p, const CudaMachine&, CudaChoice& choice) {
  if (const std::string reason = beyond_baselines(p); !reason.empty()) return reason;
  Config c;
  c.family = Family::unfused;
  c.element = element_of(p.dtype);
  std::vector<Kernel> launches = {Kernel::product_nt, Kernel::softmax};
  if (p.pass == TW_FORWARD)
    launches.push_back(Kernel::product_nn);
  else
    launches.insert(launches.end(), {Kernel::product_tn, Kernel::softmax_backward, Kernel::product_nn});
  for (Kernel kernel : launches) {
    choice.kernels.push_back(c);
    choice.kernels.back().kernel = kernel;
  }
  return "";
}

std::string plan_fa1(const Problem& p, const CudaMachine& m, CudaChoice& choice) {
  if (const std::string reason = beyond_baselines(p); !reason.empty()) return reason;
  if (p.dtype == TW_FP32) return "fp16 and bf16 only";
  if (p.D > 128 || p.Dv > 128) return cat("head dims up to 128, not D ", p.D, " and Dv ", p.Dv);
  Config c;
  c.element = element_of(p.dtype);
  c.d = mma::tile_dim(int(p.D)), c.dv = mma::tile_dim(int(p.Dv));
  c.deterministic = true;  // dQ is one block's
  c.kernel = p.pass == TW_FORWARD ? Kernel::forward : Kernel::backward;
  baseline::choose_fa1_tiles(c);
  const int bytes =
      p.pass == TW_FORWARD ? baseline::fa1_forward_smem_bytes(c) : baseline::fa1_backward_smem_bytes(c);
  if (bytes > m.shared_memory) return no_tile(p, m);
  if (p.pass == TW_BACKWARD) {
    choice.kernels.push_back(c);
    choice.kernels.back().kernel = Kernel::backward_prepare;
  }
  choice.kernels.push_back(c);
  return "";
}

constexpr Candidate kCandidates[] = {
    // best first
    {"wgmma", Family::wgmma, false, "FlashAttention with TMA and wgmma, warpgroups with roles, for Hopper",
     plan_wgmma},
    {"fa2", Family::mma, false, "FlashAttention-2 with mma.sync, for every GPU from sm_80 on", plan_mma},
    {"wide", Family::mma, false,
     "FlashAttention-2 for any head dim, which streams in pieces: S is computed again for every 128 columns "
     "(fp32: "
     "64) of the output, slower than a tile that holds it",
     plan_wide},
    {"fa1", Family::fa1, true, "FlashAttention 1 as published: one block a head, O through memory", plan_fa1},
    {"unfused", Family::unfused, true, "standard attention: S and P written to memory", plan_unfused},
};

std::string names() {
  std::string list;
  for (const Candidate& c : kCandidates) list += (list.empty() ? "" : ", ") + std::string(c.name);
  return list;
}

// The name that the call or the environment forces; the latter only when it is one of ours (it may mean the
// CPU).
std::string forced_name(const Problem& p) {
  if (p.algorithm) return p.algorithm;
  const std::string wish = env("TILEWISE_ALGORITHM");
  const bool ours = std::any_of(std::begin(kCandidates), std::end(kCandidates),
                                [&](const Candidate& c) { return c.name == wish; });
  return ours ? wish : "";
}

}  // namespace

std::vector<std::string> cuda_algorithms() {
  std::vector<std::string> list;
  for (const Candidate& c : kCandidates) list.push_back(c.name);
  return list;
}

Decision decide_cuda(const Problem& p, const CudaMachine& m) {
  if (!m.unavailable.empty()) fail(TW_UNSUPPORTED, "CUDA tensors: ", m.unavailable);
  const std::string forced = forced_name(p);
  Decision d;
  for (const Candidate& candidate : kCandidates) {
    CudaChoice choice;
    choice.family = candidate.family;
    std::string why_not = candidate.plan(p, m, choice);
    if (why_not.empty() && !forced.empty() && forced != candidate.name)
      why_not = cat("algorithm asks for ", forced);
    if (why_not.empty() && forced.empty() && candidate.baseline)
      why_not = "a baseline: runs only when algorithm names it";
    if (why_not.empty() && !d.algorithm.empty()) why_not = "comes after " + d.algorithm;
    if (!why_not.empty()) {
      d.rejected.push_back({candidate.name, why_not});
      continue;
    }
    d.algorithm = candidate.name;
    d.choice = choice;
    d.reasons.push_back(forced.empty()
                            ? cat(candidate.meaning, "; the first candidate that can run this on ", m.name)
                            : "forced by algorithm");
    d.reasons.insert(d.reasons.end(), choice.notes.begin(), choice.notes.end());
  }
  if (!d.algorithm.empty()) return d;
  std::string reasons;
  for (const Rejected& r : d.rejected)
    if (forced.empty() || r.candidate == forced)
      reasons += cat(reasons.empty() ? "" : "; ", r.candidate, ": ", r.reason);
  if (reasons.empty()) invalid("algorithm: '", forced, "' is no CUDA algorithm; there are ", names());
  fail(TW_UNSUPPORTED, "no CUDA kernel for this problem (", reasons, "); CPU tensors work");
}

}  // namespace tilewise::plan
