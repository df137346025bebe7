// How high each device stands in a step: what detail auto decides by (control.cpp). See heights.cpp.
//
// Bytes that are alive are counted as blocks come and go, once kHeights is on. An estimate, and used for nothing but
// the choice of how much is recorded: of CPU memory it counts what malloc made usable, a few bytes more than was asked
// for, since a free knows no size. No figure in any answer comes from here.
#pragma once

#include "tap.h"

namespace rankmem {

constexpr uint32_t kHeightOfCpu = 0;
constexpr uint32_t kHeightOfCuda = 1;  // and one more for each device after the first
constexpr uint32_t kHeightsMax = 65;

struct alignas(64) Height {
  std::atomic<int64_t> live{0};
  std::atomic<int64_t> highest{0};  // since the step began
};

struct Heights {
  Height of[kHeightsMax];
  std::atomic<uint32_t> count{0};       // of devices that had blocks, and those before them
  std::atomic<bool> saw_oom{false};     // since the step began
};
extern Heights heights;

// Hot path; the caller has checked enabled(kHeights).
inline void block_came(uint32_t device, uint64_t size_bytes) noexcept {
  Height& height = heights.of[device];
  const int64_t live = height.live.fetch_add(static_cast<int64_t>(size_bytes), std::memory_order_relaxed) +
                       static_cast<int64_t>(size_bytes);
  int64_t highest = height.highest.load(std::memory_order_relaxed);
  while (live > highest && !height.highest.compare_exchange_weak(highest, live, std::memory_order_relaxed)) {
  }
  uint32_t count = heights.count.load(std::memory_order_relaxed);
  while (device >= count && !heights.count.compare_exchange_weak(count, device + 1, std::memory_order_relaxed)) {
  }
}

inline void block_left(uint32_t device, uint64_t size_bytes) noexcept {
  heights.of[device].live.fetch_sub(static_cast<int64_t>(size_bytes), std::memory_order_relaxed);
}

// The bytes of a block of the default CPU allocator; 0 unless knows_cpu_sizes().
uint64_t usable_bytes(void* block) noexcept;

// Whether the size of any CPU block can be told when it is freed: all come from torch's own allocator, and that takes
// them from the malloc that is asked for sizes here. Called once, by attach_cpu().
void check_cpu_sizes(bool is_torchs_own) noexcept;
bool knows_cpu_sizes() noexcept;

}  // namespace rankmem
