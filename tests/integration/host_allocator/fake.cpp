// A host allocator for CUDA that says what it is told to say: no GPU needed, no memory allocated.
#include <ATen/core/CachingHostAllocator.h>

#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

namespace {

struct Fake final : at::HostAllocator {
  int64_t held_bytes = 0, used_bytes = 0;
  bool fails = false;
  std::chrono::milliseconds looks_for{0};
  std::mutex mutex;  // as torch's own has

  at::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, std::size_t) const override {}
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override {
    std::lock_guard lock(mutex);
    std::this_thread::sleep_for(looks_for);
    if (fails) throw std::runtime_error("no figures now");
    at::HostStats stats;
    stats.allocated_bytes.current = held_bytes;
    stats.active_bytes.current = used_bytes;
    return stats;
  }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

Fake fake;

}  // namespace

extern "C" void fake_install(void) { at::setHostAllocator(at::DeviceType::CUDA, &fake, 1); }
extern "C" void fake_say(int64_t held_bytes, int64_t used_bytes) {
  fake.held_bytes = held_bytes;
  fake.used_bytes = used_bytes;
}
extern "C" void fake_fail(int on) { fake.fails = on != 0; }
extern "C" void fake_look_for(int milliseconds) { fake.looks_for = std::chrono::milliseconds(milliseconds); }
extern "C" int fake_is_free() { return fake.mutex.try_lock() ? 1 : 0; }
