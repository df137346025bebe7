// The outermost call of a module on a thread: when it is first seen, and when it returns. See roots.cpp.
#pragma once

#include "modules.h"

namespace rankmem {

// Has `ask` (module, args, kwargs, calls answered here) called when an outermost call of a module has begun its first observed function.
// `name` is the string id that STEP records of calls have. Once; where modules are followed. Under the GIL.
void watch_roots(PyObject* ask, uint32_t name) noexcept;

// Off the allocator's lock, when an observed function begins outside of all others.
void follow_root(ThreadState& thread, const ModuleHere& here) noexcept;

}  // namespace rankmem
