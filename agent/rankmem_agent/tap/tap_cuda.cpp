// The CUDA side of the tap: every event of PyTorch's caching allocator, its own counters, and samples by NVML.
//
// Process: the trainer. Comes in: TraceEntry callbacks of c10::cuda::CUDACachingAllocator, on the thread that
// allocates or frees, under that device's allocator lock. Goes out: EVENT, PREEXISTING, COUNTERS, PEAKS, DEVICE
// and SAMPLE records.
// on_trace() must never take the GIL, another lock or a system call, and never throw. It cannot be detached:
// "off" is a flag. Nothing here resets the allocator's statistics or calls the CUDA runtime; facts of devices
// come from the driver library (stable C interface, by dlsym), samples from NVML.
//
// Source: c10/cuda/CUDACachingAllocator.h of torch 2.6, 2.11 and 2.15. From 2.9 or so its types live in
// c10/core/CachingDeviceAllocator.h and are only aliased; the aliases are what we name. What moved is probed:
// TraceEntry::mempool_ (absent in 2.6), snapshot(pool, include_traces) (snapshot() in 2.6).
#include "control.h"
#include "heights.h"
#include "tap.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>

namespace rankmem {
namespace {

namespace caching = c10::cuda::CUDACachingAllocator;
using caching::TraceEntry;

constexpr unsigned kDevicesMax = 64;            // the bits of CallEndHook's device_mask
constexpr size_t kEarlyEventsMax = 1u << 16;    // 4 MiB of untouched pages for the milliseconds of the baseline
constexpr uint64_t kPeaksIntervalNs = 1'000'000'000;
constexpr int kSampleTries = 3;
constexpr unsigned kProcessesMax = 256;         // processes asked of NVML for a device

// How far the recording of a device is. It starts at the instant of the snapshot that we take at attaching:
// the allocator reports a SNAPSHOT entry under the lock under which it lists its blocks, so the list is the state
// exactly there. Events after it wait until the list is written, so that the log reads as if there were no race.
enum Phase : int {
  kUnattached = 0,  // before our snapshot of this device: nothing is recorded
  kListing = 1,     // after it: events go to `early`
  kListed = 2,      // PREEXISTING records are written: the next event first writes `early`
  kRecording = 3,
};

struct DeviceState {
  std::atomic<int> phase{kUnattached};
  std::atomic<bool> used{false};      // has or had memory: gets a DEVICE record and samples
  std::atomic<bool> described{false}; // DEVICE is written
  // Written by on_trace in kListing under the allocator's lock, read by it in kListed under the same lock.
  RkmRecord* early = nullptr;
  std::atomic<size_t> early_count{0};
  // The last COUNTERS: allocated, active, reserved, requested.
  std::atomic<uint64_t> counters[4] = {};
  std::atomic<uint64_t> peaks_ns{0};
  std::atomic<uint32_t> segment_events{0};  // so that a sample can be taken between two of them
};

// Trivially destructible on purpose: late frees in static destructors still find it.
DeviceState devices[kDevicesMax];
std::atomic<bool> attached{false};
std::atomic<pthread_t> attaching_thread{};
std::atomic<unsigned> device_count{0};
std::atomic<bool> trace_supported{false};
char device_settings[512];       // written once, before `described` of any device
char device_allocator[64];
std::atomic<uint32_t> host_ends_as{0};  // text of the DEVICE record that ends the recording of CPU memory; 0: it goes on

// ---- events -------------------------------------------------------------------------------------------------

int action_of(TraceEntry::Action action) noexcept {
  switch (action) {
    case TraceEntry::ALLOC: return RKM_ACTION_ALLOC;
    case TraceEntry::FREE_REQUESTED: return RKM_ACTION_FREE_REQUESTED;
    case TraceEntry::FREE_COMPLETED: return RKM_ACTION_FREE_COMPLETED;
    case TraceEntry::SEGMENT_ALLOC: return RKM_ACTION_SEGMENT_ALLOC;
    case TraceEntry::SEGMENT_FREE: return RKM_ACTION_SEGMENT_FREE;
    case TraceEntry::SEGMENT_MAP: return RKM_ACTION_SEGMENT_MAP;
    case TraceEntry::SEGMENT_UNMAP: return RKM_ACTION_SEGMENT_UNMAP;
    case TraceEntry::SNAPSHOT: return RKM_ACTION_SNAPSHOT;
    case TraceEntry::OOM: return RKM_ACTION_OOM;
    default: return -1;  // annotations (2.15), and what later versions add: not events of memory
  }
}

bool is_of_segment(int action) noexcept {
  return action == RKM_ACTION_SEGMENT_ALLOC || action == RKM_ACTION_SEGMENT_FREE || action == RKM_ACTION_SEGMENT_MAP ||
         action == RKM_ACTION_SEGMENT_UNMAP;
}

template <class PoolId>
uint64_t packed(const PoolId& pool) noexcept {
  return static_cast<uint64_t>(pool.first) << 32 | (static_cast<uint64_t>(pool.second) & 0xffff'ffffu);
}

template <class Entry>
auto pool_of(const Entry& entry, int) noexcept -> decltype(packed(entry.mempool_)) {
  return packed(entry.mempool_);
}
template <class Entry>
uint64_t pool_of(const Entry&, long) noexcept {
  return 0;  // torch 2.6: an event does not know its pool
}

// The fields of an event in the order of write_event; an OOM has the free bytes where others have the address.
struct Event {
  uint8_t action;
  uint8_t device_index;
  uint64_t address, size_bytes, stream, pool_or_free_bytes;
};

Event event_of(const TraceEntry& entry, uint8_t action, unsigned index) noexcept {
  const bool oom = action == RKM_ACTION_OOM;
  return {action,
          static_cast<uint8_t>(index),
          oom ? 0 : static_cast<uint64_t>(entry.addr_),
          static_cast<uint64_t>(entry.size_),
          reinterpret_cast<uint64_t>(entry.stream_),
          oom ? static_cast<uint64_t>(entry.addr_) : pool_of(entry, 0)};
}

// Bytes go when the block is given back, not when that is asked for: so the allocator counts what was requested.
void follow_height(unsigned index, int action, uint64_t size_bytes) noexcept {
  if (!enabled(kHeights) || index + kHeightOfCuda >= kHeightsMax) return;
  if (action == RKM_ACTION_ALLOC) block_came(kHeightOfCuda + index, size_bytes);
  if (action == RKM_ACTION_FREE_COMPLETED) block_left(kHeightOfCuda + index, size_bytes);
}

void write_cuda_event(const Event& event, EventPlace place = {}) noexcept {
  follow_height(event.device_index, event.action, event.size_bytes);
  write_event(event.action, RKM_DEVICETYPE_CUDA, event.device_index, event.address, event.size_bytes, event.stream,
              event.pool_or_free_bytes, place);
}

// An out-of-memory of this thread while nobody observes operators: which one it was in, and on which line, is looked
// for in the observer that the allocator calls right after, off its lock, since such observers may wait for the GIL
// (DeviceCachingAllocator::malloc; torch's own does).
struct WaitingOom {
  Event event;
  bool is_there;
};
constinit thread_local WaitingOom waiting_oom = {};
std::atomic<uint32_t> num_waiting_oom{0};  // of all threads: a thread-local costs a call to find it

void write_waiting_oom(EventPlace place) noexcept {
  if (!waiting_oom.is_there) return;
  waiting_oom.is_there = false;
  num_waiting_oom.fetch_sub(1, std::memory_order_relaxed);
  write_cuda_event(waiting_oom.event, place);
}

void on_out_of_memory() noexcept {
  if (waiting_oom.is_there) write_waiting_oom(place_of_event(RKM_ACTION_OOM, /*may_wait=*/true));
}

void keep_early(DeviceState& device, size_t at, const Event& event) noexcept {
  RkmEvent record;
  record.action = event.action;
  record.device_type = RKM_DEVICETYPE_CUDA;
  record.device_index = event.device_index;
  record.address() = event.address;
  record.size_bytes() = event.size_bytes;
  record.stream() = event.stream;
  record.pool() = event.pool_or_free_bytes;
  record.call_id = current_call_id();
  record.thread = current_thread_id();
  device.early[at] = record;
  device.early_count.store(at + 1, std::memory_order_relaxed);
}

// A device has memory now: CPU memory is recorded no more, where that was asked for.
void leave_host() noexcept {
  const uint32_t facts = host_ends_as.exchange(0, std::memory_order_relaxed);
  if (facts == 0) return;
  enabled_bits.fetch_and(~kCpuEvents);
  RkmDevice record;
  record.device_type = RKM_DEVICETYPE_CPU;
  record.facts() = facts;
  write_record(record);
}

// At each event of a device: at its first one, what follows from that.
void use_device(DeviceState& device) noexcept {
  if (device.used.load(std::memory_order_relaxed) || device.used.exchange(true, std::memory_order_relaxed)) return;
  leave_host();
  ask_for_samples();  // what the process holds before libraries add to it: CUDA's own
}

// Writes what waited, in order; the time is that of writing, so that times do not decrease in the log.
void flush_early(DeviceState& device) noexcept {
  const size_t count = device.early_count.exchange(0, std::memory_order_relaxed);
  if (count != 0) use_device(device);
  for (size_t at = 0; at < count; ++at) {
    RkmRecord& event = device.early[at];
    follow_height(event.device_index, event.action, event.b);  // an EVENT's size_bytes
    write_record(event);
  }
}

// The device of an entry. SNAPSHOT entries all have device 0 (2.6 to 2.15), but a snapshot lists the devices in
// turn, on one thread: the n-th entry of a thread is of device n, modulo their number.
unsigned device_of(const TraceEntry& entry, int action) noexcept {
  static thread_local unsigned snapshot_turn = 0;
  if (action != RKM_ACTION_SNAPSHOT) return static_cast<unsigned>(entry.device_);
  const unsigned count = device_count.load(std::memory_order_relaxed);
  return snapshot_turn++ % (count == 0 ? 1 : count);
}

// What to do with an event before the recording of its device runs; true once it does.
bool begin_recording(DeviceState& device, int phase, const Event& event) noexcept {
  if (phase == kUnattached) {
    const bool ours = pthread_equal(attaching_thread.load(std::memory_order_relaxed), pthread_self());
    if (event.action == RKM_ACTION_SNAPSHOT && ours) device.phase.store(kListing, std::memory_order_release);
    return false;
  }
  const size_t early_count = device.early_count.load(std::memory_order_relaxed);
  if (phase == kListing && early_count < kEarlyEventsMax) {
    keep_early(device, early_count, event);
    return false;
  }
  // Listed; or no room to wait longer: then blocks older than us follow their frees in the log, and the rank's
  // unexplained bytes show it.
  flush_early(device);
  device.phase.store(kRecording, std::memory_order_release);
  return true;
}

// Under the allocator's lock, so never two at a time for a device.
void on_trace(const TraceEntry& entry) noexcept {
  const int action = action_of(entry.action_);
  if (action < 0) return;
  const unsigned index = device_of(entry, action);
  if (index >= kDevicesMax || !enabled(kCudaEvents)) return;
  DeviceState& device = devices[index];
  const Event event = event_of(entry, static_cast<uint8_t>(action), index);
  const int phase = device.phase.load(std::memory_order_acquire);
  if (__builtin_expect(phase != kRecording, 0) && !begin_recording(device, phase, event)) return;
  if (action != RKM_ACTION_SNAPSHOT) use_device(device);
  if (action == RKM_ACTION_OOM && is_switched_off(kCalls)) {
    write_waiting_oom({});
    waiting_oom = {event, true};
    num_waiting_oom.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  if (num_waiting_oom.load(std::memory_order_relaxed) != 0) write_waiting_oom({});  // no observer was called
  write_cuda_event(event);
  if (is_of_segment(action)) device.segment_events.fetch_add(1, std::memory_order_relaxed);
}

// ---- facts of a device ----------------------------------------------------------------------------------------

template <class Function>
Function symbol(void* library, const char* name) noexcept {
  return library == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(library, name));
}

struct DeviceFacts {
  char name[256] = "";
  char uuid[64] = "";  // GPU-xxxxxxxx-..., NVML's form; MIG devices take MIG- in front there
  char pci[32] = "";
  uint64_t total_bytes = 0;
};

void format_uuid(const unsigned char (&raw)[16], char (&text)[64]) noexcept {
  int length = std::snprintf(text, sizeof(text), "GPU-");
  for (int index = 0; index < 16; ++index) {
    const char* dash = index == 4 || index == 6 || index == 8 || index == 10 ? "-" : "";
    length += std::snprintf(text + length, sizeof(text) - length, "%s%02x", dash, raw[index]);
  }
}

// From the driver library that CUDA's initialisation has loaded; its device numbers are the runtime's.
DeviceFacts facts_of(unsigned index) noexcept {
  DeviceFacts facts;
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  auto get = symbol<int (*)(int*, int)>(driver, "cuDeviceGet");
  int device = 0;
  if (get == nullptr || get(&device, static_cast<int>(index)) != 0) return facts;
  if (auto name = symbol<int (*)(char*, int, int)>(driver, "cuDeviceGetName")) {
    if (name(facts.name, sizeof(facts.name) - 1, device) != 0) facts.name[0] = 0;
  }
  if (auto total = symbol<int (*)(size_t*, int)>(driver, "cuDeviceTotalMem_v2")) {
    size_t bytes = 0;
    if (total(&bytes, device) == 0) facts.total_bytes = bytes;
  }
  auto uuid = symbol<int (*)(unsigned char*, int)>(driver, "cuDeviceGetUuid_v2");
  if (uuid == nullptr) uuid = symbol<int (*)(unsigned char*, int)>(driver, "cuDeviceGetUuid");
  unsigned char raw[16] = {};
  if (uuid != nullptr && uuid(raw, device) == 0) format_uuid(raw, facts.uuid);
  if (auto pci = symbol<int (*)(char*, int, int)>(driver, "cuDeviceGetPCIBusId")) {
    if (pci(facts.pci, sizeof(facts.pci), device) != 0) facts.pci[0] = 0;
  }
  return facts;
}

std::string json_text(const char* text) {
  std::string quoted = "\"";
  for (const char* at = text; *at != 0; ++at) {
    const unsigned char c = static_cast<unsigned char>(*at);
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c < 0x20 ? ' ' : *at;
  }
  return quoted + '"';
}

// DEVICE, once for each device that is used. Interns, so never under the allocator's lock.
void describe(unsigned index) noexcept {
  if (devices[index].described.exchange(true)) return;
  try {
    const DeviceFacts facts = facts_of(index);
    std::string json = "{\"name\": " + json_text(facts.name);
    json += ", \"uuid\": " + json_text(facts.uuid[0] != 0 ? facts.uuid : facts.pci);
    json += ", \"total_bytes\": " + std::to_string(facts.total_bytes);
    json += ", \"allocator\": " + json_text(device_allocator);
    json += ", \"settings\": " + json_text(device_settings);
    json += trace_supported.load() ? ", \"source\": \"tap\"}" : ", \"source\": \"samples\"}";
    RkmDevice record;
    record.device_type = RKM_DEVICETYPE_CUDA;
    record.device_index = static_cast<uint8_t>(index);
    record.facts() = intern(json);
    write_record(record);
  } catch (...) {  // out of host memory: the device stays without its facts
  }
}

// ---- the allocator's own counters ------------------------------------------------------------------------------

template <class Stats>
void write_figures(const Stats& stats, unsigned index, uint64_t call_id, bool peaks) noexcept {
  constexpr size_t kAggregate = 0;  // c10::CachingAllocator::StatType::AGGREGATE
  const auto figure = [peaks](const auto& stat) {
    return static_cast<uint64_t>(peaks ? stat[kAggregate].peak : stat[kAggregate].current);
  };
  RkmCounters record;
  if (peaks) record.kind = RKM_KIND_PEAKS;
  record.device_type = RKM_DEVICETYPE_CUDA;
  record.device_index = static_cast<uint8_t>(index);
  const uint64_t now[4] = {figure(stats.allocated_bytes), figure(stats.active_bytes), figure(stats.reserved_bytes),
                           figure(stats.requested_bytes)};
  record.allocated_bytes() = now[0];
  record.active_bytes() = now[1];
  record.reserved_bytes() = now[2];
  record.requested_bytes() = now[3];
  record.call_id = call_id;
  if (!peaks) {
    // A call that gave back all it took changes nothing: no record. Threads may race here; a record too many.
    bool changed = false;
    for (int at = 0; at < 4; ++at) {
      changed |= devices[index].counters[at].exchange(now[at], std::memory_order_relaxed) != now[at];
    }
    if (!changed) return;
  }
  write_record(record);
}

// One copy of the statistics under the allocator's lock (some 1.5 KB), for both records.
void write_counters(unsigned index, uint64_t call_id, bool with_peaks) noexcept {
  try {
    const auto stats = caching::get()->getDeviceStats(static_cast<c10::DeviceIndex>(index));
    write_figures(stats, index, call_id, false);
    if (with_peaks) write_figures(stats, index, call_id, true);
  } catch (...) {  // an allocator without statistics: the events stand alone
  }
}

// CallEndHook: on the thread of the call, off the allocator's lock.
void at_call_end(uint64_t call_id, uint64_t device_mask) noexcept {
  if (!enabled(kCudaEvents)) return;
  const uint64_t now_ns = monotonic_ns();
  for (; device_mask != 0; device_mask &= device_mask - 1) {
    const unsigned index = static_cast<unsigned>(__builtin_ctzll(device_mask));
    DeviceState& device = devices[index];
    if (!device.described.load(std::memory_order_relaxed)) describe(index);
    uint64_t last_ns = device.peaks_ns.load(std::memory_order_relaxed);
    const bool peaks = now_ns - last_ns >= kPeaksIntervalNs &&
                       device.peaks_ns.compare_exchange_strong(last_ns, now_ns, std::memory_order_relaxed);
    write_counters(index, call_id, peaks);
  }
}

// ---- samples by NVML, on the native thread ----------------------------------------------------------------------

// NVML's C structs, as its ABI fixes them (nvmlMemory_t, nvmlProcessInfo_t of the _v2 and _v3 functions).
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlProcess {
  unsigned int pid;
  unsigned long long used_bytes;
  unsigned int gpu_instance, compute_instance;
};

struct Nvml {
  void* library = nullptr;
  int (*handle_by_uuid)(const char*, void**) = nullptr;
  int (*memory)(void*, NvmlMemory*) = nullptr;
  int (*processes)(void*, unsigned int*, NvmlProcess*) = nullptr;
  void* handles[kDevicesMax] = {};
  bool asked[kDevicesMax] = {};

  bool open() noexcept {
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    auto init = symbol<int (*)()>(library, "nvmlInit_v2");
    handle_by_uuid = symbol<decltype(handle_by_uuid)>(library, "nvmlDeviceGetHandleByUUID");
    memory = symbol<decltype(memory)>(library, "nvmlDeviceGetMemoryInfo");
    processes = symbol<decltype(processes)>(library, "nvmlDeviceGetComputeRunningProcesses_v3");
    if (processes == nullptr) {
      processes = symbol<decltype(processes)>(library, "nvmlDeviceGetComputeRunningProcesses_v2");
    }
    return init != nullptr && handle_by_uuid != nullptr && memory != nullptr && init() == 0;
  }

  void* handle(unsigned index) noexcept {
    if (!asked[index]) {
      asked[index] = true;
      DeviceFacts facts = facts_of(index);
      if (facts.uuid[0] != 0 && handle_by_uuid(facts.uuid, &handles[index]) != 0) {
        std::memcpy(facts.uuid, "MIG", 3);  // a slice of a GPU goes by the other prefix
        if (handle_by_uuid(facts.uuid, &handles[index]) != 0) handles[index] = nullptr;
      }
    }
    return handles[index];
  }

  // This process' bytes on the device. Inside a container NVML names the host's pids, so ours may not be there;
  // a device with one process only is ours all the same, since we hold memory on it.
  uint64_t own_bytes(void* device) noexcept {
    static NvmlProcess list[kProcessesMax];  // the native thread alone comes here
    unsigned int count = kProcessesMax;
    if (processes == nullptr || processes(device, &count, list) != 0) return RKM_UNKNOWN;
    for (unsigned int at = 0; at < count; ++at) {
      if (list[at].pid == static_cast<unsigned int>(getpid()) || count == 1) return list[at].used_bytes;
    }
    return RKM_UNKNOWN;
  }
};

void write_sample(Nvml& nvml, unsigned index) noexcept {
  void* device = nvml.handle(index);
  if (device == nullptr) return;
  NvmlMemory memory{};
  RkmSample record;
  record.device_type = RKM_DEVICETYPE_CUDA;
  record.device_index = static_cast<uint8_t>(index);
  // The driver's figures and the log's are compared: no segment should come or go between the two.
  const std::atomic<uint32_t>& segment_events = devices[index].segment_events;
  uint32_t before;
  int tries = kSampleTries;
  do {
    before = segment_events.load(std::memory_order_relaxed);
    record.app_reserved_bytes() = nvml.own_bytes(device);
    if (nvml.memory(device, &memory) != 0) return;
  } while (segment_events.load(std::memory_order_relaxed) != before && --tries > 0);
  record.device_used_bytes() = memory.used;
  record.device_free_bytes() = memory.free;
  record.device_total_bytes() = memory.total;
  write_record(record);
}

// SampleHook: on the native thread, about once a second.
void sample_devices() noexcept {
  static Nvml nvml;
  static const bool open = nvml.open();
  if (!enabled(kCudaEvents)) return;
  for (unsigned index = 0; index < kDevicesMax; ++index) {
    if (!devices[index].used.load(std::memory_order_relaxed)) continue;
    if (!devices[index].described.load(std::memory_order_relaxed)) describe(index);
    if (open) write_sample(nvml, index);
  }
  sample_pinned();
}

// ---- attaching ----------------------------------------------------------------------------------------------------

template <class Allocator>
auto snapshot_of(Allocator* allocator, int) -> decltype(allocator->snapshot({0, 0}, false)) {
  return allocator->snapshot({0, 0}, false);  // without the user's trace, which may be long
}
template <class Allocator>
auto snapshot_of(Allocator* allocator, long) -> decltype(allocator->snapshot()) {
  return allocator->snapshot();
}

void write_preexisting(unsigned index, uint8_t action, uint64_t address, uint64_t size_bytes, uint64_t stream,
                       uint64_t pool, uint64_t block_bytes = 0) noexcept {
  RkmPreexisting record;
  record.action = action;
  record.device_type = RKM_DEVICETYPE_CUDA;
  record.device_index = static_cast<uint8_t>(index);
  record.address() = address;
  record.size_bytes() = size_bytes;
  record.stream() = stream;
  record.pool() = pool;
  record.block_bytes() = block_bytes;
  follow_height(index, action, size_bytes);
  write_record(record);
}

// A segment and its blocks. A block that is freed but waits for a stream is still held: it gets an alloc and,
// after it, a free_requested.
template <class Segment>
void write_segment(const Segment& segment) noexcept {
  const unsigned index = static_cast<unsigned>(segment.device);
  const uint64_t stream = reinterpret_cast<uint64_t>(segment.stream);
  const uint64_t pool = packed(segment.owner_private_pool_id);
  write_preexisting(index, RKM_ACTION_SEGMENT_ALLOC, segment.address, segment.total_size, stream, pool);
  uint64_t address = segment.address;
  for (const auto& block : segment.blocks) {
    if (block.allocated || block.active) {
      write_preexisting(index, RKM_ACTION_ALLOC, address, block.requested_size, stream, pool, block.size);
      if (!block.allocated) {
        write_preexisting(index, RKM_ACTION_FREE_REQUESTED, address, block.requested_size, stream, pool);
      }
    }
    address += block.size;
  }
}

template <class Config>
void keep_settings(const Config& config) {
  std::string text = config.last_allocator_settings;
  text += config.expandable_segments ? " [expandable_segments]" : "";
  std::snprintf(device_settings, sizeof(device_settings), "%s", text.c_str());
}

// Takes the baseline of every device and starts its recording there.
void record_from_snapshot(unsigned count) {
  device_count.store(count);
  for (unsigned index = 0; index < count; ++index) devices[index].early = new RkmRecord[kEarlyEventsMax];
  attaching_thread.store(pthread_self());
  caching::get()->attachOutOfMemoryObserver([](auto...) { on_out_of_memory(); });
  caching::get()->attachAllocatorTraceTracker([](const TraceEntry& entry) { on_trace(entry); });
  const auto snapshot = snapshot_of(caching::get(), 0);
  attaching_thread.store(pthread_t{});
  keep_settings(snapshot.config_metadata);
  for (const auto& segment : snapshot.segments) {
    const unsigned index = static_cast<unsigned>(segment.device);
    if (index >= count) continue;
    use_device(devices[index]);
    describe(index);
    write_segment(segment);
  }
  bool waiting = false;
  for (unsigned index = 0; index < count; ++index) {
    int listing = kListing;
    devices[index].phase.compare_exchange_strong(listing, kListed);
  }
  // Events that waited are written by the device's next event; where some wait already, a second snapshot is one.
  for (unsigned index = 0; index < count; ++index) waiting |= devices[index].early_count.load() != 0;
  if (waiting) snapshot_of(caching::get(), 0);
}

// Why this allocator gives no events, or null where it does.
const char* without_trace() noexcept {
  if (std::strcmp(device_allocator, "native") != 0) {
    return "this allocator reports no events: only samples are recorded";
  }
  if (std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr) {
    return "PYTORCH_NO_CUDA_MEMORY_CACHING is set: allocations bypass the allocator: only samples are recorded";
  }
  return nullptr;
}

int attach_samples_only(const char* why) noexcept {
  std::snprintf(device_settings, sizeof(device_settings), "%s", why);
  const auto current = static_cast<unsigned>(c10::cuda::current_device());
  if (current < kDevicesMax) {
    devices[current].used.store(true);  // at once: this allocator reports no events. So CPU memory goes on, too
    describe(current);
  }
  set_sample_hook(&sample_devices);
  return -EOPNOTSUPP;
}

}  // namespace
}  // namespace rankmem

extern "C" void rkm_enable(uint32_t what, int on);  // tap.cpp

// Attaches to every device. 0; -EAGAIN before CUDA's initialisation (call again later); -EALREADY; -EOPNOTSUPP where
// the allocator reports no events (cudaMallocAsync, pluggable, caching off): samples are taken all the same;
// -ECANCELED for what torch threw; -EINVAL without an open spool. Switches kCudaEvents on: a baseline is worth
// nothing if the events after it are not recorded.
extern "C" __attribute__((visibility("default"))) int rkm_attach_cuda(void) {
  using namespace rankmem;
  try {
    caching::CUDAAllocator* allocator = caching::get();
    if (allocator == nullptr || !allocator->initialized()) return -EAGAIN;
    rkm_enable(kCudaEvents, 1);
    if (!enabled(kCudaEvents)) return -EINVAL;
    if (attached.exchange(true)) return -EALREADY;
    std::snprintf(device_allocator, sizeof(device_allocator), "%s", allocator->name().c_str());
    if (const char* why = without_trace()) return attach_samples_only(why);
    trace_supported.store(true);
    const int count = c10::cuda::device_count();
    record_from_snapshot(count < static_cast<int>(kDevicesMax) ? static_cast<unsigned>(count) : kDevicesMax);
    set_call_end_hook(&at_call_end);
    set_sample_hook(&sample_devices);
    ask_for_samples();  // opens NVML, which takes a while, before there is something to sample
    return 0;
  } catch (...) {
    return -ECANCELED;
  }
}

// From the first event of a device on no CPU memory is recorded; `facts`, interned, is the text of the DEVICE record
// that says so. To be called before attaching.
extern "C" __attribute__((visibility("default"))) void rkm_leave_cpu(uint32_t facts) { rankmem::host_ends_as.store(facts); }

// Writes COUNTERS and PEAKS of every device in use now: for the end of the recording. Takes the allocator's lock.
extern "C" __attribute__((visibility("default"))) int rkm_cuda_counters(void) {
  using namespace rankmem;
  if (!enabled(kCudaEvents) || !trace_supported.load()) return 0;
  for (unsigned index = 0; index < kDevicesMax; ++index) {
    if (!devices[index].used.load(std::memory_order_relaxed)) continue;
    for (auto& figure : devices[index].counters) figure.store(RKM_UNKNOWN, std::memory_order_relaxed);
    write_counters(index, 0, true);
  }
  sample_pinned();
  return 0;
}
