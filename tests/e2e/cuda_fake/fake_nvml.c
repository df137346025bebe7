/* Stands in for libnvidia-ml.so.1, as far as PyTorch's allocator asks: 2.14 and newer ask for the device at the first
 * expandable segment, to see whether its memory can be shared over a fabric, and crash where there is no NVML.
 * nvmlDeviceGetGpuFabricInfoV is left out, as older drivers do: then it cannot. rankmem's tap finds none of the
 * functions that it takes samples with. */
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** device) { (void)id; *device = (void*)1; return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int* version) { *version = 13000; return 0; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void) { return 3; } /* not supported */
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void) { return 3; }
int nvmlDeviceGetComputeRunningProcesses(void* device, unsigned* count) { (void)device; *count = 0; return 0; }
