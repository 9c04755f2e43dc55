// The part of a planned CUDA call that every kernel family shares: its kernels, loaded once per context, and
// the way to launch them: one by one, or as a graph.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/execution.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/graph.h"
#include "cuda/launch/params.h"
#include "kernels/shared/config.h"

namespace tilewise::cuda {

// One launch of a plan. Its arguments come at run time, everything else is fixed here. With an empty grid it
// keeps its place in the plan, but nothing is compiled or launched for it.
struct KernelUse {
  Config config;
  LaunchShape shape;
};

// Launches the plan's kernels by their place in it, or adds them to a graph.
class Launcher {
 public:
  Launcher(const std::vector<KernelUse>& uses, const std::vector<std::string>& names,
           const Function* functions, void* stream, KernelGraph* graph = nullptr)
      : uses_(uses), names_(names), functions_(functions), stream_(stream), graph_(graph) {}

  template <class... Arguments>
  void operator()(size_t use, const Arguments&... arguments) const {
    void* pointers[] = {const_cast<void*>(static_cast<const void*>(&arguments))...};
    static constexpr size_t kBytes[] = {sizeof(Arguments)...};
    if (graph_)
      graph_->add(functions_[use], uses_[use].shape, pointers, kBytes);
    else
      launch(functions_[use], uses_[use].shape, pointers, stream_, names_[use].c_str());
  }
  // Clears memory on the stream, before the first kernel.
  void clear(void* pointer, size_t bytes) const { fill_zero(pointer, bytes, stream_); }

 private:
  const std::vector<KernelUse>& uses_;
  const std::vector<std::string>& names_;
  const Function* functions_;
  void* stream_;
  KernelGraph* graph_;
};

class CudaExecution : public Execution {
 public:
  CudaExecution(int device, std::vector<KernelUse> uses, size_t workspace);
  ~CudaExecution() override;
  size_t workspace() const final { return workspace_; }
  void prepare() const final;
  void run(const Problem& p, void* workspace, void* stream) const final;
  std::string details() const final;

 protected:
  // Puts the plan's work on the stream. Nothing here may wait, allocate device memory or compile. A second
  // time with the same arguments does the same: where a graph is refused, kernels are launched one by one.
  virtual void enqueue(const Problem& p, std::byte* workspace, const Launcher& launcher) const = 0;

 private:
  // The functions of one context; a list that only grows, read without a lock.
  struct Loaded {
    uint64_t context;
    std::vector<Function> functions;
    std::unique_ptr<const Loaded> next;
  };
  const Function* functions(uint64_t context) const;
  bool run_as_graph(const Problem& p, std::byte* workspace, const Function* functions, uint64_t context,
                    void* stream) const;

  const Device& device_;
  const std::vector<KernelUse> uses_;
  const bool idle_;  // every grid is empty
  std::vector<std::string> names_;
  const size_t workspace_;
  mutable KnownMemory known_memory_;
  mutable StreamGraphs graphs_;
  mutable std::atomic<bool> graphs_refused_{false};
  mutable std::mutex loading_;
  mutable std::unique_ptr<const Loaded> owner_;
  mutable std::atomic<const Loaded*> loaded_{nullptr};
};

}  // namespace tilewise::cuda
