// Pinned host memory: what PyTorch's caching host allocator holds, as samples.
//
// Process: the trainer; the tap's native thread about once a second, and the one that closes the tap. Comes in: the
// statistics of the allocator that torch has registered for CUDA. Goes out: SAMPLE records of device PINNED.
// It takes that allocator's own locks for a moment, so never on the way of an allocation; it never takes the GIL
// and never throws. No operator, no stack: this allocator reports no events.
//
// Source: ATen/core/CachingHostAllocator.h of torch 2.6 to 2.15. 2.6 and 2.7 have no registry of host allocators,
// so there the figures stay unknown; which of them is there is found out by overloads below, and what the
// statistics call their figures by `requires`: no version is asked for. A CPU build has the registry, with
// none registered.
#include "tap.h"

#if __has_include(<ATen/core/CachingHostAllocator.h>)
#include <ATen/core/CachingHostAllocator.h>
#endif
#if __has_include(<c10/core/AllocatorConfig.h>)
#include <c10/core/AllocatorConfig.h>
#endif
#include <c10/core/DeviceType.h>

#include <cerrno>
#include <type_traits>

// Loses against torch's own getHostAllocator(DeviceType), and is what is found where there is none.
namespace at {
struct RkmNoHostAllocator {};
RkmNoHostAllocator* getHostAllocator(...);
}  // namespace at

namespace c10::CachingAllocator {
class AcceleratorAllocatorConfig;
}

namespace rankmem {
namespace {

std::atomic<bool> has_held{false};  // most jobs pin nothing: no record before the first byte

// Before 2.13 a block that waited for a stream is not taken off the bytes in use when it is done: process_events()
// subtracts its own argument, -1, for the block's size. Nothing else there tells the bytes, so they are unknown. The
// setting came with the remedy.
template <class Config>
constexpr bool takes_off_what_waited = requires { Config::pinned_max_cached_size(); };

template <class Stat>
uint64_t in_use(const Stat& stat) {
  if constexpr (takes_off_what_waited<c10::CachingAllocator::AcceleratorAllocatorConfig>) {
    return static_cast<uint64_t>(stat.current);
  } else {
    return RKM_UNKNOWN;
  }
}

// Names of 2.10 and newer: bytes of all blocks, and of those in use. False where `stats` has other names.
template <class Stats>
bool read_figures(const Stats& stats, RkmSample& sample) {
  if constexpr (requires { stats.active_bytes.current; stats.allocated_bytes.current; }) {
    sample.pinned_reserved_bytes() = static_cast<uint64_t>(stats.allocated_bytes.current);
    sample.pinned_active_bytes() = in_use(stats.active_bytes);
    return true;
  } else if constexpr (requires { stats.reserved_bytes.current; stats.allocated_bytes.current; }) {  // 2.8, 2.9
    sample.pinned_reserved_bytes() = static_cast<uint64_t>(stats.reserved_bytes.current);
    sample.pinned_active_bytes() = in_use(stats.allocated_bytes);
    return true;
  } else {
    return false;
  }
}

// 0, or -ENOSYS where this torch has no figures.
int read_pinned(at::RkmNoHostAllocator*, RkmSample&) { return -ENOSYS; }

template <class Allocator>
int read_pinned(Allocator* allocator, RkmSample& sample) {
  if constexpr (requires { allocator->get_stats(); }) {
    return allocator != nullptr && read_figures(allocator->get_stats(), sample) ? 0 : -ENOSYS;
  } else {
    return -ENOSYS;
  }
}

template <class DeviceType>
int read_registered(DeviceType of, RkmSample& sample) {
  using Found = decltype(at::getHostAllocator(of));
  if constexpr (std::is_same_v<Found, at::RkmNoHostAllocator*>) {
    return read_pinned(Found{nullptr}, sample);
  } else {
    return read_pinned(at::getHostAllocator(of), sample);
  }
}

}  // namespace

// Declared in tap.h.
int sample_pinned() noexcept {
  try {
    RkmSample sample;
    sample.device_type = RKM_DEVICETYPE_PINNED;
    sample.device_free_bytes() = sample.device_total_bytes() = RKM_UNKNOWN;
    const int result = read_registered(at::DeviceType::CUDA, sample);
    if (result == 0 && (sample.pinned_reserved_bytes() != 0 || has_held.load(std::memory_order_relaxed))) {
      has_held.store(true, std::memory_order_relaxed);
      write_record(sample);
    }
    return result;
  } catch (...) {  // none is registered for CUDA (a CPU build), or no memory for the figures
    return -ENOSYS;
  }
}

}  // namespace rankmem
