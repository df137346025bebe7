// Python stacks of allocating calls. See stacks.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

// Stacks a thread remembers by hash before it asks the table that all threads share. 8 KiB.
constexpr size_t kStacksCached = 512;
struct StackCacheEntry {
  uint64_t hash;
  uint32_t stack_id;
};

// Finds CPython's functions in this process. 0, or -ENOSYS if it has none (then stacks are never gathered).
int find_python() noexcept;
bool python_found() noexcept;
// The id of this thread's Python stack; 0 if it has none or Python is going away. Takes the GIL.
uint32_t gather_stack(StackCacheEntry* cache);
// Never touch Python again. Returns when no thread is in the middle of it, at most a second later.
void stop_stacks() noexcept;
uint64_t stacks_gathered() noexcept;

}  // namespace rankmem
