// The outermost call of a module on a thread: when it is first seen, and when it returns. See roots.cpp.
#pragma once

#include "modules.h"

namespace rankmem {

// The bits of Python's answer; hooks/model_calls.py names them.
constexpr long kRootEndsStep = 1;       // a step ends when this call returns
constexpr long kRootNotInThisStep = 2;  // no further call in this grad mode is of interest until a step has ended

// Has `ask` (module, args, kwargs) called when an outermost call of a module has begun its first observed function.
// `name` is the string id that STEP records of calls have. Once; where modules are followed. Under the GIL.
void watch_roots(PyObject* ask, uint32_t name) noexcept;

// Off the allocator's lock, when an observed function begins outside of all others.
void follow_root(ThreadState& thread, const ModuleHere& here) noexcept;

}  // namespace rankmem
