/* A CUDA runtime without a GPU, enough for PyTorch's real caching allocator (libc10_cuda.so) to run on it, and with
 * stand-ins for the rest (tests/tools/matrix_stand_ins.py) for trainings of PyTorch for CUDA 13, in which kernels do
 * nothing.
 *
 * FAKE_DEVICES devices of FAKE_DEVICE_BYTES, or of as many bytes as the environment's FAKE_DEVICE_BYTES says;
 * addresses are handed out and never touched, also those that the driver would reserve and map for expandable
 * segments. Events are "not ready" until fake_set_ready(1), so that blocks used on another stream stay awaiting their
 * free; with FAKE_READY=1 they are from the start. Everything else succeeds.
 * Built as libcudart.so.12 or .13 with a version script of that name (the wheels ask for versioned symbols).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define FAKE_DEVICE_BYTES (2ull << 30)
#ifndef FAKE_DEVICES
#define FAKE_DEVICES 2
#endif
#ifndef FAKE_READY
#define FAKE_READY 0
#endif
#define GRANULARITY (2ull << 20)
#define ALLOCATIONS_MAX 65536
enum { SUCCESS = 0, MEMORY_ALLOCATION = 2, NOT_SUPPORTED = 801, NOT_READY = 600 };

static _Thread_local int current_device;
static atomic_int ready = FAKE_READY;
static atomic_ullong next_handle = 0x1000;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_address = 0x7f0000000000ull;
static uint64_t used_bytes[FAKE_DEVICES];
static struct { uint64_t address, bytes; int device; } held[ALLOCATIONS_MAX];
static int held_count;

static uint64_t device_bytes(void) {
  const char* text = getenv("FAKE_DEVICE_BYTES");
  return text != NULL ? strtoull(text, NULL, 10) : FAKE_DEVICE_BYTES;
}

EXPORT void fake_set_ready(int value) { atomic_store(&ready, value); }

EXPORT int cudaGetDeviceCount(int* count) { *count = FAKE_DEVICES; return SUCCESS; }
EXPORT int cudaGetDevice(int* device) { *device = current_device; return SUCCESS; }
EXPORT int cudaSetDevice(int device) { current_device = device; return SUCCESS; }

EXPORT int cudaMalloc(void** out, size_t bytes) {
  int result = MEMORY_ALLOCATION;
  pthread_mutex_lock(&lock);
  if (held_count < ALLOCATIONS_MAX && used_bytes[current_device] + bytes <= device_bytes()) {
    held[held_count].address = next_address;
    held[held_count].bytes = bytes;
    held[held_count++].device = current_device;
    used_bytes[current_device] += bytes;
    *out = (void*)next_address;
    next_address += (bytes + GRANULARITY) / GRANULARITY * GRANULARITY;
    result = SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

EXPORT int cudaFree(void* pointer) {
  pthread_mutex_lock(&lock);
  for (int at = 0; at < held_count; ++at) {
    if (held[at].address == (uint64_t)pointer) {
      used_bytes[held[at].device] -= held[at].bytes;
      held[at] = held[--held_count];
      break;
    }
  }
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}

EXPORT int cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  *free_bytes = device_bytes() - used_bytes[current_device];
  *total_bytes = device_bytes();
  return SUCCESS;
}

static int make_handle(void** out) {
  *out = (void*)(uintptr_t)atomic_fetch_add(&next_handle, 0x10);
  return SUCCESS;
}
EXPORT int cudaEventCreateWithFlags(void** event, unsigned flags) { (void)flags; return make_handle(event); }
EXPORT int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  (void)flags; (void)priority; return make_handle(stream);
}
EXPORT int cudaEventQuery(void* event) { (void)event; return atomic_load(&ready) ? SUCCESS : NOT_READY; }
EXPORT int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { *least = 0; *greatest = -1; return SUCCESS; }
EXPORT int cudaStreamIsCapturing(void* stream, int* status) { (void)stream; *status = 0; return SUCCESS; }
EXPORT int cudaStreamGetCaptureInfo(void* stream, int* status) { (void)stream; *status = 0; return SUCCESS; }
/* The driver's virtual memory, as expandable segments use it. A handle is the bytes behind it and their device. */
struct memory { uint64_t bytes; int device; };
static int succeed(void) { return SUCCESS; }
static int attribute(int* value, int which, int device) { (void)which; (void)device; *value = 0; return SUCCESS; }
static int reserve(uint64_t* address, size_t bytes, size_t align, uint64_t wanted, unsigned long long flags) {
  (void)align; (void)wanted; (void)flags;
  pthread_mutex_lock(&lock);
  *address = next_address;
  next_address += (bytes + GRANULARITY) / GRANULARITY * GRANULARITY;
  pthread_mutex_unlock(&lock);
  return SUCCESS;
}
static int create(struct memory** handle, size_t bytes, const int* properties, unsigned long long flags) {
  (void)flags;
  const int device = properties[3];  /* CUmemAllocationProp: type, handle types, location (type, id) */
  int result = MEMORY_ALLOCATION;
  pthread_mutex_lock(&lock);
  if (used_bytes[device] + bytes <= device_bytes()) {
    *handle = malloc(sizeof(struct memory));
    **handle = (struct memory){bytes, device};
    used_bytes[device] += bytes;
    result = SUCCESS;
  }
  pthread_mutex_unlock(&lock);
  return result;
}
static int release(struct memory* handle) {
  pthread_mutex_lock(&lock);
  used_bytes[handle->device] -= handle->bytes;
  pthread_mutex_unlock(&lock);
  free(handle);
  return SUCCESS;
}
static int granularity(size_t* bytes, const void* properties, int option) {
  (void)properties; (void)option;
  *bytes = GRANULARITY;
  return SUCCESS;
}
EXPORT int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, int* status) {
  (void)flags;
  if (status != NULL) *status = 0;
  *function = (void*)succeed;
  if (strcmp(name, "cuDeviceGetAttribute") == 0) *function = (void*)attribute;
  if (strcmp(name, "cuMemAddressReserve") == 0) *function = (void*)reserve;
  if (strcmp(name, "cuMemCreate") == 0) *function = (void*)create;
  if (strcmp(name, "cuMemRelease") == 0) *function = (void*)release;
  if (strcmp(name, "cuMemGetAllocationGranularity") == 0) *function = (void*)granularity;
  return SUCCESS;
}
EXPORT int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version,
                                            unsigned long long flags, int* status) {
  (void)version;
  return cudaGetDriverEntryPoint(name, function, flags, status);
}
/* cudaDeviceProp: name[256], uuid[16], luid[8], a mask of 4 bytes and, after padding, totalGlobalMem. The other fields
 * lie as in CUDA 13: those that PyTorch's kernels choose their sizes by, as an H100 has them. */
struct field { int at; uint64_t value; int bytes; };
static const struct field FIELDS[] = {
  {296, 48 << 10, 8},   {304, 65536, 4}, {308, 32, 4},       /* shared memory and registers of a block; warp */
  {320, 1024, 4},       {324, 1024, 4},  {328, 1024, 4}, {332, 64, 4},        /* threads of a block, and each way */
  {336, 2147483647, 4}, {340, 65535, 4}, {344, 65535, 4},    /* a grid */
  {360, 9, 4},          {364, 0, 4},     {384, 132, 4},      /* compute capability, multiprocessors */
  {596, 50 << 20, 4},   {604, 2048, 4},  {632, 65536, 4},    /* level 2; threads and registers of a multiprocessor */
  {624, 228 << 10, 8},  {672, 227 << 10, 8},                 /* shared memory of one; of a block that asks for more */
  {688, 32, 4},                                              /* blocks of one */
};
static int properties(char* found, int device) {
  (void)device;
  const uint64_t bytes = device_bytes();
  strcpy(found, "Fake");
  memcpy(found + 288, &bytes, sizeof(bytes));
  for (size_t at = 0; at < sizeof(FIELDS) / sizeof(*FIELDS); ++at) {
    memcpy(found + FIELDS[at].at, &FIELDS[at].value, FIELDS[at].bytes);
  }
  return SUCCESS;
}
/* The same by the numbers of cudaDeviceAttr. */
static const struct { int which, value; } ATTRIBUTES[] = {
  {1, 1024}, {2, 1024}, {3, 1024}, {4, 64}, {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 48 << 10}, {10, 32},
  {12, 65536}, {16, 132}, {38, 50 << 20}, {39, 2048}, {75, 9}, {81, 228 << 10}, {82, 65536}, {97, 227 << 10}, {106, 32},
};
EXPORT int cudaDeviceGetAttribute(int* value, int which, int device) {
  (void)device;
  *value = 0;
  for (size_t at = 0; at < sizeof(ATTRIBUTES) / sizeof(*ATTRIBUTES); ++at) {
    if (ATTRIBUTES[at].which == which) *value = ATTRIBUTES[at].value;
  }
  return SUCCESS;
}
EXPORT int cudaStreamGetPriority(void* stream, int* priority) { (void)stream; *priority = 0; return SUCCESS; }
EXPORT int cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  (void)flags;
  return posix_memalign(out, 4096, bytes) == 0 ? SUCCESS : MEMORY_ALLOCATION;
}
EXPORT int cudaFreeHost(void* pointer) { free(pointer); return SUCCESS; }
/* cudaFuncAttributes: three sizes, then threads of a block, registers, versions. */
EXPORT int cudaFuncGetAttributes(void* found, const void* function) {
  (void)function;
  const int values[4] = {1024, 32, 90, 90};
  memset(found, 0, 40);
  memcpy((char*)found + 24, values, sizeof(values));
  return SUCCESS;
}
EXPORT int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int threads,
                                                                  size_t shared, unsigned flags) {
  (void)function; (void)threads; (void)shared; (void)flags;
  *blocks = 2;
  return SUCCESS;
}
EXPORT int cudaGetDeviceProperties(void* found, int device) { return properties(found, device); }
EXPORT int cudaGetDeviceProperties_v2(void* found, int device) { return properties(found, device); }
EXPORT int cudaDriverGetVersion(int* version) { *version = 13000; return SUCCESS; }
EXPORT const char* cudaGetErrorString(int error) { return error == SUCCESS ? "no error" : "fake error"; }
EXPORT const char* cudaGetErrorName(int error) { return error == SUCCESS ? "cudaSuccess" : "cudaFake"; }

#define SUCCEEDS(name) EXPORT int name(void) { return SUCCESS; }
SUCCEEDS(cudaGetLastError)
SUCCEEDS(cudaDeviceCanAccessPeer)
SUCCEEDS(cudaDeviceEnablePeerAccess)
SUCCEEDS(cudaDeviceGetDefaultMemPool)
SUCCEEDS(cudaDeviceGetGraphMemAttribute)
SUCCEEDS(cudaDeviceSetGraphMemAttribute)
SUCCEEDS(cudaDeviceSynchronize)
SUCCEEDS(cudaEventDestroy)
SUCCEEDS(cudaEventElapsedTime)
SUCCEEDS(cudaEventRecord)
SUCCEEDS(cudaEventSynchronize)
SUCCEEDS(cudaFreeAsync)
SUCCEEDS(cudaGraphNodeGetDependencies)
SUCCEEDS(cudaIpcCloseMemHandle)
SUCCEEDS(cudaIpcGetMemHandle)
SUCCEEDS(cudaIpcOpenMemHandle)
SUCCEEDS(cudaMallocAsync)
SUCCEEDS(cudaMemPoolGetAttribute)
SUCCEEDS(cudaMemPoolSetAccess)
SUCCEEDS(cudaMemPoolSetAttribute)
SUCCEEDS(cudaMemPoolTrimTo)
SUCCEEDS(cudaMemcpy)
SUCCEEDS(cudaMemcpyAsync)
SUCCEEDS(cudaMemcpyPeerAsync)
SUCCEEDS(cudaStreamQuery)
SUCCEEDS(cudaStreamSynchronize)
SUCCEEDS(cudaStreamWaitEvent)
SUCCEEDS(cudaThreadExchangeStreamCaptureMode)
