// Compiling this file is the test: every hand-declared type, constant and function of src/cuda/driver/abi.h
// against the CUDA toolkit's own headers.
#include "cuda/driver/abi.h"

#include <cuda.h>
#include <nvrtc.h>

#include <cstdio>
#include <type_traits>

#if CUDA_VERSION < 12040
extern "C" CUresult cuStreamGetGreenCtx(CUstream, void**);
#endif

namespace abi = tilewise::cuda::abi;

// Two parameters pass alike: pointers, integers and enumerations of one size.
template <class A, class B>
constexpr bool same_parameter = (std::is_pointer_v<A> && std::is_pointer_v<B>) ||
                                ((std::is_integral_v<A> ||
                                  std::is_enum_v<A>)&&(std::is_integral_v<B> ||
                                                       std::is_enum_v<B>)&&sizeof(A) == sizeof(B));

template <class Ours, class Theirs>
struct SameFunction : std::false_type {};
template <class R, class S, class... A, class... B>
requires(sizeof...(A) == sizeof...(B)) struct SameFunction<R(A...), S(B...)> {
  static constexpr bool value = sizeof(R) == sizeof(S) && (same_parameter<A, B> && ...);
};

namespace tilewise::cuda::abi {
#define DECLARE(symbol, parameters) using Type_##symbol = int parameters;
TILEWISE_LIBCUDA_FUNCTIONS(DECLARE)
TILEWISE_LIBCUDA_OPTIONAL(DECLARE)
TILEWISE_NVRTC_FUNCTIONS(DECLARE)
}  // namespace tilewise::cuda::abi

// `::symbol` follows the toolkit's renaming macros: of cuEventElapsedTime we call the older version, of the
// same signature.
#define COMPARE(symbol, parameters) \
  static_assert(SameFunction<abi::Type_##symbol, decltype(::symbol)>::value, #symbol);
TILEWISE_LIBCUDA_FUNCTIONS(COMPARE)
TILEWISE_LIBCUDA_OPTIONAL(COMPARE)
TILEWISE_NVRTC_FUNCTIONS(COMPARE)

static_assert(sizeof(abi::CUdevice) == sizeof(::CUdevice) &&
              sizeof(abi::CUdeviceptr) == sizeof(::CUdeviceptr));
static_assert(sizeof(abi::CUtensorMap) == sizeof(::CUtensorMap) &&
              alignof(abi::CUtensorMap) == alignof(::CUtensorMap));
static_assert(sizeof(abi::CUlaunchAttribute) == sizeof(::CUlaunchAttribute));
static_assert(alignof(abi::CUlaunchAttribute) == alignof(::CUlaunchAttribute));
static_assert(offsetof(abi::CUlaunchAttribute, value) == offsetof(::CUlaunchAttribute, value));
static_assert(offsetof(abi::CUlaunchAttributeValue, clusterDim) ==
              offsetof(::CUlaunchAttributeValue, clusterDim));
static_assert(sizeof(abi::CUlaunchConfig) == sizeof(::CUlaunchConfig));
#define SAME_OFFSET(type, member) \
  static_assert(offsetof(abi::type, member) == offsetof(::type, member), #type "." #member)
SAME_OFFSET(CUlaunchConfig, gridDimX);
SAME_OFFSET(CUlaunchConfig, gridDimZ);
SAME_OFFSET(CUlaunchConfig, blockDimX);
SAME_OFFSET(CUlaunchConfig, blockDimZ);
SAME_OFFSET(CUlaunchConfig, sharedMemBytes);
SAME_OFFSET(CUlaunchConfig, hStream);
SAME_OFFSET(CUlaunchConfig, attrs);
SAME_OFFSET(CUlaunchConfig, numAttrs);
static_assert(sizeof(abi::CUDA_KERNEL_NODE_PARAMS) == sizeof(::CUDA_KERNEL_NODE_PARAMS));
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, func);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, gridDimX);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, gridDimZ);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, blockDimX);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, blockDimZ);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, sharedMemBytes);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, kernelParams);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, extra);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, kern);
SAME_OFFSET(CUDA_KERNEL_NODE_PARAMS, ctx);

#define SAME_VALUE(ours_name, theirs) static_assert(int(abi::ours_name) == int(theirs), #theirs)
SAME_VALUE(kSuccess, CUDA_SUCCESS);
SAME_VALUE(kErrorInvalidValue, CUDA_ERROR_INVALID_VALUE);
SAME_VALUE(kErrorOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
SAME_VALUE(kErrorInvalidImage, CUDA_ERROR_INVALID_IMAGE);
SAME_VALUE(kErrorInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
SAME_VALUE(kErrorNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_VALUE(kErrorUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
SAME_VALUE(kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_VALUE(kL2CacheSize, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
SAME_VALUE(kComputeCapabilityMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_VALUE(kComputeCapabilityMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_VALUE(kMaxSharedMemoryPerMultiprocessor, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
SAME_VALUE(kMaxSharedMemoryPerBlockOptin, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
SAME_VALUE(kLocalSizeBytes, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME_VALUE(kNumRegs, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME_VALUE(kMaxDynamicSharedSizeBytes, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
SAME_VALUE(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_VALUE(kPointerDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_VALUE(kCaptureGlobal, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME_VALUE(kCaptureThreadLocal, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_VALUE(kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_VALUE(kCaptureNone, CU_STREAM_CAPTURE_STATUS_NONE);
SAME_VALUE(kCaptureActive, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME_VALUE(kTensorFloat16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16);
SAME_VALUE(kTensorFloat32, CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
SAME_VALUE(kTensorBfloat16, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16);
SAME_VALUE(kSwizzleNone, CU_TENSOR_MAP_SWIZZLE_NONE);
SAME_VALUE(kSwizzle32B, CU_TENSOR_MAP_SWIZZLE_32B);
SAME_VALUE(kSwizzle64B, CU_TENSOR_MAP_SWIZZLE_64B);
SAME_VALUE(kSwizzle128B, CU_TENSOR_MAP_SWIZZLE_128B);
SAME_VALUE(kL2Promotion128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
SAME_VALUE(kL2Promotion256B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
SAME_VALUE(kAttributeClusterDimension, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION);
SAME_VALUE(kNvrtcSuccess, NVRTC_SUCCESS);
SAME_VALUE(kNvrtcCompilation, NVRTC_ERROR_COMPILATION);

int main() {
  std::puts("the hand-declared CUDA interfaces equal the toolkit's");
  return 0;
}
