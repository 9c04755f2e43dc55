// The part of the CUDA driver's and NVRTC's binary interfaces that Tilewise calls, declared by hand so that
// building needs no CUDA toolkit. tests/cuda/driver_abi_test.cpp holds every line of it against the real
// headers where they are installed. Included by src/cuda/driver/*.cpp alone: the rest of the library speaks
// through driver.h and nvrtc.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tilewise::cuda::abi {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct ContextHandle*;
using CUmodule = struct ModuleHandle*;
using CUfunction = struct FunctionHandle*;
using CUstream = struct StreamHandle*;
using CUevent = struct EventHandle*;
using CUgraph = struct GraphHandle*;
using CUgraphNode = struct GraphNodeHandle*;
using CUgraphExec = struct GraphExecHandle*;

enum : CUresult {
  kSuccess = 0,
  kErrorInvalidValue = 1,
  kErrorOutOfMemory = 2,
  kErrorInvalidImage = 200,
  kErrorInvalidContext = 201,
  kErrorNoBinaryForGpu = 209,
  kErrorUnsupportedPtxVersion = 222,
};

enum DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kL2CacheSize = 38,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxSharedMemoryPerBlockOptin = 97,
};

enum FunctionAttribute : int { kLocalSizeBytes = 3, kNumRegs = 4, kMaxDynamicSharedSizeBytes = 8 };

enum PointerAttribute : int { kPointerIsManaged = 8, kPointerDeviceOrdinal = 9 };

enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1 };

struct alignas(128) CUtensorMap {
  uint64_t opaque[16];
};

enum TensorMapDataType : int { kTensorFloat16 = 6, kTensorFloat32 = 7, kTensorBfloat16 = 9 };
enum TensorMapSwizzle : int { kSwizzleNone = 0, kSwizzle32B = 1, kSwizzle64B = 2, kSwizzle128B = 3 };
enum TensorMapL2Promotion : int { kL2Promotion128B = 2, kL2Promotion256B = 3 };

enum LaunchAttributeId : int { kAttributeClusterDimension = 4 };

union CUlaunchAttributeValue {
  char pad[64];
  struct {
    unsigned x, y, z;
  } clusterDim;
};

struct alignas(8) CUlaunchAttribute {
  LaunchAttributeId id;
  char pad[4];
  CUlaunchAttributeValue value;
};

struct CUlaunchConfig {
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  CUstream hStream;
  CUlaunchAttribute* attrs;
  unsigned numAttrs;
};

// A kernel of a graph. Its context is the function's.
struct CUDA_KERNEL_NODE_PARAMS {
  CUfunction func;
  unsigned gridDimX, gridDimY, gridDimZ;
  unsigned blockDimX, blockDimY, blockDimZ;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
  void* kern;
  CUcontext ctx;
};

// X(symbol, parameters) for each function of libcuda.so.1; all return CUresult. Symbols are the exported,
// versioned names.
#define TILEWISE_LIBCUDA_FUNCTIONS(X)                                                                       \
  X(cuInit, (unsigned flags))                                                                               \
  X(cuDriverGetVersion, (int* version))                                                                     \
  X(cuGetErrorName, (CUresult error, const char** name))                                                    \
  X(cuGetErrorString, (CUresult error, const char** text))                                                  \
  X(cuDeviceGetCount, (int* count))                                                                         \
  X(cuDeviceGet, (CUdevice * device, int ordinal))                                                          \
  X(cuDeviceGetName, (char* name, int capacity, CUdevice device))                                           \
  X(cuDeviceGetAttribute, (int* value, DeviceAttribute attribute, CUdevice device))                         \
  X(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                                 \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                                       \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                                        \
  X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned* flags, int* active))                            \
  X(cuCtxGetCurrent, (CUcontext * context))                                                                 \
  X(cuCtxGetDevice, (CUdevice * device))                                                                    \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                               \
  X(cuCtxPopCurrent_v2, (CUcontext * context))                                                              \
  X(cuModuleLoadData, (CUmodule * module, const void* image))                                               \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))                        \
  X(cuFuncSetAttribute, (CUfunction function, FunctionAttribute attribute, int value))                      \
  X(cuFuncGetAttribute, (int* value, FunctionAttribute attribute, CUfunction function))                     \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor,                                                            \
    (int* blocks, CUfunction function, int threads, size_t shared_bytes))                                   \
  X(cuLaunchKernelEx, (const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra)) \
  X(cuTensorMapEncodeTiled,                                                                                 \
    (CUtensorMap * map, TensorMapDataType type, uint32_t rank, void* address, const uint64_t* sizes,        \
     const uint64_t* byte_strides, const uint32_t* box, const uint32_t* element_strides, int interleave,    \
     TensorMapSwizzle swizzle, TensorMapL2Promotion promotion, int out_of_bounds_fill))                     \
  X(cuPointerGetAttribute, (void* value, PointerAttribute attribute, CUdeviceptr pointer))                  \
  X(cuThreadExchangeStreamCaptureMode, (CaptureMode * mode))                                                \
  X(cuMemsetD8Async, (CUdeviceptr pointer, unsigned char value, size_t bytes, CUstream stream))             \
  X(cuMemAlloc_v2, (CUdeviceptr * pointer, size_t bytes))                                                   \
  X(cuMemFree_v2, (CUdeviceptr pointer))                                                                    \
  X(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes))                                      \
  X(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes))                                            \
  X(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))                \
  X(cuStreamSynchronize, (CUstream stream))                                                                 \
  X(cuEventCreate, (CUevent * event, unsigned flags))                                                       \
  X(cuEventRecord, (CUevent event, CUstream stream))                                                        \
  X(cuEventSynchronize, (CUevent event))                                                                    \
  X(cuEventElapsedTime, (float* milliseconds, CUevent begin, CUevent end))                                  \
  X(cuEventDestroy_v2, (CUevent event))

// Absent from older drivers; null then.
#define TILEWISE_LIBCUDA_OPTIONAL(X)                                                                     \
  X(cuCtxGetId, (CUcontext context, unsigned long long* id))                                             \
  X(cuFuncLoad, (CUfunction function))                                                                   \
  X(cuTensorMapReplaceAddress, (CUtensorMap * map, void* address))                                       \
  X(cuStreamGetId, (CUstream stream, unsigned long long* id))                                            \
  X(cuStreamGetGreenCtx, (CUstream stream, void** green))                                                \
  X(cuStreamIsCapturing, (CUstream stream, CaptureStatus * status))                                      \
  X(cuGraphCreate, (CUgraph * graph, unsigned flags))                                                    \
  X(cuGraphDestroy, (CUgraph graph))                                                                     \
  X(cuGraphAddKernelNode_v2, (CUgraphNode * node, CUgraph graph, const CUgraphNode* after, size_t count, \
                              const CUDA_KERNEL_NODE_PARAMS* parameters))                                \
  X(cuGraphInstantiateWithFlags, (CUgraphExec * exec, CUgraph graph, unsigned long long flags))          \
  X(cuGraphExecKernelNodeSetParams_v2,                                                                   \
    (CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS* parameters))                     \
  X(cuGraphLaunch, (CUgraphExec exec, CUstream stream))                                                  \
  X(cuGraphExecDestroy, (CUgraphExec exec))

using nvrtcResult = int;
using nvrtcProgram = struct ProgramHandle*;

enum : nvrtcResult { kNvrtcSuccess = 0, kNvrtcCompilation = 6 };

#define TILEWISE_NVRTC_FUNCTIONS(X)                                                                 \
  X(nvrtcVersion, (int* major, int* minor))                                                         \
  X(nvrtcGetNumSupportedArchs, (int* count))                                                        \
  X(nvrtcGetSupportedArchs, (int* archs))                                                           \
  X(nvrtcCreateProgram, (nvrtcProgram * program, const char* source, const char* name, int headers, \
                         const char* const* header_sources, const char* const* header_names))       \
  X(nvrtcDestroyProgram, (nvrtcProgram * program))                                                  \
  X(nvrtcAddNameExpression, (nvrtcProgram program, const char* expression))                         \
  X(nvrtcCompileProgram, (nvrtcProgram program, int options, const char* const* option))            \
  X(nvrtcGetProgramLogSize, (nvrtcProgram program, size_t * bytes))                                 \
  X(nvrtcGetProgramLog, (nvrtcProgram program, char* log))                                          \
  X(nvrtcGetLoweredName, (nvrtcProgram program, const char* expression, const char** name))         \
  X(nvrtcGetCUBINSize, (nvrtcProgram program, size_t * bytes))                                      \
  X(nvrtcGetCUBIN, (nvrtcProgram program, char* cubin))

#define TILEWISE_MEMBER(symbol, parameters) int(*symbol) parameters = nullptr;
struct Libcuda {
  TILEWISE_LIBCUDA_FUNCTIONS(TILEWISE_MEMBER)
  TILEWISE_LIBCUDA_OPTIONAL(TILEWISE_MEMBER)
};
struct Libnvrtc {
  TILEWISE_NVRTC_FUNCTIONS(TILEWISE_MEMBER)
};
#undef TILEWISE_MEMBER

}  // namespace tilewise::cuda::abi
