// Orders of `rankmem control`: how much is recorded around the events, from which step on. See control.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

// A step has ended, and `now` has begun; on the thread that ended it, behind its STEP record. `by_call`: a call of
// the model ended it, which only observed calls show.
void follow_orders(uint64_t now, bool by_call) noexcept;

// These have been switched off for good: no order brings them back.
void forget_switched(uint32_t what) noexcept;

}  // namespace rankmem
