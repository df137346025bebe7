// The spool, writing side: segments in mmap'd files, the control page, the strings file, the native thread.
//
// Comes in: finished records from any thread. Goes out: the folder that rankmem_agent.spool.layout specifies.
// It must never block a writer, never fault in one (SIGBUS) and never outgrow its budget: what finds no room
// is counted and dropped.
#pragma once

#include <sys/types.h>

#include "tap.h"

namespace rankmem {

// A segment's life as writers see it: word = (number << 2 | state) in the slot of its number. Slots are
// reused, so a word that carries another number means: not ready.
enum SegmentState : uint64_t { kEmpty = 0, kReady = 1, kLost = 2 };

// Slots of the segment table. The budget is held below half of it, so that a slot comes round only when its
// old segment is long gone: 4096 slots of 4 MiB are 16 GiB of log.
constexpr uint64_t kSlots = 4096;

struct SegmentSlot {
  std::atomic<uint64_t> word{~uint64_t{0}};
  std::atomic<char*> base{nullptr};
};

// All that writers need, in constant-initialised memory that is never given back: late frees from static
// destructors must find it whole.
struct Spool {
  RkmControl* control = nullptr;
  SegmentSlot slots[kSlots];
};
extern Spool spool;

// A descriptor of ours, and which file it is. A program that closes all that are open (a daemon's start does) gives
// our number to a file of its own: nothing of ours may be written there, and nothing of its closed.
struct OwnFile {
  int fd = -1;
  dev_t device = 0;
  ino_t inode = 0;

  constexpr OwnFile() noexcept = default;
  explicit OwnFile(int fd) noexcept;
  bool is_there() const noexcept;
};

// Creates control, strings and the first segment in `folder`, writes the first CLOCK, starts the native
// thread. Once a process. A provisional spool has a small budget until it is published. 0 or -errno.
int open_spool(const char* folder, uint64_t budget_bytes, bool is_provisional) noexcept;
// Renames the spool's folder, over an empty one, and grants the whole budget. 0 or -errno.
int publish_spool(const char* folder) noexcept;
// Has Python's main thread call `callback` once, when `after_ns` have passed and there are so many records, or half
// of the provisional budget is used; not after publish_spool.
void call_when_busy(void* callback, uint64_t after_ns, uint64_t records) noexcept;
// Stops the native thread and writes END; state ENDED. Mappings stay.
int close_spool() noexcept;
// Between open_spool and close_spool, and not in a forked child.
bool spool_is_open() noexcept;

// The interned copy of a text, kept as long as the process lives, and its id; {nullptr, 0, 0} if it could not be.
struct Interned {
  const char* text;
  uint32_t size_bytes;
  uint32_t id;
};
Interned intern_entry(std::string_view text, size_t bytes_max) noexcept;

// Appends entries to the strings file; ids from 1 for each type, 0 if it could not be written.
uint32_t intern_bounded(std::string_view text, size_t bytes_max) noexcept;
uint32_t intern_frame(uint32_t file, uint32_t function, uint32_t line) noexcept;
uint32_t intern_stack(const uint32_t* frames, uint32_t count) noexcept;
void strings_use(int fd) noexcept;  // once, from open_spool

// Held where locks of torch's or of a driver's are taken for our sake: a fork waits until it is given back (not for
// long), so that no child inherits them locked by a thread that it does not have.
class ForkHeld {
 public:
  ForkHeld() noexcept;
  ~ForkHeld();
  ForkHeld(const ForkHeld&) = delete;
  ForkHeld& operator=(const ForkHeld&) = delete;
};

// The same where it need not be waited for; false otherwise.
bool try_hold_fork() noexcept;
void release_fork() noexcept;

// Segments made ready so far.
uint64_t segments_made() noexcept;

}  // namespace rankmem
