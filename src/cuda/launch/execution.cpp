#include "cuda/launch/execution.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "cuda/jit/config_text.h"
#include "cuda/jit/kernels.h"
#include "cuda/launch/params.h"

namespace tilewise::cuda {

CudaExecution::CudaExecution(int ordinal, std::vector<KernelUse> uses, size_t workspace)
    : device_(device(ordinal)),
      uses_(std::move(uses)),
      idle_(std::all_of(uses_.begin(), uses_.end(), [](const KernelUse& use) { return use.shape.empty(); })),
      workspace_((workspace + 255) / 256 * 256) {
  for (const KernelUse& use : uses_) names_.push_back("the kernel " + config_summary(use.config));
}

CudaExecution::~CudaExecution() = default;

const Function* CudaExecution::functions(uint64_t context) const {
  for (const Loaded* l = loaded_.load(std::memory_order_acquire); l; l = l->next.get())
    if (l->context == context) return l->functions.data();
  const std::lock_guard lock(loading_);
  for (const Loaded* l = owner_.get(); l; l = l->next.get())
    if (l->context == context) return l->functions.data();
  auto fresh = std::make_unique<Loaded>();
  fresh->context = context;
  for (const KernelUse& use : uses_)
    fresh->functions.push_back(use.shape.empty()
                                   ? Function{}
                                   : load_kernel(use.config, device_, context, int(use.shape.shared_bytes)));
  fresh->next = std::move(owner_);
  owner_ = std::move(fresh);
  loaded_.store(owner_.get(), std::memory_order_release);
  return owner_->functions.data();
}

void CudaExecution::prepare() const {
  const CurrentDevice current(device_.ordinal);
  functions(current.context());
}

void CudaExecution::run(const Problem& p, void* workspace, void* stream) const {
  if (idle_) return;
  const CurrentDevice current(device_.ordinal);
  known_memory_.check(p, workspace_ ? workspace : nullptr);
  const Function* const kernels = functions(current.context());
  auto* const bytes = static_cast<std::byte*>(workspace);
  if (!run_as_graph(p, bytes, kernels, current.context(), stream))
    enqueue(p, bytes, Launcher(uses_, names_, kernels, stream));
}

bool CudaExecution::run_as_graph(const Problem& p, std::byte* workspace, const Function* functions,
                                 uint64_t context, void* stream) const {
  if (graphs_refused_.load(std::memory_order_relaxed)) return false;
  const std::optional<uint64_t> stream_number = graph_stream(stream);
  if (!stream_number) return false;
  const std::shared_ptr<StreamGraphs::Graph> graph = graphs_.of(device_.ordinal, context, *stream_number);
  const std::lock_guard lock(graph->busy);
  if (!std::exchange(graph->called, true)) return false;  // making one takes longer than a single call gains
  graph->kernels.begin();
  enqueue(p, workspace, Launcher(uses_, names_, functions, stream, &graph->kernels));
  if (graph->kernels.launch(stream)) return true;
  graphs_refused_.store(true, std::memory_order_relaxed);
  return false;
}

std::string CudaExecution::details() const {
  std::string text;
  for (const KernelUse& use : uses_) {
    if (use.shape.empty()) continue;
    const FoundKernel found = look_up_kernel(use.config, device_.capability());
    text +=
        cat("kernel     ", config_summary(use.config), "\n           grid ", use.shape.grid[0], " x ",
            use.shape.grid[1], " x ", use.shape.grid[2], ", ", use.shape.threads, " threads, ",
            use.shape.shared_bytes, " bytes of shared memory; ", found.target, ", ", name_of(found.origin));
    if (found.kernel)
      text += cat(", ", found.kernel->registers, " registers, ", found.kernel->spill_bytes,
                  " bytes spilled, compiled in ", int(1000 * found.kernel->seconds + 0.5), " ms");
    text += "\n";
  }
  return text;
}

}  // namespace tilewise::cuda
