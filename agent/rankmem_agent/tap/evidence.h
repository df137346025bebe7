// What an allocation shows of where it is made. See evidence.cpp.
//
// Compiled with RKM_WITH_EVIDENCE alone: it takes headers of torch that double the time of a build.
#pragma once

#include "calls.h"
#include "modules.h"

namespace rankmem {

// Whether evidence can be read here: built with it, and this Python's frames and modules can be read. Without, no
// evidence is written.
inline bool can_read_evidence() noexcept {
#ifdef RKM_WITH_EVIDENCE
  return can_follow_modules();
#else
  return false;
#endif
}

// What a thread shows at a block.
struct Shown {
  uint64_t frames_key, modules_key;
  uint64_t node_class = 0;                     // of the autograd node that runs; 0: none
  uint64_t node_sequence = RKM_NO_SEQUENCE;    // its number among those that node_thread made
  uint64_t node_thread = 0;
  uint64_t nodes_made;                         // autograd's counter of this thread
};

// What this thread shows now; false where its frames may not be read any more. Hot path.
bool read_evidence(ThreadState& thread, Shown& shown) noexcept;

// Whether an autograd node runs on this thread.
#ifdef RKM_WITH_EVIDENCE
bool is_in_node() noexcept;
#else
inline bool is_in_node() noexcept { return false; }
#endif

// For a test, with kShowAll: how often the frames gave other keys than when nothing was known of them.
#ifdef RKM_WITH_EVIDENCE
uint64_t frames_misread() noexcept;
#else
inline uint64_t frames_misread() noexcept { return 0; }
#endif

}  // namespace rankmem
