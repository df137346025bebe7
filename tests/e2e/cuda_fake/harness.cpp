// Runs the CUDA side of the tap against PyTorch's real caching allocator on a fake runtime, and prints what both saw.
//
// In place of the spool: an array. Output, a JSON object a line:
//   {"r": [seq, kind, action, device, a, b, c, d, call_id]}   a record of the tap
//   {"t": [device, action, addr, size, stream, pool]}         an entry of the allocator's own history, in its order
//   {"s": [device, address, size, requested, state]}          a block of the final snapshot: 2 allocated, 1 awaiting, 0 free
//   {"g": [device, address, size]}                            a segment of it
//   {"f": [device, allocated, active, reserved, requested, peak allocated, peak reserved]}   the final statistics
//   {"pinned": n}                                             how often pinned host memory was asked for
//   {"ns": {...}}                                             costs
// Usage: harness check SEED | harness cost | harness backend | harness samples
#include "control.h"
#include "heights.h"
#include "tap.h"

#include <dlfcn.h>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

extern "C" int rkm_attach_cuda(void);
extern "C" void rkm_leave_cpu(uint32_t facts);
extern "C" void rkm_enable(uint32_t what, int on);
extern "C" int rkm_cuda_counters(void);
extern "C" void fake_set_ready(int);

namespace rankmem {
std::atomic<uint32_t> enabled_bits{0};
std::atomic<uint64_t> host_available_bytes{0};
constexpr size_t kRecords = 1u << 21;
RkmRecord* records = new RkmRecord[kRecords];
std::atomic<size_t> next_record{0};
CallEndHook call_end = nullptr;
SampleHook sample = nullptr;
thread_local uint64_t call_id = 0;
std::vector<std::string> texts;

void write_record(RkmRecord& fields) noexcept { records[next_record.fetch_add(1) % kRecords] = fields; }
void write_event(uint8_t action, uint8_t device_type, uint8_t device_index, uint64_t address, uint64_t size_bytes,
                 uint64_t stream, uint64_t pool_or_free_bytes, EventPlace) noexcept {
  RkmRecord record{};
  record.kind = RKM_KIND_EVENT;
  record.action = action;
  record.device_type = device_type;
  record.device_index = device_index;
  record.a = address;
  record.b = size_bytes;
  record.c = stream;
  record.d = pool_or_free_bytes;
  record.call_id = call_id;
  record.time_ns = monotonic_ns();
  write_record(record);
}
uint32_t intern(std::string_view text) noexcept {
  texts.emplace_back(text);
  return static_cast<uint32_t>(texts.size());
}
Heights heights;
bool is_switched_off(uint32_t) noexcept { return false; }
EventPlace place_of_event(uint8_t, bool) noexcept { return {}; }
uint64_t current_call_id() noexcept { return call_id; }
uint32_t current_thread_id() noexcept { return 1; }
void set_sample_hook(SampleHook hook) noexcept { sample = hook; }
void set_call_end_hook(CallEndHook hook) noexcept { call_end = hook; }
int samples_asked = 0;
void ask_for_samples() noexcept { ++samples_asked; }
int pinned_samples = 0;
int sample_pinned() noexcept {  // of libtorch_cpu, which is not here; tests/integration/test_tap_pinned.py has it
  ++pinned_samples;
  return 0;
}
}  // namespace rankmem

// Exported by libc10_cuda for libtorch_cuda, which is not here; in no header.
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));
}

static bool spool_is_open = false;
void rkm_enable(uint32_t what, int on) {
  if (spool_is_open && on != 0) rankmem::enabled_bits.fetch_or(what);
}

namespace caching = c10::cuda::CUDACachingAllocator;
using caching::TraceEntry;

namespace {

template <class Entry>
auto pool_of(const Entry& entry, int) -> decltype((void)entry.mempool_, 0ull) {
  return static_cast<unsigned long long>(entry.mempool_.first) << 32 | (entry.mempool_.second & 0xffffffffu);
}
template <class Entry>
unsigned long long pool_of(const Entry&, long) { return 0; }

template <class A>
auto record_history(A* a, int) -> decltype(a->recordHistory(true, nullptr, 1, caching::RecordContext::NEVER, false, {})) {
  a->recordHistory(true, nullptr, 1u << 20, caching::RecordContext::NEVER, true, {});
}
template <class A>
auto record_history(A* a, long) -> decltype(a->recordHistory(true, nullptr, 1, caching::RecordContext::NEVER, false)) {
  a->recordHistory(true, nullptr, 1u << 20, caching::RecordContext::NEVER, true);
}
template <class A>
auto record_history(A* a, ...) -> decltype(a->recordHistory(true, nullptr, 1, caching::RecordContext::NEVER)) {
  a->recordHistory(true, nullptr, 1u << 20, caching::RecordContext::NEVER);
}

std::mutex no_capture;  // torch 2.6 asserts that the cache is not emptied while a pool is being filled

// One call: an allocation on a device and stream, sometimes used on a second stream, as an operator would.
struct Worker {
  std::mt19937 random;
  std::vector<c10::DataPtr> live;
  uint64_t calls;

  void step(c10::cuda::CUDAStream* streams, std::atomic<uint64_t>& oom_count) {
    const unsigned dice = random() % 100;
    const int device = random() % 4 == 0;
    if (dice < 52 || live.empty()) {
      c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
      const size_t bytes = dice == 0 ? (3ull << 30) : 1 + (random() % (dice < 40 ? 40'000u : 30'000'000u));
      rankmem::call_id = ++calls;
      try {
        live.push_back(caching::get()->allocate(bytes));
        if (dice % 8 == 1) caching::recordStream(live.back(), streams[device]);
        if (dice % 16 == 3) live.pop_back();  // a temporary of the call
      } catch (const c10::OutOfMemoryError&) {
        oom_count += 1;
        live.resize(live.size() / 2);
      }
      if (rankmem::call_end != nullptr) rankmem::call_end(rankmem::call_id, 1ull << device);
      rankmem::call_id = 0;
    } else {
      std::swap(live[random() % live.size()], live.back());
      live.pop_back();
      if (dice == 99) {
        const std::lock_guard<std::mutex> hold(no_capture);
        caching::emptyCache();
      }
    }
  }
};

void print_records() {
  const size_t count = rankmem::next_record.load();
  for (size_t at = 0; at < count; ++at) {
    const RkmRecord& r = rankmem::records[at];
    std::printf("{\"r\": [%zu, %d, %d, %d, %llu, %llu, %llu, %llu, %llu]}\n", at, r.kind, r.action, r.device_index,
                (unsigned long long)r.a, (unsigned long long)r.b, (unsigned long long)r.c, (unsigned long long)r.d,
                (unsigned long long)r.call_id);
  }
  for (const std::string& text : rankmem::texts) std::printf("{\"text\": %s}\n", text.c_str());
}

void print_oracle() {
  const auto snapshot = caching::snapshot();
  for (size_t device = 0; device < snapshot.device_traces.size(); ++device) {
    for (const auto& entry : snapshot.device_traces[device]) {
      std::printf("{\"t\": [%zu, %d, %llu, %llu, %llu, %llu]}\n", device, (int)entry.action_,
                  (unsigned long long)entry.addr_, (unsigned long long)entry.size_,
                  (unsigned long long)(uintptr_t)entry.stream_, (unsigned long long)pool_of(entry, 0));
    }
  }
  for (const auto& segment : snapshot.segments) {
    std::printf("{\"g\": [%d, %zu, %zu]}\n", segment.device, segment.address, segment.total_size);
    size_t address = segment.address;
    for (const auto& block : segment.blocks) {
      std::printf("{\"s\": [%d, %zu, %zu, %zu, %d]}\n", segment.device, address, block.size, block.requested_size,
                  block.allocated ? 2 : block.active ? 1 : 0);
      address += block.size;
    }
  }
  for (int device = 0; device < 2; ++device) {
    const auto stats = caching::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    std::printf("{\"f\": [%d, %lld, %lld, %lld, %lld, %lld, %lld]}\n", device, (long long)stats.allocated_bytes[0].current,
                (long long)stats.active_bytes[0].current, (long long)stats.reserved_bytes[0].current,
                (long long)stats.requested_bytes[0].current, (long long)stats.allocated_bytes[0].peak,
                (long long)stats.reserved_bytes[0].peak);
  }
}

// Two threads work, before, while and after the tap attaches.
int check(unsigned seed) {
  caching::init(2);
  record_history(caching::get(), 0);
  c10::cuda::CUDAStream streams[2] = {c10::cuda::getStreamFromPool(false, 0), c10::cuda::getStreamFromPool(false, 1)};
  std::atomic<int> stage{0}, busy{0};
  std::atomic<uint64_t> oom_count{0};
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 2; ++number) {
    workers.push_back(std::make_unique<Worker>(Worker{std::mt19937(seed * 2 + number), {}, static_cast<uint64_t>(number) << 32}));
    threads.emplace_back([&, number] {
      for (int at = 0; at < 3000 || stage.load() < 1; ++at) {
        if (at == 100) ++busy;
        workers[number]->step(streams, oom_count);
      }
      for (int at = 0; at < 6000; ++at) {
        if (at == 3000) fake_set_ready(number == 0);
        workers[number]->step(streams, oom_count);
      }
    });
  }
  const c10::cuda::MempoolId_t pool{0, 7};
  spool_is_open = true;
  while (busy.load() < 2) std::this_thread::yield();
  const int attached = rkm_attach_cuda();
  const int again = rkm_attach_cuda();
  stage.store(1);
  c10::cuda::set_device(0);
  std::vector<c10::DataPtr> pooled;
  {
    const std::lock_guard<std::mutex> hold(no_capture);
    caching::get()->beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    for (int at = 0; at < 50; ++at) pooled.push_back(caching::get()->allocate(1 << 20));
    caching::get()->endAllocateToPool(0, pool);
  }
  for (std::thread& thread : threads) thread.join();
  rkm_cuda_counters();
  rankmem::enabled_bits = 0;
  print_records();
  print_oracle();
  std::printf("{\"attached\": [%d, %d], \"ooms\": %llu}\n", attached, again, (unsigned long long)oom_count.load());
  return 0;
}

double pair_ns(int pairs) {
  const uint64_t begin = rankmem::monotonic_ns();
  for (int at = 0; at < pairs; ++at) caching::get()->allocate(4096);
  return static_cast<double>(rankmem::monotonic_ns() - begin) / pairs;
}

// What the tap adds to an allocate-and-free pair (three events), and what a reading of the counters costs.
int cost() {
  caching::init(2);
  c10::cuda::set_device(0);
  pair_ns(20'000);
  const double without = pair_ns(200'000);
  spool_is_open = true;
  rkm_attach_cuda();
  pair_ns(20'000);
  const double with = pair_ns(200'000);
  rankmem::enabled_bits = 0;
  const double off = pair_ns(200'000);
  rankmem::enabled_bits = rankmem::kCudaEvents;
  auto held = caching::get()->allocate(1 << 20);
  const uint64_t begin = rankmem::monotonic_ns();
  for (int at = 0; at < 200'000; ++at) rankmem::call_end(1, 1);
  const double counters = static_cast<double>(rankmem::monotonic_ns() - begin) / 200'000;
  std::printf("{\"ns\": {\"pair_without\": %.1f, \"pair_with\": %.1f, \"pair_off\": %.1f, \"counters\": %.1f}}\n", without,
              with, off, counters);
  return 0;
}

// Two rounds of samples of two devices in use, as the native thread takes them, and a third amid which segments come:
// NVML is asked again while they do, three times at most.
int samples() {
  caching::init(2);
  spool_is_open = true;
  rkm_enable(rankmem::kCpuEvents, 1);
  rkm_leave_cpu(77);
  rkm_attach_cuda();
  const bool before = rankmem::enabled(rankmem::kCpuEvents);
  for (int device = 0; device < 2; ++device) {
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
    caching::get()->allocate(4096);
  }
  for (int round = 0; round < 2; ++round) rankmem::sample();
  const int pinned = rankmem::pinned_samples;
  if (void* nvml = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD)) {
    using Act = void (*)();
    const auto while_asked = reinterpret_cast<void (*)(Act)>(dlsym(nvml, "fake_nvml_while_asked"));
    c10::cuda::set_device(0);
    static int come = 0;
    while_asked([] {
      if (come++ == 0) caching::get()->allocate(64 << 20);
    });
    rankmem::sample();
    while_asked([] { caching::get()->raw_alloc(256 << 20); });
    rankmem::sample();
  }
  print_records();
  std::printf("{\"pinned\": %d, \"samples_asked\": %d, \"cpu\": [%d, %d]}\n", pinned, rankmem::samples_asked, before,
              rankmem::enabled(rankmem::kCpuEvents));
  return 0;
}

int backend() {
  caching::init(2);
  const int before = rkm_attach_cuda();
  spool_is_open = true;
  const int attached = rkm_attach_cuda();
  print_records();
  std::printf("{\"attached\": [%d, %d]}\n", before, attached);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  if (what == "check") return check(static_cast<unsigned>(argc > 2 ? std::stoul(argv[2]) : 1));
  if (what == "cost") return cost();
  if (what == "backend") return backend();
  if (what == "samples") return samples();
  std::fprintf(stderr, "usage: harness check SEED | cost | backend | samples\n");
  return 2;
}
