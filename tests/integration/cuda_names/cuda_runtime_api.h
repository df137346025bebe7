// As much of CUDA's runtime as torch's headers name, so that the tap's CUDA side compiles where CUDA is not.
#pragma once
#include <cstddef>
#include <cstdint>

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorMemoryAllocation = 2,
  cudaErrorCudartUnloading = 4,
  cudaErrorNotReady = 600,
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone,
  cudaStreamCaptureStatusActive,
  cudaStreamCaptureStatusInvalidated,
};
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal,
  cudaStreamCaptureModeThreadLocal,
  cudaStreamCaptureModeRelaxed,
};
typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
};

// Compiled only, never linked: any arguments do.
template <class... Arguments> cudaError_t cudaMemcpyAsync(Arguments...);
template <class... Arguments> cudaError_t cudaStreamSynchronize(Arguments...);
template <class... Arguments> cudaError_t cudaStreamIsCapturing(Arguments...);
template <class... Arguments> cudaError_t cudaStreamGetPriority(Arguments...);
template <class... Arguments> cudaError_t cudaStreamGetCaptureInfo(Arguments...);
template <class... Arguments> cudaError_t cudaDeviceGetStreamPriorityRange(Arguments...);
template <class... Arguments> cudaError_t cudaThreadExchangeStreamCaptureMode(Arguments...);
template <class... Arguments> cudaError_t cudaMemGetInfo(Arguments...);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t);
