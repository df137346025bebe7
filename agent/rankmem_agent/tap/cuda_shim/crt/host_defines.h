// Stands in for CUDA's crt/host_defines.h where the headers that came with torch's wheels lack the crt folder
// (packages nvidia-cuda-runtime 12 and 13: it is in nvidia-cuda-crt, or in a toolkit).
//
// The tap is host code: it passes no annotation to a device compiler, so each of these is nothing, or what the
// host compiler says for it. Searched last (-idirafter): a real one always wins.
#pragma once

#define __host__
#define __device__
#define __global__
#define __shared__
#define __constant__
#define __managed__
#define __no_return__ __attribute__((noreturn))
#define __noinline__ __attribute__((noinline))
#define __forceinline__ __inline__ __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define CUDARTAPI
#define CUDARTAPI_CDECL
