// CPU memory: who hands it out in torch, and how each of them is made to record.
//
// - c10's default allocator: nearly everything. Tensors ask it because it is the registered one; storages made
//   directly (UntypedStorage(n), storage.clone(), so copy.deepcopy() of a tensor) ask it by name. It records by
//   a table of virtual functions of ours (tap_cpu_default.cpp).
// - An allocator that somebody else has registered for CPU: a front of ours is registered in its place, which
//   asks it (below). Also where the default allocator is not as expected.
// - Mapped files and shared memory (share_memory_(), tensors through queues, from_file, torch.load(mmap=True)):
//   no allocator at all (tap_cpu_mapped.cpp).
//
// Threads: any. On CPU no lock is held here, but the law of the hot path holds all the same. Order: an alloc is
// recorded after the block is got, a free before it is given back; like Kineto, nothing for blocks of 0 bytes.
// Source: c10/core/Allocator.h, torch 2.6 to 2.15. The debug-info slot that torch.profiler reports through
// (PROFILER_STATE) is never taken: it is the user's.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <cerrno>

#include "calls.h"
#include "heights.h"
#include "tap_cpu.h"

namespace rankmem {

namespace {

uint32_t sees = 0;
bool cpu_attached = false;
c10::DeleterFnPtr inner_deleter = nullptr;  // of the allocator behind the front
constinit thread_local bool in_front = false;
bool has_front = false;  // most have none, and a thread-local costs a call to find it

// While the allocator behind the front works, in this thread.
class AskingBehind {
 public:
  AskingBehind() noexcept : before_(in_front) { in_front = true; }
  ~AskingBehind() { in_front = before_; }
  AskingBehind(const AskingBehind&) = delete;
  AskingBehind& operator=(const AskingBehind&) = delete;

 private:
  bool before_;
};

// The deleter of our blocks whose context is the block itself, as torch's own allocator's are.
void free_plain(void* data) {
  record_cpu_free(data);
  AskingBehind asking;
  inner_deleter(data);
}

// Of blocks with a context of their own: it is kept whole, and ended after the free is recorded.
void free_wrapped(void* context) {
  auto* inner = static_cast<c10::DataPtr*>(context);
  record_cpu_free(inner->get());
  AskingBehind asking;
  delete inner;
}

// Leaked: blocks outlive everything.
class RecordingFront final : public c10::Allocator {
 public:
  explicit RecordingFront(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t size_bytes) override {
    c10::DataPtr block = allocate_inner(size_bytes);
    void* data = block.get();
    record_cpu_alloc(data, size_bytes);
    // Done even while recording is off: raw_deleter() promises this deleter on every block.
    if (data == block.get_context() && inner_deleter != nullptr &&
        block.compare_exchange_deleter(inner_deleter, &free_plain)) {
      return block;
    }
    if (data == nullptr) return block;
    const c10::Device device = block.device();
    auto* inner = new c10::DataPtr(std::move(block));
    return {data, inner, &free_wrapped, device};
  }

  c10::DeleterFnPtr raw_deleter() const override { return inner_deleter != nullptr ? &free_plain : nullptr; }
  bool is_simple_data_ptr(const c10::DataPtr& block) const override { return inner_->is_simple_data_ptr(block); }
  void copy_data(void* to, const void* from, size_t size_bytes) const override {
    inner_->copy_data(to, from, size_bytes);
  }

 private:
  c10::DataPtr allocate_inner(size_t size_bytes) {
    try {
      AskingBehind asking;
      return inner_->allocate(size_bytes);
    } catch (...) {
      record_cpu_oom(size_bytes);
      throw;  // the same exception: the user's handler sees what it would have seen
    }
  }

  c10::Allocator* inner_;
};

// Registers a front for what is registered now. With the lowest priority that is accepted, so that who sets an
// allocator with a higher one after us is obeyed as before.
bool register_front(c10::Allocator* inner) {
  inner_deleter = inner->raw_deleter();
  auto* front = new RecordingFront(inner);
  has_front = true;
  for (int priority = 0; priority <= 255; ++priority) {
    c10::SetAllocator(c10::DeviceType::CPU, front, static_cast<uint8_t>(priority));
    if (c10::GetAllocator(c10::DeviceType::CPU) == front) return true;
  }
  delete front;
  return false;
}

}  // namespace

bool is_in_front() noexcept { return has_front && in_front; }

uint32_t cpu_sees() noexcept { return sees; }

void record_cpu_alloc(void* data, uint64_t size_bytes) noexcept {
  if (!enabled(kCpuEvents) || data == nullptr || size_bytes == 0) return;
  if (enabled(kHeights)) block_came(kHeightOfCpu, usable_bytes(data));
  record_cpu_alloc(data, size_bytes, place_of_event(RKM_ACTION_ALLOC));
}

void record_cpu_alloc(void* data, uint64_t size_bytes, EventPlace place) noexcept {
  if (!enabled(kCpuEvents) || data == nullptr || size_bytes == 0) return;
  write_event(RKM_ACTION_ALLOC, RKM_DEVICETYPE_CPU, 0, reinterpret_cast<uintptr_t>(data), size_bytes, 0, 0, place);
}

void record_cpu_free(void* data) noexcept {
  if (!enabled(kCpuEvents) || data == nullptr) return;
  record_cpu_free(data, enabled(kHeights) ? usable_bytes(data) : 0);
}

// The record carries the address alone: pairing knows the size, and to know it here would take a map and a lock.
void record_cpu_free(void* data, uint64_t size_bytes) noexcept {
  if (!enabled(kCpuEvents)) return;
  if (enabled(kHeights)) block_left(kHeightOfCpu, size_bytes);
  write_event(RKM_ACTION_FREE_COMPLETED, RKM_DEVICETYPE_CPU, 0, reinterpret_cast<uintptr_t>(data), 0, 0, 0);
}

void record_cpu_oom(uint64_t size_bytes) noexcept {
  if (!enabled(kCpuEvents)) return;
  write_event(RKM_ACTION_OOM, RKM_DEVICETYPE_CPU, 0, 0, size_bytes, 0,
              host_available_bytes.load(std::memory_order_relaxed), place_of_event(RKM_ACTION_OOM));
}

// Makes all of them record, once. 0 or -errno; cpu_sees() gives what could not be reached.
int attach_cpu() noexcept try {
  if (cpu_attached) return -EALREADY;
  c10::Allocator* registered = c10::GetAllocator(c10::DeviceType::CPU);
  if (registered == nullptr) return -ENODEV;
  const bool sees_default = watch_default_allocator();
  const bool needs_front = !sees_default || registered != c10::GetDefaultCPUAllocator();
  if (needs_front && !register_front(registered)) return -EPERM;
  cpu_attached = true;
  check_cpu_sizes(registered == c10::GetDefaultCPUAllocator());
  sees = kSeesRegistered | (sees_default ? kSeesDefault : 0) | (watch_mapped_storages() ? kSeesMapped : 0);
  return 0;
} catch (...) {
  return -ENOMEM;
}

}  // namespace rankmem
