#include "cuda/launch/uncovered.h"

#include <algorithm>

#include "core/problem.h"
#include "cuda/launch/params.h"

namespace tilewise::cuda {
namespace {

common::UncoveredParams rows_of(const Problem& p, const View& v, bool queries) {
  const IndexView &offsets = queries ? p.cu_seqlens_q : p.cu_seqlens_k,
                  &used = queries ? p.seqused_q : p.seqused_k;
  common::UncoveredParams u{};
  u.tensor = v.data, u.stride = v.stride;
  u.B = i32(p.B), u.S = i32(queries ? p.Sq : p.Sk), u.H = i32(queries ? p.H : p.Hk);
  u.offsets = offsets.data, u.offsets_are_64 = offsets.dtype == TW_INT64, u.offsets_stride = offsets.stride;
  u.used = used.data, u.used_are_64 = used.dtype == TW_INT64, u.used_stride = used.stride;
  u.rows = queries ? p.total_q : p.total_k;
  return u;
}

}  // namespace

std::vector<common::UncoveredParams> uncovered_outputs(const Problem& p) {
  std::vector<common::UncoveredParams> list;
  const auto add = [&](const View& v, bool queries, i64 columns) {
    const bool may_be_uncovered = p.packed || (queries ? p.seqused_q : p.seqused_k);
    common::UncoveredParams u = rows_of(p, v, queries);
    u.columns = i32(columns);
    if (may_be_uncovered && u.rows * u.H > 0) list.push_back(u);
  };
  if (p.pass == TW_FORWARD) {
    add(p.out, true, p.Dv);
    for (common::UncoveredParams& u : list)
      u.lse = p.lse.data, u.lse_b = p.lse.b, u.lse_h = p.lse.h, u.lse_s = p.lse.s;
  } else {
    add(p.dq, true, p.D), add(p.dk, false, p.D), add(p.dv, false, p.Dv);
  }
  return list;
}

std::vector<KernelUse> uncovered_uses(const Problem& p) {
  std::vector<KernelUse> uses;
  for (const common::UncoveredParams& u : uncovered_outputs(p)) {
    Config c;
    c.family = Family::common;
    c.kernel = Kernel::uncovered;
    c.element = element_of(p.dtype) == Element::fp32 ? Element::fp32 : Element::bf16;  // 4 bytes or 2
    constexpr i64 kEnoughBlocks = 1024;
    const i64 blocks = (u.rows + common::kUncoveredRows - 1) / common::kUncoveredRows;
    uses.push_back(
        {c,
         {.grid = {unsigned(std::min(blocks, kEnoughBlocks)), 1, 1}, .threads = common::kUncoveredThreads}});
  }
  return uses;
}

}  // namespace tilewise::cuda
