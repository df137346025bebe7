/* Stands in for libcuda.so.1 and libnvidia-ml.so.1: facts of two devices, and what NVML says of them.
 * NVML knows device 0 by its GPU- name and device 1 by its MIG- name only; this process is on device 0 beside
 * another, and alone (under the pid of another namespace) on device 1. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int cuDeviceGet(int* device, int ordinal) { *device = ordinal; return ordinal < 2 ? 0 : 101; }
int cuDeviceGetName(char* name, int length, int device) { snprintf(name, length, "Fake \"%d\"", device); return 0; }
int cuDeviceTotalMem_v2(size_t* bytes, int device) { *bytes = (2ull << 30) + device; return 0; }
int cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
  for (int at = 0; at < 16; ++at) uuid[at] = (unsigned char)(at + 16 * device);
  return 0;
}
int cuDeviceGetPCIBusId(char* text, int length, int device) { snprintf(text, length, "0000:0%d:00.0", device); return 0; }

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** handle) {
  if (strcmp(uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") == 0) *handle = (void*)1;
  else if (strcmp(uuid, "MIG-10111213-1415-1617-1819-1a1b1c1d1e1f") == 0) *handle = (void*)2;
  else return 6;
  return 0;
}
static void (*while_asked)(void);
void fake_nvml_while_asked(void (*act)(void)) { while_asked = act; } /* called at each question for a device's memory */
struct memory { unsigned long long total, free, used; };
int nvmlDeviceGetMemoryInfo(void* device, struct memory* memory) {
  if (while_asked) while_asked();
  *memory = (struct memory){1000 * (size_t)device, 600, 400};
  return 0;
}
struct process { unsigned pid; unsigned long long used; unsigned gpu, compute; };
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, struct process* list) {
  list[0] = (struct process){1, 77, 0, 0};
  static unsigned long long own = 122;
  list[1] = (struct process){(unsigned)getpid(), own += device == (void*)1, 0, 0};
  *count = device == (void*)1 ? 2 : 1;
  return 0;
}
