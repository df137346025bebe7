// How much is recorded around the events, from which step on: by orders of `rankmem control`, and where that is left
// to the tap (detail auto) by how high the steps stand. See control.cpp, auto_detail.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

// A step has ended, and `now` has begun; on the thread that ended it, behind its STEP record. `by_call`: a call of
// the model ended it, which only observed calls show.
void follow_orders(uint64_t now, bool by_call) noexcept;

// From here on, and where no order says otherwise, the tap chooses itself. False where it cannot tell how high a step
// stands: then all is recorded.
bool choose_detail() noexcept;

// Whether any of these is off now, by an order or by detail auto, and comes back.
bool is_switched_off(uint32_t what) noexcept;

// These have been switched off for good: no order brings them back.
void forget_switched(uint32_t what) noexcept;

}  // namespace rankmem
