// Steady: steps that are known are recorded without observing calls; what each allocation shows, compared with steps
// before (parts.h), says where it is made. See steady.cpp. Called from control.cpp alone, by one thread at a time.
#pragma once

#include "tap.h"

namespace rankmem {

// The tap chooses so from here on, with one step in so many observed all the same, these so far apart. Once, before the
// first step.
void audit_every(uint64_t steps, uint64_t apart_ns) noexcept;
// A step has ended on the thread that ends steps; `times`: how often its part came as a whole with all observed, this
// time included if it was (end_parts).
void look_at_part(uint32_t times) noexcept;
// In this step, recorded so, a block came that no known part has; `place`: the same number for the same place.
void note_miss(uint64_t step, uint64_t place) noexcept;
// Whether blocks are compared in step `now`; asked once a step, before the next.
bool compares_blocks(uint64_t now) noexcept;
// The Detail of step `now`.
uint64_t steady_detail(uint64_t now) noexcept;

}  // namespace rankmem
