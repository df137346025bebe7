// Detail auto: whether a step is recorded in full or in summary, by how high the steps before stood. See
// auto_detail.cpp. Called as a step ends, from control.cpp alone, by one thread at a time.
#pragma once

#include "tap.h"

namespace rankmem {

// Has heights counted from here on, once. False where they cannot be: a CPU block's size is not known as it is freed.
bool follow_heights() noexcept;
// A step has ended, and was recorded so: looks at how high each device stood in it.
void look_at_heights(uint64_t ended_step, bool was_full) noexcept;
// The Detail of step `now`; begins anew with the first steps in full where another order asks than before.
uint64_t auto_detail(uint64_t order, uint64_t now) noexcept;

}  // namespace rankmem
