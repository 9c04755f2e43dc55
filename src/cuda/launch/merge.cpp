// tw_merge on a GPU: one launch of combine_splits.
#include "core/error.h"
#include "cuda/backend.h"
#include "cuda/jit/kernels.h"
#include "cuda/launch/params.h"
#include "kernels/shared/schedule.h"

namespace tilewise::cuda {

void merge(const common::CombineParams& p, tw_dtype dtype, int ordinal, void* stream) {
  if (const std::string& reason = machine(ordinal).unavailable; !reason.empty())
    fail(TW_UNSUPPORTED, "merge: CUDA tensors: ", reason);
  const u64 blocks = common::combine_blocks(p);
  if (blocks == 0) return;
  const CurrentDevice current(ordinal);
  const std::pair<const void*, const char*> tensors[] = {{p.first_out, "out_a"}, {p.first_lse, "lse_a"},
                                                         {p.more_out, "out_b"},  {p.more_lse, "lse_b"},
                                                         {p.out, "out"},         {p.lse, "lse"}};
  for (const auto& [pointer, name] : tensors)
    if (const int owner = pointer ? device_of_pointer(pointer, ordinal, name) : ordinal; owner != ordinal)
      invalid("merge: ", name, ": memory of CUDA device ", owner, ", while the tensor says device ", ordinal);
  Config c;
  c.family = Family::common;
  c.kernel = Kernel::combine_splits;
  c.element = element_of(dtype);
  const Function f = load_kernel(c, device(ordinal), current.context(), 0);
  const Grid g = fold_grid(blocks);
  void* arguments[] = {const_cast<common::CombineParams*>(&p)};
  launch(f, {.grid = {g.x, g.y, g.z}, .threads = common::kCombineThreads}, arguments, stream, "merge");
}

}  // namespace tilewise::cuda
