// How much is recorded around the events, from which step on: by orders of `rankmem control`, and where that is left
// to the tap (detail auto) by how high the steps stand. See control.cpp, auto_detail.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

// A step has ended, and `now` has begun; on the thread that ended it, behind its STEP record. `by_call`: a call of
// the model ended it, which only observed calls show. `times`: of its part, as end_parts gave them.
void follow_orders(uint64_t now, bool by_call, uint32_t times) noexcept;

// From here on, and where no order says otherwise, the tap chooses itself. False where it cannot tell how high a step
// stands: then all is recorded.
bool choose_detail() noexcept;

// From here on, and where no order says otherwise, calls are not observed in steps that are known, with one audit in so
// many steps, these so far apart (steady.cpp). With kEvidence alone.
void choose_steady(uint64_t audits_every, uint64_t apart_ns) noexcept;
// Whether the step that goes on is recorded so. Hot path.
bool is_steady() noexcept;
// Whether any is.
bool can_be_steady() noexcept;
// A block has come that no known part has: all is observed again. `place`: not 0, the same for blocks of the same place
// of the program. Takes torch's lock of its callbacks: off every lock of an allocator.
void leave_steady(uint64_t place) noexcept;
// The same on the native thread, some milliseconds from now: under any lock.
void ask_to_leave_steady(uint64_t place) noexcept;
void leave_steady_if_asked() noexcept;
// Nothing changes from here on: the log is about to be closed.
void end_control() noexcept;

// Whether any of these is off now, by an order or by detail auto, and comes back.
bool is_switched_off(uint32_t what) noexcept;

// These have been switched off for good: no order brings them back.
void forget_switched(uint32_t what) noexcept;

}  // namespace rankmem
