// Python stacks of allocating calls. See stacks.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

// Stacks a thread remembers by the key of its frames, before it asks Python and the table that all threads
// share. 32 KiB.
constexpr size_t kStacksCached = 2048;
struct StackCacheEntry {
  uint64_t key;
  uint32_t stack_id;  // never 0 in an entry in use
};

// Finds CPython's functions in this process. 0, or -ENOSYS if it has none (then stacks are never gathered).
int find_python() noexcept;
bool python_found() noexcept;
// The id of this thread's Python stack; 0 if it has none or Python is going away. Takes the
// GIL for a stack that this thread has not met, or has forgotten; unless it `may_wait` for it, only if it has it.
uint32_t gather_stack(StackCacheEntry* cache, bool may_wait = true);
// The same without ever taking the GIL, for a stack that nobody has met: names and lines are read from the code objects
// of the frames, which own them. Some microseconds a frame; 0 where this Python's cannot be read so, or where a name is
// not ASCII. Off every lock of an allocator.
uint32_t read_stack(const StackCacheEntry* cache) noexcept;
// The same of a stack that this thread has met, else 0: under any lock.
uint32_t known_stack(const StackCacheEntry* cache) noexcept;
// Never touch Python again. Returns when no thread is in the middle of it, at most a second later.
void stop_stacks() noexcept;
uint64_t stacks_gathered() noexcept;
// Of those, how often Python was asked.
uint64_t stacks_walked() noexcept;

}  // namespace rankmem
