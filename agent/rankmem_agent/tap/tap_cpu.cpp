// The CPU allocator that records: put in front of the one that is there, which does the work.
//
// Threads: any. On CPU no lock is held here, but the law of the hot path holds all the same. Order: an alloc is
// recorded after the block is got, a free before it is given back; like Kineto, nothing for blocks of 0 bytes.
// Source: c10/core/Allocator.h, torch 2.6 to 2.15. The debug-info slot that torch.profiler reports through
// (PROFILER_STATE) is never taken: it is the user's.

#include <c10/core/Allocator.h>

#include <cerrno>

#include "tap.h"

namespace rankmem {

namespace {

class RecordingAllocator;
RecordingAllocator* recording = nullptr;  // leaked: blocks outlive everything
c10::DeleterFnPtr inner_deleter = nullptr;

inline void record_alloc(void* data, size_t size_bytes) noexcept {
  if (!enabled(kCpuEvents) || data == nullptr || size_bytes == 0) return;
  write_event(RKM_ACTION_ALLOC, RKM_DEVICETYPE_CPU, 0, reinterpret_cast<uintptr_t>(data), size_bytes, 0, 0);
}

// A free carries the address alone: pairing knows the size, and to know it here would take a map and a lock.
inline void record_free(void* data) noexcept {
  if (!enabled(kCpuEvents) || data == nullptr) return;
  write_event(RKM_ACTION_FREE_COMPLETED, RKM_DEVICETYPE_CPU, 0, reinterpret_cast<uintptr_t>(data), 0, 0, 0);
}

// The deleter of our blocks whose context is the block itself, as torch's own allocator's are.
void free_plain(void* data) {
  record_free(data);
  inner_deleter(data);
}

// Of blocks with a context of their own: it is kept whole, and ended after the free is recorded.
void free_wrapped(void* context) {
  auto* inner = static_cast<c10::DataPtr*>(context);
  record_free(inner->get());
  delete inner;
}

class RecordingAllocator final : public c10::Allocator {
 public:
  explicit RecordingAllocator(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t size_bytes) override {
    c10::DataPtr block = allocate_inner(size_bytes);
    void* data = block.get();
    record_alloc(data, size_bytes);
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
      return inner_->allocate(size_bytes);
    } catch (...) {
      if (enabled(kCpuEvents)) {
        write_event(RKM_ACTION_OOM, RKM_DEVICETYPE_CPU, 0, 0, size_bytes, 0,
                    host_available_bytes.load(std::memory_order_relaxed));
      }
      throw;  // the same exception: the user's handler sees what it would have seen
    }
  }

  c10::Allocator* inner_;
};

}  // namespace

// Puts the recording allocator in front, once. With the lowest priority that is accepted, so that who sets an
// allocator with a higher one after us is obeyed as before. 0 or -errno.
int attach_cpu() noexcept try {
  if (recording != nullptr) return -EALREADY;
  c10::Allocator* inner = c10::GetAllocator(c10::DeviceType::CPU);
  if (inner == nullptr) return -ENODEV;
  inner_deleter = inner->raw_deleter();
  auto* ours = new RecordingAllocator(inner);
  for (int priority = 0; priority <= 255; ++priority) {
    c10::SetAllocator(c10::DeviceType::CPU, ours, static_cast<uint8_t>(priority));
    if (c10::GetAllocator(c10::DeviceType::CPU) == ours) {
      recording = ours;
      return 0;
    }
  }
  delete ours;
  return -EPERM;
} catch (...) {
  return -ENOMEM;
}

}  // namespace rankmem
