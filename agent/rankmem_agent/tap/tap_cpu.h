// The CPU side of the tap: what its three parts share. See tap_cpu.cpp.
#pragma once

#include <cstdint>

#include "tap.h"

namespace rankmem {

// What of torch's CPU memory is seen; tap/library.py's CpuSees.
constexpr uint32_t kSeesRegistered = 1;  // blocks of the allocator that torch has registered for CPU
constexpr uint32_t kSeesDefault = 2;     // blocks of c10's default allocator, for any caller
constexpr uint32_t kSeesMapped = 4;      // files and shared memory that storages are mapped from

// kSees… bits, 0 before attach_cpu().
uint32_t cpu_sees() noexcept;

// The one place where CPU blocks become events. Blocks of 0 bytes are none, as for torch.profiler.
void record_cpu_alloc(void* data, uint64_t size_bytes) noexcept;
// The same under a lock, with what place_of_event() gave before it.
void record_cpu_alloc(void* data, uint64_t size_bytes, EventPlace place) noexcept;
void record_cpu_free(void* data) noexcept;
// The same of a block whose size is known, and not malloc's to tell.
void record_cpu_free(void* data, uint64_t size_bytes) noexcept;
void record_cpu_oom(uint64_t size_bytes) noexcept;

// Makes c10's default CPU allocator record, once. False if it is not as expected: then nothing was changed.
bool watch_default_allocator() noexcept;

// Sees files and shared memory that torch maps, once. False if not all of it can be seen: then none of it is.
bool watch_mapped_storages() noexcept;

// True while the recording front asks the allocator behind it, in this thread: what that one takes from the
// default allocator is part of a block that is recorded already.
bool is_in_front() noexcept;

}  // namespace rankmem
