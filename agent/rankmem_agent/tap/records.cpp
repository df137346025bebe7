// Writing a record: the hot path. See spool.h for the life of a segment.

#include <cstring>

#include "calls.h"
#include "spool.h"

namespace rankmem {

std::atomic<uint32_t> enabled_bits{0};
constinit Spool spool;

namespace {

// The base of a segment that is not this thread's last one; nullptr if it is lost. The first writer who needs
// a segment that is not ready declares it lost: waiting for it would block the trainer, and deciding each
// record anew would leave holes that the reader could not distinguish from records still being written.
__attribute__((noinline)) char* find_segment(LastSegment& last, uint64_t number) noexcept {
  SegmentSlot& slot = spool.slots[number % kSlots];
  uint64_t word = slot.word.load(std::memory_order_acquire);
  while (word != (number << 2 | kReady)) {
    if (word == (number << 2 | kLost)) return nullptr;
    if (slot.word.compare_exchange_weak(word, number << 2 | kLost, std::memory_order_acq_rel)) return nullptr;
  }
  last = {slot.base.load(std::memory_order_relaxed), number};
  return last.base;
}


}  // namespace

// Takes the numbers of so many records, one behind the other; the first of them. Relaxed is enough for order:
// additions to one atomic agree with happens-before, so a free that is recorded before the block is given back has a
// lower number than the alloc that gets its address.
inline uint64_t take_numbers(uint64_t count) noexcept {
  return __atomic_fetch_add(&spool.control->next_seq, count, __ATOMIC_RELAXED);
}

inline void put_record(LastSegment& last, uint64_t seq, RkmRecord& fields, uint64_t time_ns) noexcept {
  const uint64_t number = seq / RKM_RECORDS_PER_SEGMENT;
  char* base = last.base != nullptr && number == last.number ? last.base : find_segment(last, number);
  if (base == nullptr) {
    __atomic_fetch_add(&spool.control->dropped, 1, __ATOMIC_RELAXED);
    return;
  }
  fields.time_ns = time_ns;
  fields.mark = 0;
  auto* record = reinterpret_cast<RkmRecord*>(base + RKM_SEGMENT_HEADER_BYTES +
                                              seq % RKM_RECORDS_PER_SEGMENT * RKM_RECORD_BYTES);
  std::memcpy(record, &fields, sizeof fields);
  // Last, with release: the reader, another process, believes a record only when it sees its mark.
  __atomic_store_n(&record->mark, static_cast<uint32_t>(seq & 0x7FFF'FFFF) | 0x8000'0000u, __ATOMIC_RELEASE);
}

inline void write_record_at(LastSegment& last, RkmRecord& fields, uint64_t time_ns) noexcept {
  put_record(last, take_numbers(1), fields, time_ns);
}

void write_record(RkmRecord& fields) noexcept {
  if (!spool_is_open()) return;
  write_record_at(thread_state.last_segment, fields, fields.time_ns != 0 ? fields.time_ns : monotonic_ns());
}

}  // namespace rankmem
