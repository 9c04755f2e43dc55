#include "cuda/driver/graph.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "cuda/driver/internal.h"

namespace tilewise::cuda {

using namespace abi;

namespace {

bool driver_has_graphs() {
  const Libcuda& cu = libcuda();
  return cu.cuCtxGetId && cu.cuStreamGetId && cu.cuStreamIsCapturing && cu.cuGraphCreate &&
         cu.cuGraphDestroy && cu.cuGraphAddKernelNode_v2 && cu.cuGraphInstantiateWithFlags &&
         cu.cuGraphExecKernelNodeSetParams_v2 && cu.cuGraphLaunch && cu.cuGraphExecDestroy;
}

// Whether launches on the stream are held to a part of the multiprocessors, of which a graph knows nothing.
bool has_green_context(void* stream) {
  const Libcuda& cu = libcuda();
  void* green = nullptr;
  return cu.cuStreamGetGreenCtx &&
         (cu.cuStreamGetGreenCtx(static_cast<CUstream>(stream), &green) != kSuccess || green);
}

}  // namespace

std::optional<uint64_t> graph_stream(void* stream) {
  static const bool graphs = driver_has_graphs();
  const Libcuda& cu = libcuda();
  CaptureStatus capture = kCaptureActive;
  unsigned long long number = 0;
  if (!graphs || cu.cuStreamIsCapturing(static_cast<CUstream>(stream), &capture) != kSuccess ||
      capture != kCaptureNone || cu.cuStreamGetId(static_cast<CUstream>(stream), &number) != kSuccess)
    return {};
  return number;
}

KernelGraph::~KernelGraph() { destroy(); }

// Of a context that is gone, its graphs are as well. The driver frees a graph that still runs at its end.
void KernelGraph::destroy() {
  if (graph_ && LivingContext(device_, context_)) {
    const RelaxedCapture relaxed;
    if (executable_) libcuda().cuGraphExecDestroy(static_cast<CUgraphExec>(executable_));
    libcuda().cuGraphDestroy(static_cast<CUgraph>(graph_));
  }
  graph_ = executable_ = nullptr;
  nodes_.clear();
}

void KernelGraph::begin() {
  next_ = 0;
  if (executable_ || refused_) return;
  destroy();  // what a call has left that ended before its launch
  CUgraph graph = nullptr;
  const RelaxedCapture relaxed;
  refused_ = libcuda().cuGraphCreate(&graph, 0) != kSuccess;
  graph_ = graph;
}

bool KernelGraph::Node::take(const Function& f, const LaunchShape& s, void** from,
                             std::span<const size_t> bytes) {
  const size_t size = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  bool same = function == f.handle && shape == s && arguments.size() == size;
  arguments.resize(size);
  function = f.handle, shape = s;
  std::byte* kept = arguments.data();
  for (size_t i = 0; i < bytes.size(); kept += bytes[i++]) {
    same = same && std::memcmp(kept, from[i], bytes[i]) == 0;
    if (!same) std::memcpy(kept, from[i], bytes[i]);
  }
  return !same;
}

void KernelGraph::add(const Function& f, const LaunchShape& shape, void** arguments,
                      std::span<const size_t> bytes) {
  if (shape.empty()) return;
  const size_t place = next_++;
  if (shape.cluster > 1 || (executable_ && place >= nodes_.size())) refused_ = true;
  if (refused_) return;
  if (!executable_) nodes_.emplace_back();
  Node& node = nodes_[place];
  if (!node.take(f, shape, arguments, bytes)) return;
  const CUDA_KERNEL_NODE_PARAMS parameters{.func = static_cast<CUfunction>(f.handle),
                                           .gridDimX = shape.grid[0],
                                           .gridDimY = shape.grid[1],
                                           .gridDimZ = shape.grid[2],
                                           .blockDimX = shape.threads,
                                           .blockDimY = 1,
                                           .blockDimZ = 1,
                                           .sharedMemBytes = shape.shared_bytes,
                                           .kernelParams = arguments,
                                           .extra = nullptr,
                                           .kern = nullptr,
                                           .ctx = nullptr};
  const Libcuda& cu = libcuda();
  auto handle = static_cast<CUgraphNode>(node.handle);
  if (executable_) {
    refused_ = cu.cuGraphExecKernelNodeSetParams_v2(static_cast<CUgraphExec>(executable_), handle,
                                                    &parameters) != kSuccess;
    return;
  }
  const auto before = place ? static_cast<CUgraphNode>(nodes_[place - 1].handle) : nullptr;
  refused_ = cu.cuGraphAddKernelNode_v2(&handle, static_cast<CUgraph>(graph_), &before, place ? 1 : 0,
                                        &parameters) != kSuccess;
  node.handle = handle;
}

bool KernelGraph::launch(void* stream) {
  const Libcuda& cu = libcuda();
  refused_ = refused_ || next_ != nodes_.size();
  if (!refused_ && !executable_) {
    CUgraphExec executable = nullptr;
    const RelaxedCapture relaxed;
    refused_ = has_green_context(stream) ||
               cu.cuGraphInstantiateWithFlags(&executable, static_cast<CUgraph>(graph_), 0) != kSuccess;
    executable_ = executable;
  }
  refused_ = refused_ || cu.cuGraphLaunch(static_cast<CUgraphExec>(executable_),
                                          static_cast<CUstream>(stream)) != kSuccess;
  return !refused_;
}

std::shared_ptr<StreamGraphs::Graph> StreamGraphs::of(int device, uint64_t context, uint64_t stream) {
  std::shared_ptr<Graph> last;  // goes after the lock
  const std::lock_guard lock(mutex_);
  auto found = std::find_if(recent_.begin(), recent_.end(), [&](const std::shared_ptr<Graph>& g) {
    return g->context == context && g->stream == stream;
  });
  if (found == recent_.end()) {
    if (recent_.size() == kStreams) last = std::move(recent_.back()), recent_.pop_back();
    recent_.push_back(std::make_shared<Graph>(device, context, stream));
    found = recent_.end() - 1;
  }
  std::rotate(recent_.begin(), found, found + 1);
  return recent_.front();
}

}  // namespace tilewise::cuda
