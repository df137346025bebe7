// A thread's part of a step: the blocks it allocates in it, in their order, each by what it shows (evidence.h).
//
// Of a part only one number a block is kept: the hash of what this block and all before it show. So one comparison
// says whether the whole of a part so far is like a known one, and where it leaves that one, whether another begins the
// same way. Sizes are not looked at. Numbers of autograd's nodes count from the part's first block, those of another
// thread's nodes from where that thread's last step ended.
//
// A part that is like no other is kept as it ends, and known from then on. While calls are not observed (steady.cpp) one
// is followed only if it came kSureTimes before with all observed, and none is kept. A thread keeps 64; where they or the
// room are used up, all are forgotten and learned again. Nothing here is ever allocated while a block is: rooms are reserved at
// once, their pages come as they are written, and a thread without a room has no parts.

#include <ATen/SequenceNumber.h>

#include <pthread.h>
#include <sys/mman.h>

#include <cstring>

#include "parts.h"
#include "spool.h"

namespace rankmem {

namespace {

constexpr uint32_t kRooms = 64;
constexpr uint32_t kPartsKept = 64;
constexpr uint32_t kRoomBlocks = 1u << 19;  // 4 MiB of addresses a thread, of which what is written takes memory
constexpr uint64_t kNoStep = RKM_UNKNOWN;

std::atomic<uint64_t> rooms_taken{0};  // a bit each
std::atomic<uint64_t*> rooms{nullptr};
pthread_key_t room_key;
std::atomic<uint64_t> generation{1};  // of what is known
// Of the thread that ended a step last: its id, autograd's counter there, and its part.
std::atomic<uint64_t> step_thread{0};
std::atomic<uint64_t> step_base{0};
std::atomic<const Part*> step_part{nullptr};
std::atomic<bool> are_calls_off{false};

struct KnownPart {
  uint32_t begin, length;
  uint64_t step;
  uint32_t times;  // that it came as a whole while all was observed
};

}  // namespace

struct Part {
  enum Course : uint8_t { kClosed = 0, kFollows, kDiffers, kSpoilt };

  std::atomic<uint64_t> chain;  // the hash of all blocks so far; written by its thread alone
  uint64_t step;
  uint64_t base;       // autograd's counter at the first block
  uint64_t generation;
  uint64_t* blocks;    // the room
  uint32_t length;     // blocks so far
  uint32_t end;        // of what is kept in the room; a part that differs is written from here on
  uint32_t num_known;
  uint32_t followed;   // index of the known part
  uint64_t nodes_of;   // the thread that made nodes that ran in it, if that is another one; 0: none did
  Course course;
  bool is_observed;    // so far all was
  KnownPart known[kPartsKept];
  FrameTrail trail;
};

namespace {

Part parts[kRooms];

void write_part(ThreadState& thread, const Part& part, uint8_t course, uint32_t position, uint64_t like) noexcept {
  RkmPart record;
  record.course() = course;
  record.step() = part.step;
  record.position() = position;
  record.like_step() = like;
  record.nodes_of() = part.nodes_of;
  record.thread = current_thread_id();
  write_record_at(thread.last_segment, record, monotonic_ns());
}

// The latest part that is known to begin with the blocks so far, of which `length` is the number; kPartsKept if none.
uint32_t find_known(const Part& part, uint32_t length, bool is_whole) noexcept {
  const uint32_t least_times = part.is_observed ? 0 : kSureTimes;
  for (uint32_t at = part.num_known; at-- > 0;) {
    const KnownPart& known = part.known[at];
    if (known.times < least_times) continue;
    const bool fits = is_whole ? known.length == length : known.length >= length;
    if (fits && part.blocks[known.begin + length - 1] == part.chain.load(std::memory_order_relaxed)) return at;
  }
  return kPartsKept;
}

// Has the first `length` blocks in the room's own place, from those of the part that was followed.
void leave_followed(Part& part, uint32_t length) noexcept {
  if (part.end + length > kRoomBlocks) {
    part.course = Part::kSpoilt;
    return;
  }
  std::memcpy(part.blocks + part.end, part.blocks + part.known[part.followed].begin, length * sizeof(uint64_t));
}

void keep(Part& part) noexcept {
  part.known[part.num_known++] = {part.end, part.length, part.step, 1};
  part.end += part.length;
}

// Returns how often the part came as a whole while all was observed, this time included if it was; 0: never.
uint32_t end_part(ThreadState& thread, Part& part) noexcept {
  uint64_t like = kNoStep;
  uint32_t times = 0;
  if (part.generation != generation.load(std::memory_order_relaxed)) part.course = Part::kSpoilt;
  if (part.course == Part::kFollows && part.known[part.followed].length != part.length) {
    const uint32_t found = find_known(part, part.length, /*is_whole=*/true);
    if (found != kPartsKept) {
      part.followed = found;
    } else {
      leave_followed(part, part.length);
      if (part.course == Part::kFollows) part.course = Part::kDiffers;
    }
  }
  if (part.course == Part::kFollows) {
    KnownPart& known = part.known[part.followed];
    like = known.step;
    times = known.times += part.is_observed ? 1 : 0;
  }
  if (part.course == Part::kDiffers && part.is_observed) {
    keep(part);
    like = part.step;
    times = 1;
  }
  part.course = Part::kClosed;
  write_part(thread, part, RKM_COURSE_ENDS, part.length, like);
  return times;
}

void begin_part(Part& part, uint64_t step_now, uint64_t nodes_made) noexcept {
  const uint64_t generation_now = generation.load(std::memory_order_relaxed);
  if (part.num_known == kPartsKept || part.end > kRoomBlocks / 2 || part.generation != generation_now) {
    part.num_known = part.end = 0;
  }
  part.generation = generation_now;
  part.step = step_now;
  part.base = nodes_made;
  part.length = 0;
  part.nodes_of = 0;
  part.is_observed = !are_calls_off.load(std::memory_order_relaxed);
  part.chain.store(0x5374'6570'5061'7274u, std::memory_order_relaxed);
}

// A block of a part that is like no other.
inline void append(Part& part) noexcept {
  if (part.end + part.length == kRoomBlocks) {
    part.course = Part::kSpoilt;
  } else {
    part.blocks[part.end + part.length++] = part.chain.load(std::memory_order_relaxed);
  }
}

// A block that the followed part does not have here, or the first of its part; the chain has it already.
__attribute__((noinline)) void decide(ThreadState& thread, Part& part) noexcept {
  const uint32_t before = part.length++;
  const uint32_t found = find_known(part, part.length, /*is_whole=*/false);
  if (found != kPartsKept) {
    part.followed = found;
    part.course = Part::kFollows;
    write_part(thread, part, RKM_COURSE_FOLLOWS, before, part.known[found].step);
    return;
  }
  write_part(thread, part, RKM_COURSE_DIFFERS, before, kNoStep);
  part.length = before;
  if (before != 0) leave_followed(part, before);
  if (part.course == Part::kSpoilt) return;
  part.course = Part::kDiffers;
  append(part);
}

// What a node shows of the call that made it: its number, as above. A node of the thread that ends steps shows all that
// this thread has allocated in the step as well: it waits meanwhile, and no block here shows which of two equal layers
// made the node. A node of a third thread shows its class alone.
inline uint64_t shown_by_node(const Shown& shown, uint64_t thread_id, Part& part) noexcept {
  const bool has_number = shown.node_sequence != RKM_NO_SEQUENCE;
  if (shown.node_class == 0) return RKM_NO_SEQUENCE;
  if (shown.node_thread == thread_id) return has_number ? shown.node_sequence - part.base : RKM_NO_SEQUENCE;
  part.nodes_of = shown.node_thread;
  const Part* forward = step_part.load(std::memory_order_acquire);
  if (forward == nullptr || shown.node_thread != step_thread.load(std::memory_order_relaxed)) return 1;
  const uint64_t number = has_number ? shown.node_sequence - step_base.load(std::memory_order_relaxed) : 0;
  return mix(forward->chain.load(std::memory_order_relaxed), number);
}

void free_room(void* room) noexcept {
  auto* part = static_cast<Part*>(room);
  thread_state.part = nullptr;
  thread_state.trail = nullptr;
  rooms_taken.fetch_and(~(uint64_t{1} << (part - parts)), std::memory_order_release);
}

}  // namespace

bool follow_part(ThreadState& thread, const Shown& shown, uint64_t source) noexcept {
  if (thread.part == nullptr) return false;
  Part& part = *thread.part;
  const uint64_t step_now = step.load(std::memory_order_relaxed);
  if (part.course == Part::kClosed || part.step != step_now) {
    if (part.course != Part::kClosed) end_part(thread, part);
    begin_part(part, step_now, shown.nodes_made);
  } else if (__builtin_expect(part.generation != generation.load(std::memory_order_relaxed), 0)) {
    spoil_part(thread);
    return false;
  }
  part.is_observed &= !are_calls_off.load(std::memory_order_relaxed);
  // Odd factors: all but frames_key are small or addresses, and frames_key is mixed already.
  const uint64_t here = shown.frames_key + shown.modules_key * 0xC2B2'AE3D'27D4'EB4Fu +
                        shown.node_class * 0x1656'67B1'9E37'79F9u + source * 0x2545'F491'4F6C'DD1Du +
                        shown_by_node(shown, thread.thread_id, part) * 0x9FB2'1C65'1E98'DF25u +
                        (shown.nodes_made - part.base) * 0xD6E8'FEB8'6659'FD93u;
  const uint64_t chain = mix(part.chain.load(std::memory_order_relaxed), here);
  part.chain.store(chain, std::memory_order_relaxed);
  if (__builtin_expect(part.course == Part::kFollows, 1)) {
    const KnownPart& known = part.known[part.followed];
    if (__builtin_expect(part.length < known.length, 1) && part.blocks[known.begin + part.length] == chain) {
      ++part.length;
      return true;
    }
  }
  if (part.course == Part::kDiffers) append(part);
  else if (part.course != Part::kSpoilt) decide(thread, part);
  return part.course == Part::kFollows;
}

void spoil_part(ThreadState& thread) noexcept {
  Part* part = thread.part;
  if (part == nullptr || part->course == Part::kClosed || part->course == Part::kSpoilt) return;
  if (part->course == Part::kFollows) write_part(thread, *part, RKM_COURSE_DIFFERS, part->length, kNoStep);
  part->course = Part::kSpoilt;
}

bool is_part_mixed(const ThreadState& thread) noexcept {
  const Part* part = thread.part;
  if (part == nullptr || part->course == Part::kClosed || part->is_observed) return false;
  return part->step == step.load(std::memory_order_relaxed);  // else it has not begun in this step
}

uint32_t end_parts(ThreadState& thread) noexcept {
  step_base.store(at::sequence_number::peek(), std::memory_order_relaxed);
  step_thread.store(current_thread_id(), std::memory_order_relaxed);
  step_part.store(thread.part, std::memory_order_release);
  if (thread.part == nullptr) return 0;
  return thread.part->course != Part::kClosed ? end_part(thread, *thread.part) : kNoBlocks;
}

void calls_are_off(bool now) noexcept { are_calls_off.store(now, std::memory_order_relaxed); }

void forget_parts() noexcept { generation.fetch_add(1, std::memory_order_relaxed); }

bool prepare_parts() noexcept {
  if (rooms.load(std::memory_order_relaxed) != nullptr) return true;
  if (pthread_key_create(&room_key, free_room) != 0) return false;
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* made = mmap(nullptr, size_t{kRooms} * kRoomBlocks * sizeof(uint64_t), PROT_READ | PROT_WRITE, kFlags, -1, 0);
  if (made == MAP_FAILED) return false;
  rooms.store(static_cast<uint64_t*>(made), std::memory_order_release);  // and with it the key
  return true;
}

void take_room(ThreadState& thread) noexcept {
  if (thread.part != nullptr) return;
  uint64_t* const blocks = rooms.load(std::memory_order_acquire);
  if (blocks == nullptr) return;
  uint64_t taken = rooms_taken.load(std::memory_order_relaxed);
  uint32_t at = 0;
  do {
    if (taken == ~uint64_t{0}) return;
    at = static_cast<uint32_t>(__builtin_ctzll(~taken));
  } while (!rooms_taken.compare_exchange_weak(taken, taken | uint64_t{1} << at, std::memory_order_acquire));
  Part& part = parts[at];
  part.course = Part::kClosed;
  part.num_known = part.end = 0;
  part.blocks = blocks + size_t{at} * kRoomBlocks;
  if (pthread_setspecific(room_key, &part) != 0) {
    rooms_taken.fetch_and(~(uint64_t{1} << at), std::memory_order_release);
    return;
  }
  start_trail(part.trail);
  thread.part = &part;
  thread.trail = &part.trail;
}

}  // namespace rankmem
