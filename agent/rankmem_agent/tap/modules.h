// The module that a call runs in, read from the thread's Python frames. See modules.cpp.
#pragma once

#include "frames.h"
#include "tap.h"

namespace rankmem {

struct Frame;
struct ThreadState;

// Where a thread is in Python when an observed function begins.
struct ModuleHere {
  PythonFrame python_frame;  // the frame that runs; null without Python
  PythonFrame module_call;   // the nearest call of a module; null outside of all
  uint32_t name;             // string id of its path; 0 for none
};

// Whether the main thread was within a module when it last began an observed function.
bool main_thread_in_module() noexcept;

// Off the hot path: asks Python for the name of a module that it meets for the first time. `engine` is the function of
// autograd's that this one begins within, or null: in the same Python frame it has the same answer.
ModuleHere module_here(ThreadState& thread, const Frame* engine) noexcept;

// The nearest call of a module on this thread; null outside of all, or where modules are not followed. Hot path.
PythonFrame module_call_here() noexcept;

// The string id of the path of the module that this thread is in, if it is known; 0 without. Asks nobody, and works
// while modules are not followed, too. Hot path.
uint32_t known_module_here() noexcept;

// Follows modules from now on if this thread's nearest calls of modules, run by `call_code`, are those of `modules`,
// nearest first. Enables kModules. `ask` is a Python callable (module[, the module around it]) that answers with name_module(); without
// `asks_names` no module gets a name, and only that one runs is known.
// 0, or -ENOSYS where frames cannot be read. Under the GIL.
int follow_modules(PyObject* call_code, PyObject* ask, bool asks_names, const PyObject* const* modules,
                   uint32_t count) noexcept;
// Whether that was called and worked.
bool can_follow_modules() noexcept;

// The string id of a module's path; 0: it has none. `may_change`: it may turn out to be a part of a module around it,
// which then has to be named first. Under the GIL.
void name_module(const PyObject* module, uint32_t name, bool may_change) noexcept;
// The module is gone: another may have its address. Under the GIL.
void forget_module(const PyObject* module) noexcept;

// How often Python was asked for a name.
uint64_t modules_asked() noexcept;

}  // namespace rankmem
