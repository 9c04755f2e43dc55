#include "cuda/driver/driver.h"

#include <algorithm>
#include <bit>
#include <mutex>

#include "core/env.h"
#include "cuda/driver/internal.h"
#include "cuda/driver/shared_library.h"

namespace tilewise::cuda {

using namespace abi;

namespace {

struct LoadedDriver {
  DriverState state;
  Libcuda table;
};

LoadedDriver load_driver() {
  LoadedDriver d;
  const std::string forced = env("TILEWISE_CUDA_DRIVER_PATH");
  const SharedLibrary library = SharedLibrary::open(forced.empty() ? "libcuda.so.1" : forced);
  if (!library) {
    d.state.why_not =
        cat("no CUDA driver (", library.why_not(), "); install the NVIDIA driver, or use CPU tensors");
    return d;
  }
  d.state.path = library.path();
  Libcuda& table = d.table;
  std::string missing;
  TILEWISE_LIBCUDA_FUNCTIONS(TILEWISE_RESOLVE)
  if (!missing.empty()) {
    d.state.why_not = cat("the CUDA driver ", library.path(), " has no ", missing,
                          ": it is older than CUDA 12; install NVIDIA driver 525 or newer");
    return d;
  }
  TILEWISE_LIBCUDA_OPTIONAL(TILEWISE_RESOLVE)
  table.cuDriverGetVersion(&d.state.version);
  if (const CUresult r = table.cuInit(0); r != kSuccess) {
    const char* text = "unknown error";
    table.cuGetErrorString(r, &text);
    d.state.why_not =
        cat("the CUDA driver ", library.path(), " reports: ", text, " (cuInit returned ", r, ")");
    return d;
  }
  d.state.usable = true;
  return d;
}

// Never destroyed: plans that the process keeps to its end ask for it then.
const LoadedDriver& driver() {
  static const LoadedDriver& d = *new LoadedDriver(load_driver());
  return d;
}

int attribute(CUdevice handle, DeviceAttribute a) {
  int value = 0;
  check(libcuda().cuDeviceGetAttribute(&value, a, handle), "cuDeviceGetAttribute(", int(a), ")");
  return value;
}

Device query_device(int ordinal) {
  Device d;
  d.ordinal = ordinal;
  CUdevice handle = 0;
  check(libcuda().cuDeviceGet(&handle, ordinal), "cuDeviceGet(", ordinal, ")");
  char name[256] = {};
  check(libcuda().cuDeviceGetName(name, sizeof name - 1, handle), "cuDeviceGetName");
  d.name = name;
  d.major = attribute(handle, kComputeCapabilityMajor);
  d.minor = attribute(handle, kComputeCapabilityMinor);
  d.multiprocessors = attribute(handle, kMultiprocessorCount);
  d.shared_memory_per_block = attribute(handle, kMaxSharedMemoryPerBlockOptin);
  d.shared_memory_per_multiprocessor = attribute(handle, kMaxSharedMemoryPerMultiprocessor);
  d.l2_bytes = attribute(handle, kL2CacheSize);
  check(libcuda().cuDeviceTotalMem_v2(&d.memory, handle), "cuDeviceTotalMem");
  return d;
}

// The device's primary context, retained once and kept: releasing it would destroy the modules in it.
CUcontext primary_context(int ordinal) {
  static std::mutex mutex;
  static std::vector<CUcontext> contexts;
  const std::lock_guard lock(mutex);
  contexts.resize(std::max(contexts.size(), size_t(ordinal) + 1));
  CUcontext& context = contexts[size_t(ordinal)];
  if (!context)
    check(libcuda().cuDevicePrimaryCtxRetain(&context, ordinal), "cuDevicePrimaryCtxRetain(", ordinal, ")");
  return context;
}

// A number that no other context of the process ever has, or 0 where the driver gives none: then the handle
// must do.
uint64_t context_number(CUcontext context) {
  unsigned long long id = 0;
  if (!context || !libcuda().cuCtxGetId || libcuda().cuCtxGetId(context, &id) != kSuccess) return 0;
  return id;
}

}  // namespace

const DriverState& driver_state() { return driver().state; }

const Libcuda& libcuda() {
  if (!driver().state.usable) fail(TW_UNSUPPORTED, driver().state.why_not);
  return driver().table;
}

std::string describe(CUresult result) {
  const char *name = "unknown CUDA error", *text = "";
  libcuda().cuGetErrorName(result, &name);
  libcuda().cuGetErrorString(result, &text);
  return cat(name ? name : "unknown CUDA error", " (", result, ", ", text ? text : "", ")");
}

const std::vector<Device>& devices() {
  static const std::vector<Device> all = [] {
    std::vector<Device> list;
    if (!driver_state().usable) return list;
    int count = 0;
    check(libcuda().cuDeviceGetCount(&count), "cuDeviceGetCount");
    for (int i = 0; i < count; ++i) list.push_back(query_device(i));
    return list;
  }();
  return all;
}

const Device& device(int ordinal) {
  libcuda();
  if (ordinal < 0 || size_t(ordinal) >= devices().size())
    invalid("the tensors are on CUDA device ", ordinal, ", but this process sees ", devices().size(),
            " CUDA devices (CUDA_VISIBLE_DEVICES limits them)");
  return devices()[size_t(ordinal)];
}

CurrentDevice::CurrentDevice(int ordinal) {
  struct Known {
    uint64_t context = 0;
    int device = -1;
  };
  thread_local Known known;  // calls repeat, and every question to the driver takes time
  const Libcuda& cu = libcuda();
  CUcontext current = nullptr;
  check(cu.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  context_ = context_number(current);
  if (context_ && known.context == context_ && known.device == ordinal) return;
  CUdevice current_device = -1;
  if (current) check(cu.cuCtxGetDevice(&current_device), "cuCtxGetDevice");
  if (current_device == ordinal) {
    known = {context_, ordinal};
  } else {
    current = primary_context(ordinal);
    check(cu.cuCtxPushCurrent_v2(current), "cuCtxPushCurrent");
    pushed_ = true;
    context_ = context_number(current);
  }
  if (!context_) context_ = reinterpret_cast<uint64_t>(current);
}

CurrentDevice::~CurrentDevice() {
  CUcontext popped = nullptr;
  if (pushed_) libcuda().cuCtxPopCurrent_v2(&popped);
}

LivingContext::LivingContext(int ordinal, uint64_t number) : ordinal_(ordinal) {
  const Libcuda& cu = libcuda();
  CUcontext context = nullptr;
  if (!number || cu.cuCtxGetCurrent(&context) != kSuccess) return;  // the process ends
  lives_ = context_number(context) == number;
  unsigned flags = 0;
  int active = 0;  // retaining an inactive one would make it anew
  if (lives_ || cu.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != kSuccess || !active) return;
  held_ = cu.cuDevicePrimaryCtxRetain(&context, ordinal) == kSuccess;
  lives_ = held_ && context_number(context) == number;
}

LivingContext::~LivingContext() {
  if (held_) libcuda().cuDevicePrimaryCtxRelease_v2(ordinal_);
}

Function load_function(std::string_view cubin, const std::string& symbol, int shared_bytes,
                       const std::string& what) {
  const Libcuda& cu = libcuda();
  const RelaxedCapture relaxed;
  CUmodule module = nullptr;
  if (const CUresult r = cu.cuModuleLoadData(&module, cubin.data()); r != kSuccess) {
    const bool version =
        r == kErrorInvalidImage || r == kErrorNoBinaryForGpu || r == kErrorUnsupportedPtxVersion;
    fail(r == kErrorOutOfMemory ? TW_OUT_OF_MEMORY : TW_DEVICE_ERROR, "the driver does not load ", what, ": ",
         describe(r),
         version ? cat(". It supports CUDA ", driver_state().version / 1000, ".",
                       driver_state().version % 1000 / 10,
                       "; a kernel built by a newer NVRTC needs a newer driver, or an older NVRTC in "
                       "TILEWISE_NVRTC_PATH")
                 : "");
  }
  CUfunction handle = nullptr;
  check(cu.cuModuleGetFunction(&handle, module, symbol.c_str()), "cuModuleGetFunction of ", what);
  if (cu.cuFuncLoad) check(cu.cuFuncLoad(handle), "cuFuncLoad of ", what);
  check(cu.cuFuncSetAttribute(handle, kMaxDynamicSharedSizeBytes, shared_bytes), what, " with ", shared_bytes,
        " bytes of shared memory");
  Function f{handle};
  check(cu.cuFuncGetAttribute(&f.registers, kNumRegs, handle), "cuFuncGetAttribute of ", what);
  check(cu.cuFuncGetAttribute(&f.local_bytes, kLocalSizeBytes, handle), "cuFuncGetAttribute of ", what);
  return f;
}

int resident_blocks(const Function& f, int threads, int shared_bytes) {
  int blocks = 0;
  check(libcuda().cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, static_cast<CUfunction>(f.handle),
                                                              threads, size_t(shared_bytes)),
        "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  return blocks;
}

void launch(const Function& f, const LaunchShape& shape, void** arguments, void* stream, const char* what) {
  if (shape.empty()) return;
  CUlaunchAttribute cluster{};
  cluster.id = kAttributeClusterDimension;
  cluster.value.clusterDim = {shape.cluster, 1, 1};
  const CUlaunchConfig config{.gridDimX = shape.grid[0],
                              .gridDimY = shape.grid[1],
                              .gridDimZ = shape.grid[2],
                              .blockDimX = shape.threads,
                              .blockDimY = 1,
                              .blockDimZ = 1,
                              .sharedMemBytes = shape.shared_bytes,
                              .hStream = static_cast<CUstream>(stream),
                              .attrs = &cluster,
                              .numAttrs = shape.cluster > 1 ? 1u : 0u};
  const CUresult r =
      libcuda().cuLaunchKernelEx(&config, static_cast<CUfunction>(f.handle), arguments, nullptr);
  check(r, "launch of ", what, " (grid ", shape.grid[0], " x ", shape.grid[1], " x ", shape.grid[2], ", ",
        shape.threads, " threads, ", shape.shared_bytes, " bytes of shared memory)");
}

void fill_zero(void* pointer, size_t bytes, void* stream) {
  if (bytes == 0) return;
  check(libcuda().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(pointer), 0, bytes,
                                  static_cast<CUstream>(stream)),
        "cuMemsetD8Async of ", bytes, " bytes");
}

int device_of_pointer(const void* pointer, int reader, const char* what) {
  const Libcuda& cu = libcuda();
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  int ordinal = -1;
  if (cu.cuPointerGetAttribute(&ordinal, kPointerDeviceOrdinal, address) != kSuccess)
    invalid(what, " is said to be CUDA memory, but the driver does not know the pointer ", pointer,
            ": pass device memory, or say device_type TW_CPU");
  if (ordinal == reader) return reader;  // a question less: each takes time
  unsigned managed = 0;
  if (cu.cuPointerGetAttribute(&managed, kPointerIsManaged, address) == kSuccess && managed) return reader;
  return ordinal;
}

TensorMap encode_tensor_map(const TensorMapShape& s, const char* what) {
  static_assert(sizeof(TensorMap) == sizeof(CUtensorMap));
  CUtensorMap map{};
  const uint32_t ones[5] = {1, 1, 1, 1, 1};
  const TensorMapDataType type = s.element == MapElement::fp32   ? kTensorFloat32
                                 : s.element == MapElement::fp16 ? kTensorFloat16
                                                                 : kTensorBfloat16;
  const TensorMapSwizzle swizzle = s.swizzle_bytes == 128  ? kSwizzle128B
                                   : s.swizzle_bytes == 64 ? kSwizzle64B
                                   : s.swizzle_bytes == 32 ? kSwizzle32B
                                                           : kSwizzleNone;
  check(libcuda().cuTensorMapEncodeTiled(&map, type, uint32_t(s.rank), const_cast<void*>(s.address), s.size,
                                         s.byte_stride, s.box, ones, 0, swizzle, kL2Promotion256B, 0),
        "cuTensorMapEncodeTiled of ", what);
  return std::bit_cast<TensorMap>(map);
}

bool move_tensor_map(TensorMap& map, const void* address) {
  const auto replace = libcuda().cuTensorMapReplaceAddress;
  if (!replace) return false;
  CUtensorMap moved = std::bit_cast<CUtensorMap>(map);
  if (replace(&moved, const_cast<void*>(address)) != kSuccess) return false;
  map = std::bit_cast<TensorMap>(moved);
  return true;
}

}  // namespace tilewise::cuda
