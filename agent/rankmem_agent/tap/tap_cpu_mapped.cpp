// Storages that are mapped: files (from_file, torch.load(mmap=True)) and shared memory (share_memory_(), tensors
// through multiprocessing queues, whatever a DataLoader's workers hand over).
//
// at::MapAllocator is no c10::Allocator; all that it reports is what it reports to torch.profiler: the mapping's base
// and size when it is made, and the same with a minus when it is gone, *after* munmap. So the free is taken from
// munmap itself, before the call: an address must not come back before its free is recorded. Both calls are seen
// by replacing their targets in libtorch_cpu, where at::MapAllocator's code is.
//
// Threads: any, none of them within an allocator; the law of the hot path does not hold here, each of these
// calls makes a system call anyway. `mutex` guards the table and the order of its records; in a forked child it
// is never taken.
// Source: aten/src/ATen/MapAllocator.cpp, torch/lib/libshm/core.cpp, torch 2.6 to 2.15.

#include <c10/core/Allocator.h>

#include <dlfcn.h>
#include <sys/mman.h>

#include <mutex>
#include <unordered_map>

#include "heights.h"
#include "library_data.h"
#include "spool.h"
#include "tap_cpu.h"

namespace rankmem {

namespace {

constexpr const char* kLibrary = "libtorch_cpu.so";
constexpr size_t kSlotsMax = 8;  // one of each in torch 2.6 to 2.15

struct Mapping {
  bool is_live = false;
  uint64_t size_bytes = 0;
  uint32_t num_unreported = 0;  // gone by munmap, which torch has not reported yet
};

// Leaked, as everything that threads may use while the process ends.
struct Mappings {
  std::mutex mutex;
  std::unordered_map<void*, Mapping> known;
};
Mappings& mappings() {
  static auto* all = new Mappings;
  return *all;
}

// What torch reports too late for us if our munmap was taken out again (memray replaces the same slots).
void note_reported(void* base, int64_t size_bytes) {
  Mappings& all = mappings();
  const bool is_recorded = size_bytes > 0 && enabled(kCpuEvents);
  EventPlace place = is_recorded ? place_of_event(RKM_ACTION_ALLOC) : EventPlace{};  // not under the lock
  place.is_locked = true;
  std::lock_guard lock(all.mutex);
  if (size_bytes > 0) {
    Mapping& mapping = all.known[base];
    if (mapping.is_live) record_cpu_free(base, mapping.size_bytes);  // gone unseen: no address is mapped twice
    mapping.is_live = true;
    mapping.size_bytes = static_cast<uint64_t>(size_bytes);
    if (is_recorded && enabled(kHeights)) block_came(kHeightOfCpu, mapping.size_bytes);
    record_cpu_alloc(base, mapping.size_bytes, place);
    return;
  }
  const auto found = all.known.find(base);
  if (found == all.known.end()) return;  // older than the recording
  Mapping& mapping = found->second;
  if (mapping.num_unreported != 0) {
    --mapping.num_unreported;
  } else if (mapping.is_live) {
    record_cpu_free(base, mapping.size_bytes);
    mapping.is_live = false;
  }
  if (!mapping.is_live && mapping.num_unreported == 0) all.known.erase(found);
}

void note_unmapped(void* base) {
  Mappings& all = mappings();
  std::lock_guard lock(all.mutex);
  const auto found = all.known.find(base);
  if (found == all.known.end() || !found->second.is_live) return;
  record_cpu_free(base, found->second.size_bytes);
  found->second.is_live = false;
  ++found->second.num_unreported;
}

// An event that cannot be followed is recorded as lost, not left out.
void write_lost() noexcept {
  RkmLost lost;
  lost.device_type = RKM_DEVICETYPE_CPU;
  lost.num_events() = 1;
  lost.why() = intern("no_memory");
  write_record(lost);
}

// In place of c10::reportMemoryUsageToProfiler, for libtorch_cpu's calls.
void report_seen(void* base, int64_t size_bytes, size_t allocated, size_t reserved, c10::Device device) {
  if (spool_is_open() && base != nullptr && device.is_cpu()) {
    try {
      note_reported(base, size_bytes);
    } catch (...) {  // no memory for the table's entry
      write_lost();
    }
  }
  c10::reportMemoryUsageToProfiler(base, size_bytes, allocated, reserved, device);
}

// In place of munmap, for libtorch_cpu's calls.
int munmap_seen(void* base, size_t size_bytes) {
  if (spool_is_open()) note_unmapped(base);
  return munmap(base, size_bytes);
}

struct Replaced {
  const char* symbol;
  void* replacement;
  void** slots[kSlotsMax];
  size_t count;
};

bool can_replace(Replaced& call) noexcept {
  call.count = find_call_slots(kLibrary, call.symbol, call.slots, kSlotsMax);
  if (call.count == 0 || call.count > kSlotsMax) return false;
  for (size_t index = 0; index < call.count; ++index) {
    if (!is_replaceable(call.slots[index])) return false;
  }
  return true;
}

bool replace(const Replaced& call) noexcept {
  bool all = true;
  for (size_t index = 0; index < call.count; ++index) all &= replace_pointer(call.slots[index], call.replacement);
  return all;
}

}  // namespace

bool watch_mapped_storages() noexcept try {
  Dl_info torch = {};
  if (dladdr(reinterpret_cast<void*>(&c10::reportMemoryUsageToProfiler), &torch) == 0) return false;
  if (torch.dli_sname == nullptr) return false;
  Replaced unmapping = {"munmap", reinterpret_cast<void*>(&munmap_seen), {}, 0};
  Replaced report = {torch.dli_sname, reinterpret_cast<void*>(&report_seen), {}, 0};
  if (!can_replace(unmapping) || !can_replace(report)) return false;
  mappings();
  // In this order: what is unmapped before it was ever reported is not in the table.
  return replace(unmapping) && replace(report);
} catch (...) {
  return false;
}

}  // namespace rankmem
