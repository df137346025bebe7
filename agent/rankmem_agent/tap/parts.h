// Whether a thread's blocks come as in a step before, by what each of them shows. See parts.cpp.
//
// Without RKM_WITH_EVIDENCE there are no parts, and these do nothing.
#pragma once

#include "evidence.h"

namespace rankmem {

#ifdef RKM_WITH_EVIDENCE

// The next block of this thread's part of the step; writes PART before its EVENT, where it decides something.
// Hot path.
void follow_part(ThreadState& thread, const Shown& shown, uint64_t source) noexcept;

// The part of this thread has a block of which nothing is known: it is like no other, and no other will be like it.
void spoil_part(ThreadState& thread) noexcept;

// The step of this thread has ended. From here on numbers of autograd's nodes on other threads are counted from this
// thread's next one.
void end_parts(ThreadState& thread) noexcept;

// What was learned is not true of what comes: another module has the address of one that is known by it, or blocks are
// not compared for some time. No part that goes on now is kept, and none is like one before.
void forget_parts() noexcept;

// Makes room for parts, once; false where there is none. Off the hot path.
bool prepare_parts() noexcept;
// Gives this thread its room, if it has none yet. Off every lock.
void take_room(ThreadState& thread) noexcept;
#else
inline void end_parts(ThreadState&) noexcept {}
inline void forget_parts() noexcept {}
inline bool prepare_parts() noexcept { return false; }
#endif

}  // namespace rankmem
