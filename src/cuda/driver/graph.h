// The kernels of a call as one graph of the driver's: one or three cost the host half of a launch, where
// three launches cost three. An executable graph never runs beside itself, so each stream has its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "cuda/driver/driver.h"

namespace tilewise::cuda {

// A number that no other stream of this process ever has (the default stream of each thread has its own).
// None where kernels have to be launched one by one now: the stream is being captured, so that launches
// become nodes of the capture, or the driver knows no graphs.
std::optional<uint64_t> graph_stream(void* stream);

// A chain of kernels, each after the one before. For one thread at a time, with its context current.
class KernelGraph {
 public:
  KernelGraph(int device, uint64_t context) : device_(device), context_(context) {}
  ~KernelGraph();
  KernelGraph(const KernelGraph&) = delete;
  KernelGraph& operator=(const KernelGraph&) = delete;

  // A call: begin(), add() for each kernel, launch(). `arguments` point to the kernel's parameters, whose
  // sizes are `bytes`; they are copied. An empty grid adds nothing. The first call makes the graph, each
  // later one sets what differs from the call before.
  void begin();
  void add(const Function& f, const LaunchShape& shape, void** arguments, std::span<const size_t> bytes);
  // False when the driver has refused anything, in this call or an earlier one, or the kernels are not as
  // many as in the first call; nothing is on the stream then.
  bool launch(void* stream);

 private:
  // What the driver was told last.
  struct Node {
    void* handle = nullptr;
    void* function = nullptr;
    LaunchShape shape;
    std::vector<std::byte> arguments;  // one after the other
    // False when it is what the node has already.
    bool take(const Function& f, const LaunchShape& s, void** from, std::span<const size_t> bytes);
  };
  void destroy();

  const int device_;
  const uint64_t context_;
  void *graph_ = nullptr, *executable_ = nullptr;
  std::vector<Node> nodes_;
  size_t next_ = 0;
  bool refused_ = false;  // for good
};

// The graphs of one plan, of the streams that it has run on last.
class StreamGraphs {
 public:
  struct Graph {
    Graph(int device, uint64_t context_, uint64_t stream_)
        : context(context_), stream(stream_), kernels(device, context_) {}
    const uint64_t context, stream;
    std::mutex busy;  // held by the thread that uses what follows
    bool called = false;
    KernelGraph kernels;
  };
  // The caller shares what it gets, because other threads' calls may push it out of the list.
  std::shared_ptr<Graph> of(int device, uint64_t context, uint64_t stream);

 private:
  static constexpr size_t kStreams = 8;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Graph>> recent_;  // the last used one first
};

}  // namespace tilewise::cuda
