#include "fake_cuda.h"

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "cuda/driver/abi.h"

using namespace tilewise::cuda::abi;

namespace {

struct Context {
  int device;
};

std::mutex mutex;
std::vector<fake_cuda::Launch> launches;
std::set<std::string> calls;
std::map<CUdeviceptr, std::pair<size_t, int>> allocations;  // address -> bytes, device
size_t argument_bytes = 0, argument_index = 0;
std::string failing = std::getenv("FAKE_CUDA_FAIL") ? std::getenv("FAKE_CUDA_FAIL") : "";
fake_cuda::Graphs graphs;
void* captured = nullptr;
int primary_active = 1;
thread_local std::vector<Context*> stack;

std::vector<int> capabilities() {
  const char* text = std::getenv("FAKE_CUDA_DEVICES");
  std::istringstream in(text ? text : "90");
  std::vector<int> list;
  for (int c; in >> c;) list.push_back(c);
  return list;
}

Context* primary(int device) {
  static Context contexts[16];
  contexts[device].device = device;
  return &contexts[device];
}

int fails(const char* symbol) {
  {
    const std::lock_guard lock(mutex);
    calls.insert(symbol);
  }
  std::istringstream in(failing);
  for (std::string one; in >> one;)
    if (const size_t at = one.find('='); one.substr(0, at) == symbol) return std::atoi(one.c_str() + at + 1);
  return 0;
}

struct Node {
  size_t place;
  fake_cuda::Launch launch;
};
struct Graph {
  std::deque<Node> nodes;
};
struct GraphExec {
  std::vector<Node> nodes;
  std::atomic<bool> used;
};

// Graphs are not for two threads at once.
class Use {
 public:
  explicit Use(GraphExec* exec) : exec_(exec) {
    if (exec->used.exchange(true)) std::abort();
  }
  ~Use() { exec_->used = false; }

 private:
  GraphExec* exec_;
};

[[maybe_unused]] fake_cuda::Launch launch_of(const CUDA_KERNEL_NODE_PARAMS& p) {
  const auto* first = static_cast<const unsigned char*>(p.kernelParams[argument_index]);
  return {*reinterpret_cast<const std::string*>(p.func),
          {p.gridDimX, p.gridDimY, p.gridDimZ},
          p.blockDimX,
          p.sharedMemBytes,
          1,
          nullptr,
          stack.back()->device,
          {first, first + argument_bytes},
          nullptr};
}

template <class Parameters>
bool launchable(const Parameters& p) {
  const auto within = [](unsigned n, unsigned most) { return n >= 1 && n <= most; };
  return within(p.gridDimX, 0x7FFFFFFF) && within(p.gridDimY, 65535) && within(p.gridDimZ, 65535) &&
         within(p.blockDimX, 1024);
}

}  // namespace

#define FAIL_IF_TOLD \
  if (const int code = fails(__func__); code) return code

extern "C" {

std::vector<fake_cuda::Launch>* fake_cuda_launches() { return &launches; }
std::set<std::string>* fake_cuda_calls() { return &calls; }
void fake_cuda_argument_bytes(size_t bytes) { argument_bytes = bytes; }
void fake_cuda_argument_index(size_t index) { argument_index = index; }
void fake_cuda_fail(const char* what) { failing = what; }
void fake_cuda_capture(void* stream) { captured = stream; }
void fake_cuda_primary_active(int active) { primary_active = active; }
fake_cuda::Graphs* fake_cuda_graphs() { return &graphs; }

int cuInit(unsigned) {
  FAIL_IF_TOLD;
  return 0;
}
int cuDriverGetVersion(int* version) {
  const char* text = std::getenv("FAKE_CUDA_VERSION");
  *version = text ? std::atoi(text) : 13000;
  return 0;
}
int cuGetErrorName(int, const char** name) {
  *name = "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "as the test asked";
  return 0;
}
int cuDeviceGetCount(int* count) {
  *count = int(capabilities().size());
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDeviceGetName(char* name, int capacity, int) {
  std::strncpy(name, "Fake GPU", size_t(capacity));
  return 0;
}
int cuDeviceGetAttribute(int* value, DeviceAttribute attribute, int device) {
  const int capability = capabilities()[size_t(device)];
  const int shared = capability == 80 ? 163 : capability == 90 || capability == 100 ? 227 : 99;
  switch (attribute) {
    case kComputeCapabilityMajor: *value = capability / 10; break;
    case kComputeCapabilityMinor: *value = capability % 10; break;
    case kMultiprocessorCount: *value = 132; break;
    case kL2CacheSize: *value = 50 << 20; break;
    default: *value = shared * 1024;
  }
  return 0;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{1} << 36;
  return 0;
}
int cuDevicePrimaryCtxRetain(Context** context, int device) {
  FAIL_IF_TOLD;
  *context = primary(device);
  return 0;
}
int cuCtxGetCurrent(Context** context) {
  *context = stack.empty() ? nullptr : stack.back();
  return 0;
}
int cuCtxGetDevice(int* device) {
  *device = stack.back()->device;
  return 0;
}
int cuCtxGetId(Context* context, unsigned long long* id) {
  if (std::getenv("FAKE_CUDA_NO_IDS")) return 1;
  *id = static_cast<unsigned long long>(context->device) + 1;
  return 0;
}
int cuCtxPushCurrent_v2(Context* context) {
  stack.push_back(context);
  return 0;
}
int cuCtxPopCurrent_v2(Context** context) {
  *context = stack.back();
  stack.pop_back();
  return 0;
}
int cuModuleLoadData(void** module, const void* image) {
  FAIL_IF_TOLD;
  *module = const_cast<void*>(image);
  return 0;
}
int cuModuleGetFunction(std::string** function, void*, const char* name) {
  FAIL_IF_TOLD;
  *function = new std::string(name);
  return 0;
}
int cuFuncSetAttribute(void*, FunctionAttribute, int) {
  FAIL_IF_TOLD;
  return 0;
}
int cuFuncGetAttribute(int* value, FunctionAttribute, void*) {
  *value = 42;
  return 0;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int, size_t) {
  *blocks = 1;
  return 0;
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = primary_active;
  return 0;
}
int cuDevicePrimaryCtxRelease_v2(int) { return 0; }
int cuLaunchKernelEx(const CUlaunchConfig* c, std::string* function, void** arguments, void**) {
  FAIL_IF_TOLD;
  if (!function || !launchable(*c)) return 1;  // CUDA_ERROR_INVALID_VALUE
  const std::lock_guard lock(mutex);
  const auto* first = static_cast<const unsigned char*>(arguments[argument_index]);
  launches.push_back({*function,
                      {c->gridDimX, c->gridDimY, c->gridDimZ},
                      c->blockDimX,
                      c->sharedMemBytes,
                      c->numAttrs ? c->attrs[0].value.clusterDim.x : 1,
                      c->hStream,
                      stack.back()->device,
                      {first, first + argument_bytes},
                      nullptr});
  return 0;
}
int cuStreamGetId(void* stream, unsigned long long* id) {
  FAIL_IF_TOLD;
  thread_local char mine;
  *id = reinterpret_cast<uintptr_t>(stream == fake_cuda::kPerThread ? &mine : stream);
  return 0;
}
int cuStreamIsCapturing(void* stream, CaptureStatus* status) {
  FAIL_IF_TOLD;
  *status = captured && captured == stream ? kCaptureActive : kCaptureNone;
  return 0;
}
int cuStreamGetGreenCtx(void* stream, void** green) {
  FAIL_IF_TOLD;
  *green = stream == fake_cuda::kGreen ? stream : nullptr;
  return 0;
}
int cuTensorMapEncodeTiled(CUtensorMap* map, TensorMapDataType, uint32_t, void* address, const uint64_t*,
                           const uint64_t*, const uint32_t*, const uint32_t*, int, TensorMapSwizzle,
                           TensorMapL2Promotion, int) {
  FAIL_IF_TOLD;
  std::memset(map, 0, sizeof *map);
  map->opaque[0] = reinterpret_cast<uint64_t>(address);
  return 0;
}
int cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  FAIL_IF_TOLD;
  map->opaque[0] = reinterpret_cast<uint64_t>(address);
  return 0;
}
int cuPointerGetAttribute(void* value, PointerAttribute attribute, CUdeviceptr pointer) {
  const std::lock_guard lock(mutex);
  const auto after = allocations.upper_bound(pointer);
  if (after == allocations.begin()) return 1;
  const auto& [address, allocation] = *std::prev(after);
  if (pointer >= address + allocation.first) return 1;
  *static_cast<int*>(value) = attribute == kPointerDeviceOrdinal ? allocation.second : 0;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(CaptureMode*) { return 0; }
int cuMemsetD8Async(CUdeviceptr pointer, unsigned char value, size_t bytes, void*) {
  FAIL_IF_TOLD;
  std::memset(reinterpret_cast<void*>(pointer), value, bytes);
  return 0;
}
int cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  FAIL_IF_TOLD;
  const std::lock_guard lock(mutex);
  const size_t page = size_t{2} << 20;  // as the driver's: none is of two devices, or the host's, too
  *pointer = reinterpret_cast<CUdeviceptr>(std::aligned_alloc(page, (bytes + page - 1) / page * page));
  allocations[*pointer] = {bytes, stack.back()->device};
  return 0;
}
int cuMemFree_v2(CUdeviceptr pointer) {
  FAIL_IF_TOLD;
  const std::lock_guard lock(mutex);
  allocations.erase(pointer);
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}
int cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  FAIL_IF_TOLD;
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
int cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  FAIL_IF_TOLD;
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return 0;
}
int cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void*) {
  FAIL_IF_TOLD;
  std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes);
  return 0;
}
int cuStreamSynchronize(void*) {
  FAIL_IF_TOLD;
  return 0;
}
int cuEventCreate(void** event, unsigned) {
  *event = nullptr;
  return 0;
}
int cuEventRecord(void*, void*) { return 0; }
int cuEventSynchronize(void*) {
  FAIL_IF_TOLD;
  return 0;
}
int cuEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 1;
  return 0;
}
int cuEventDestroy_v2(void*) { return 0; }

#ifndef FAKE_CUDA_WITHOUT_GRAPHS
int cuGraphCreate(Graph** graph, unsigned) {
  FAIL_IF_TOLD;
  const std::lock_guard lock(mutex);
  *graph = new Graph;
  ++graphs.graphs;
  return 0;
}
int cuGraphDestroy(Graph* graph) {
  const std::lock_guard lock(mutex);
  delete graph;
  --graphs.graphs;
  return 0;
}
int cuGraphAddKernelNode_v2(Node** node, Graph* graph, Node* const* after, size_t count,
                            const CUDA_KERNEL_NODE_PARAMS* p) {
  FAIL_IF_TOLD;
  Node* const last = graph->nodes.empty() ? nullptr : &graph->nodes.back();
  if (count != (last ? 1 : 0) || (count && *after != last)) return 1;  // a chain alone
  if (!p->func || !launchable(*p)) return 1;
  graph->nodes.push_back({graph->nodes.size(), launch_of(*p)});
  *node = &graph->nodes.back();
  return 0;
}
int cuGraphInstantiateWithFlags(GraphExec** exec, Graph* graph, unsigned long long) {
  FAIL_IF_TOLD;
  const std::lock_guard lock(mutex);
  *exec = new GraphExec{{graph->nodes.begin(), graph->nodes.end()}, false};
  ++graphs.executables, ++graphs.made;
  return 0;
}
int cuGraphExecKernelNodeSetParams_v2(GraphExec* exec, Node* node, const CUDA_KERNEL_NODE_PARAMS* p) {
  FAIL_IF_TOLD;
  const Use use(exec);
  exec->nodes[node->place].launch = launch_of(*p);
  const std::lock_guard lock(mutex);
  ++graphs.parameters_set;
  return 0;
}
int cuGraphLaunch(GraphExec* exec, void* stream) {
  FAIL_IF_TOLD;
  if (captured && captured == stream) return 900;
  const Use use(exec);
  const std::lock_guard lock(mutex);
  for (const Node& node : exec->nodes) {
    launches.push_back(node.launch);
    launches.back().stream = stream;
    launches.back().graph = exec;
  }
  return 0;
}
int cuGraphExecDestroy(GraphExec* exec) {
  const Use use(exec);
  const std::lock_guard lock(mutex);
  --graphs.executables;
  return 0;  // the memory stays, so that no other gets its address
}
#endif

}  // extern "C"
