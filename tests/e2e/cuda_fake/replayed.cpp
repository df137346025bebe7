// Requests at random to PyTorch's real caching allocator on a fake runtime, and what it did: the oracle of replays.
//
// Output, a JSON object a line:
//   {"t": [action, addr, size, stream, pool]}                     an entry of the allocator's own history, in its order
//   {"g": [address, size, stream, pool]}                          a segment when half of the requests were made
//   {"b": [address, size, requested, stream, pool]}               a block in use then; the history has a SNAPSHOT there
// Usage: replayed SEED REQUESTS SIZE_MAX EMPTIES POOLS FRACTION
//   EMPTIES: in 1,000 requests so many times the cache is emptied; POOLS: 1: some go to a private pool;
//   FRACTION: of the device's memory that may be used, 0: no limit
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

extern "C" void fake_set_ready(int);
namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(c10::DeviceIndex));  // for libtorch_cuda, which is not here; in no header
}
namespace caching = c10::cuda::CUDACachingAllocator;

namespace {

template <class A>
auto record_history(A* a, int) -> decltype(a->recordHistory(true, nullptr, 1, caching::RecordContext::NEVER, false, {})) {
  a->recordHistory(true, nullptr, 1u << 20, caching::RecordContext::NEVER, true, {});
}
template <class A>
auto record_history(A* a, long) -> decltype(a->recordHistory(true, nullptr, 1, caching::RecordContext::NEVER, false)) {
  a->recordHistory(true, nullptr, 1u << 20, caching::RecordContext::NEVER, true);
}

template <class Id>
unsigned long long packed(const Id& id) {
  return static_cast<unsigned long long>(id.first) << 32 | (id.second & 0xffffffffu);
}

void print_state() {
  const auto snapshot = caching::snapshot();
  for (const auto& segment : snapshot.segments) {
    const auto stream = (unsigned long long)(uintptr_t)segment.stream;
    const auto pool = packed(segment.owner_private_pool_id);
    std::printf("{\"g\": [%llu, %llu, %llu, %llu]}\n", (unsigned long long)segment.address,
                (unsigned long long)segment.total_size, stream, pool);
    unsigned long long address = segment.address;
    for (const auto& block : segment.blocks) {
      if (block.allocated || block.active) {
        std::printf("{\"b\": [%llu, %llu, %llu, %llu, %llu]}\n", address, (unsigned long long)block.size,
                    (unsigned long long)block.requested_size, stream, pool);
      }
      address += block.size;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  std::mt19937 random(static_cast<unsigned>(std::stoul(argv[1])));
  const int requests = std::stoi(argv[2]);
  const double size_max = std::stod(argv[3]);
  const unsigned empties = static_cast<unsigned>(std::stoul(argv[4]));
  const bool pools = std::stoi(argv[5]) != 0;
  const double fraction = std::stod(argv[6]);
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  caching::init(1);
  fake_set_ready(1);
  if (fraction > 0) caching::setMemoryFraction(fraction, 0);
  record_history(caching::get(), 0);
  c10::cuda::set_device(0);
  const c10::cuda::CUDAStream streams[3] = {c10::cuda::getDefaultCUDAStream(0), c10::cuda::getStreamFromPool(false, 0),
                                            c10::cuda::getStreamFromPool(false, 0)};
  const c10::cuda::MempoolId_t pool{0, 7};
  std::vector<c10::DataPtr> live;
  for (int at = 0; at < requests; ++at) {
    if (at == requests / 2) print_state();
    const bool pooled = pools && at % 400 > 370;
    if (pools && at % 400 == 371) caching::get()->beginAllocateToPool(0, pool, [](cudaStream_t) { return true; });
    if (pools && at % 400 == 0 && at > 0) caching::get()->endAllocateToPool(0, pool);
    const unsigned dice = random() % 1000;
    if (dice < empties && !pooled) {
      caching::emptyCache();
    } else if (dice < 530 || live.empty()) {
      const double share = static_cast<double>(random() % 10'000) / 10'000;
      const size_t bytes = 1 + static_cast<size_t>(dice % 2 ? std::pow(size_max, share) : size_max * share);
      c10::cuda::setCurrentCUDAStream(streams[random() % 3]);
      try {
        live.push_back(caching::get()->allocate(bytes));
        if (dice % 9 == 0) caching::recordStream(live.back(), streams[random() % 3]);
      } catch (const c10::OutOfMemoryError&) {
        live.resize(live.size() * 3 / 4);
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      live.pop_back();
    }
  }
  const auto snapshot = caching::snapshot();
  for (const auto& entry : snapshot.device_traces[0]) {
    std::printf("{\"t\": [%d, %llu, %llu, %llu, %llu]}\n", (int)entry.action_, (unsigned long long)entry.addr_,
                (unsigned long long)entry.size_, (unsigned long long)(uintptr_t)entry.stream_, packed(entry.mempool_));
  }
  std::fflush(stdout);
  std::_Exit(0);  // what is alive dies with the process
}
