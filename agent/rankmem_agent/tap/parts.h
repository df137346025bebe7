// Whether a thread's blocks come as in a step before, by what each of them shows. See parts.cpp.
//
// Without RKM_WITH_EVIDENCE there are no parts, and these do nothing.
#pragma once

#include "evidence.h"

namespace rankmem {

// A part is known for sure once it came so often with all observed: as it is learned; as what is known of it is taken
// over, since the first batch of a line has no category yet; and as the blocks of that time have died.
constexpr uint32_t kSureTimes = 3;
constexpr uint32_t kNoBlocks = ~0u;

#ifdef RKM_WITH_EVIDENCE

// The next block of this thread's part of the step; writes PART before its EVENT, where it decides something. Whether
// the blocks so far are those of a known part; without a room false. Hot path.
bool follow_part(ThreadState& thread, const Shown& shown, uint64_t source) noexcept;

// The part of this thread has a block of which nothing is known: it is like no other, and no other will be like it.
void spoil_part(ThreadState& thread) noexcept;

// Whether calls were not observed for some of this thread's part.
bool is_part_mixed(const ThreadState& thread) noexcept;

// The step of this thread has ended. From here on numbers of autograd's nodes on other threads are counted from this
// thread's next one. Returns how often its part came as a whole while all was observed, this time included if it was;
// 0: it is like none, or shows nothing; kNoBlocks: there was none in it.
uint32_t end_parts(ThreadState& thread) noexcept;

// What was learned is not true of what comes: another module has the address of one that is known by it, or blocks are
// not compared for some time. No part that goes on now is kept, and none is like one before.
void forget_parts() noexcept;

// Whether calls are observed from here on. Parts are learned where they are, and followed where they are not only if
// they are known for sure.
void calls_are_off(bool now) noexcept;

// Makes room for parts, once; false where there is none. Off the hot path.
bool prepare_parts() noexcept;
// Gives this thread its room, if it has none yet. Off every lock.
void take_room(ThreadState& thread) noexcept;
#else
inline uint32_t end_parts(ThreadState&) noexcept { return 0; }
inline void forget_parts() noexcept {}
inline bool is_part_mixed(const ThreadState&) noexcept { return false; }
inline void calls_are_off(bool) noexcept {}
inline bool prepare_parts() noexcept { return false; }
#endif

}  // namespace rankmem
