// Pinned host memory: what PyTorch's caching host allocator says it holds, as samples.
//
// Process: the trainer; the tap's native thread about once a second, and whoever closes the tap. Comes in: the
// statistics of the allocator that torch has registered for CUDA. Goes out: SAMPLE records of device PINNED.
// It takes that allocator's own locks for a moment, so never on the way of an allocation; it never takes the GIL
// and never throws. No operator, no stack: this allocator tells nobody of its events.
//
// Source: ATen/core/CachingHostAllocator.h of torch 2.6, 2.11, 2.13 and 2.15. 2.6 has no HostAllocator and no
// registry, so there the figures stay unknown; which of them is there is found out by overloads below. A CPU
// build has the registry, with nobody registered.
#include "tap.h"

#if __has_include(<ATen/core/CachingHostAllocator.h>)
#include <ATen/core/CachingHostAllocator.h>
#endif
#include <c10/core/DeviceType.h>

#include <cerrno>
#include <type_traits>

// Loses against torch's own getHostAllocator(DeviceType), and is what is found where there is none.
namespace at {
struct RkmNoHostAllocator {};
RkmNoHostAllocator* getHostAllocator(...);
}  // namespace at

namespace rankmem {
namespace {

std::atomic<bool> has_held{false};  // most jobs pin nothing: no record before the first byte

// 0, or -ENOSYS where this torch tells no figures.
int read_pinned(at::RkmNoHostAllocator*, RkmRecord&) { return -ENOSYS; }

template <class Allocator>
int read_pinned(Allocator* allocator, RkmRecord& record) {
  if (allocator == nullptr) return -ENOSYS;
  const auto stats = allocator->get_stats();
  record.a = static_cast<uint64_t>(stats.allocated_bytes.current);  // taken from the system: in use, or kept
  record.b = static_cast<uint64_t>(stats.active_bytes.current);     // of that in use
  return 0;
}

template <class DeviceType>
int read_registered(DeviceType of, RkmRecord& record) {
  using Found = decltype(at::getHostAllocator(of));
  if constexpr (std::is_same_v<Found, at::RkmNoHostAllocator*>) {
    return read_pinned(Found{nullptr}, record);
  } else {
    return read_pinned(at::getHostAllocator(of), record);
  }
}

}  // namespace

// Declared in tap.h.
int sample_pinned() noexcept {
  try {
    RkmRecord record{};
    record.kind = RKM_KIND_SAMPLE;
    record.device_type = RKM_DEVICETYPE_PINNED;
    record.c = record.d = RKM_UNKNOWN;
    const int result = read_registered(at::DeviceType::CUDA, record);
    if (result == 0 && (record.a != 0 || has_held.load(std::memory_order_relaxed))) {
      has_held.store(true, std::memory_order_relaxed);
      write_record(record);
    }
    return result;
  } catch (...) {  // nobody is registered for CUDA (a CPU build), or no memory for the figures
    return -ENOSYS;
  }
}

}  // namespace rankmem
