// The inside of the tap: what its parts (spool, calls, stacks, tap_cpu, tap_cuda) share.
//
// Process: the trainer. Threads: any thread that allocates, plus our own native one ("rankmem-tap").
// The parts are compiled as one translation unit (unity.cpp), so that the hot path is inlined and
// torch's headers are parsed once.
//
// Law of the hot path (write_record, write_event): it may run under an allocator's lock. No GIL, no other
// lock, no system call, no heap allocation, no exception. Everything else (interning, stacks, samples)
// happens off that lock: in RecordFunction callbacks, in rkm_* calls, or on the native thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <time.h>

#include "spool_layout.h"  // made from rankmem_agent.spool.layout by the build

namespace rankmem {

// What rkm_enable switches. Recording can never be detached, so "off" is a flag that everyone reads.
constexpr uint32_t kCpuEvents = 1;
constexpr uint32_t kCudaEvents = 2;
constexpr uint32_t kCalls = 4;
constexpr uint32_t kStacks = 8;
constexpr uint32_t kModules = 16;         // read from frames; otherwise from hooks (rkm_set_module)
constexpr uint32_t kCompareModules = 32;  // for a test: modules by hooks, beside those by frames
constexpr uint32_t kEvidence = 64;        // where this tap is built with it (evidence.h, parts.h)
constexpr uint32_t kHeights = 128;        // detail auto, from the start of the log or by an order (heights.h)
constexpr uint32_t kShowAll = 256;        // for a test: the evidence of each block

// Zero before rkm_open, after rkm_close and in a forked child: nothing is written then.
extern std::atomic<uint32_t> enabled_bits;

inline bool enabled(uint32_t bit) noexcept {
  return (enabled_bits.load(std::memory_order_relaxed) & bit) != 0;
}

// CLOCK_MONOTONIC, the spool's time. Through the vDSO: about 20 ns, no system call.
inline uint64_t monotonic_ns() noexcept {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

// Appends a record: takes its sequence number, copies the fields, stores the mark last with release.
// `fields.mark` is ours to set; `fields.time_ns` is now unless it is set. A record whose segment could not be
// reserved is counted in control.dropped; before rkm_open, after rkm_close and in a forked child it does nothing.
// Hot path.
void write_record(RkmRecord& fields) noexcept;

// Appends an allocator event with the thread and the call it happens in; before a call's first event, its
// CALL_BEGIN (and CALL_FORWARD), so that a kill inside the operator keeps its name. An ALLOC marks the call as
// allocating: its Python stack is gathered at its end. `pool` and `extra` are alternatives in the format:
// pass the pool (first << 32 | second), or for an OOM the device's free bytes. Hot path.
//
// The caller has checked enabled(). Order is the caller's part: a free before the block is given back,
// an alloc after it is got. What place_of_event() gave is handed in, where that was asked before.
struct EventPlace {
  uint32_t stack_id = 0;         // of an event in no call: a call gathers its own
  uint32_t native_operator = 0;  // string id, with evidence where no call has an operator
  uint32_t module = 0;           // string id, of what is read where no call is observed
  bool is_locked = false;        // a lock is held as the event is written
  bool is_unobserved = false;    // an OOM whose operator nobody observes: a call of its own says what these are
};
void write_event(uint8_t action, uint8_t device_type, uint8_t device_index, uint64_t address, uint64_t size_bytes,
                 uint64_t stream, uint64_t pool_or_free_bytes, EventPlace place = {}) noexcept;

// What an ALLOC or OOM of this thread would not know by its call. Off every lock. `may_wait`: for the GIL, where torch
// itself waits for it.
EventPlace place_of_event(uint8_t action, bool may_wait = false) noexcept;

// The id of a string, writing it to the strings file on first sight; 0 if it could not be written.
// Takes a lock and may do a system call: never on the hot path. Cut at STRING_BYTES_MAX.
uint32_t intern(std::string_view text) noexcept;

// The call that events of this thread belong to now; 0 outside of any call or before its first event.
uint64_t current_call_id() noexcept;
// at::RecordFunction::currentThreadId() of this thread.
uint32_t current_thread_id() noexcept;

// Called on the native thread about once a second: writes SAMPLE records of devices. Must not block long,
// never takes the GIL. At most one hook; set once.
using SampleHook = void (*)() noexcept;
void set_sample_hook(SampleHook hook) noexcept;
// Samples are written when the native thread looks next, some milliseconds from now. A flag: for any thread, under
// any lock.
void ask_for_samples() noexcept;

// Called at the end of a call that had CUDA events, on its thread, off the allocator's lock, just before its
// CALL_END: for the allocator's own counters. `device_mask` has a bit for each device index below 64 that had
// an ALLOC or a segment event in the call; 0 is never passed. At most one hook; set once.
using CallEndHook = void (*)(uint64_t call_id, uint64_t device_mask) noexcept;
void set_call_end_hook(CallEndHook hook) noexcept;

// Writes a SAMPLE of pinned host memory by torch's host allocator for CUDA, if it holds any. 0, or -ENOSYS
// where it gives none (before torch 2.8 or so; without CUDA). Takes that allocator's locks: off the hot path.
int sample_pinned() noexcept;

// What was free at an OOM of the CPU allocator: MemAvailable as the native thread last read it.
extern std::atomic<uint64_t> host_available_bytes;

}  // namespace rankmem

// tap_cuda.cpp defines `extern "C" int rkm_attach_cuda(void)`; without RKM_WITH_CUDA tap.cpp does, as -ENOSYS.
