// The outermost call of a module: its inputs are Python's to read once it has begun, and its return ends a step where
// no optimizer does.
//
// No hook: the first operator within shows the call (modules.cpp). Its return shows in what dies with its frame: every
// call of a module runs `_wrapped_call_impl(self, *args, **kwargs)`, and this `kwargs` is a dictionary of that frame
// alone, of which the functions further in have copies. A capsule is put into it, whose destructor runs when the frame
// is gone. Where a traceback keeps the frame, the next operator outside of modules ends the call.
//
// Cost: two comparisons an operator; for each outermost call the GIL, a capsule and the question, which is Python's to
// answer unless the call is given what one before was given (same_calls.cpp).

#include <c10/core/GradMode.h>

#include "calls.h"
#include "control.h"
#include "parts.h"
#include "roots.h"
#include "same_calls.h"
#include "spool.h"
#include "stacks.h"

namespace rankmem {

namespace {

constexpr const char* kCapsuleName = "rankmem";
constexpr uint32_t kArgsLocal = 1, kKwargsLocal = 2;  // of _wrapped_call_impl, behind self (torch 2.1 to 2.13)

PyObject* asks_root = nullptr;  // the callable, kept for good
std::atomic<bool> watches_roots{false};
std::atomic<uint32_t> root_step_name{0};
std::atomic<uint64_t> last_root{0};
// The step in which no further call is of interest, without and with autograd recording.
std::atomic<uint64_t> quiet_steps[2] = {~uint64_t{0}, ~uint64_t{0}};
// The call whose return ends a step; one that begins meanwhile, on any thread, is a part of it. 0: none.
std::atomic<uint64_t> stepping_root{0};

std::atomic<uint64_t>& quiet_step() noexcept { return quiet_steps[c10::GradMode::is_enabled() ? 1 : 0]; }

void end_root(uint64_t root) noexcept {
  if (thread_state.root == root) thread_state.root = 0;
  if (stepping_root.compare_exchange_strong(root, 0)) end_step_by_call();
}

// The capsule's pointer is the call's number itself: it owns nothing.
void root_returned(PyObject* capsule) {
  end_root(reinterpret_cast<uintptr_t>(python.PyCapsule_GetPointer(capsule, kCapsuleName)));
}

// The outermost call around this one.
PythonFrame outermost(PythonFrame call) noexcept {
  while (PythonFrame outer = nearest_module_call(caller_of(call))) call = outer;
  return call;
}

long ask_python(CallQuestion& question) noexcept {
  PyObject* answered = python.PyLong_FromLong(hand_to_python(question));
  if (answered == nullptr) {
    python.PyErr_Clear();
    return 0;
  }
  auto* module = const_cast<PyObject*>(question.module);
  PyObject* answer =
      python.PyObject_CallFunctionObjArgs(asks_root, module, question.args, question.kwargs, answered, nullptr);
  python.Py_DecRef(answered);
  if (answer == nullptr) {
    hand_on_exception();
    return 0;
  }
  const long found = python.PyLong_AsLong(answer);
  python.Py_DecRef(answer);
  return found < 0 ? 0 : found;
}

long ask_about(PythonFrame call, PyObject* kwargs) noexcept {
  CallQuestion question;
  question.module = module_of_call(call);
  question.args = const_cast<PyObject*>(local_of_call(call, kArgsLocal));
  question.kwargs = kwargs;
  long found = answer_if_same(question);
  if (found < 0) {
    found = ask_python(question);
    learn_answer(question, found);
  }
  return found;
}

__attribute__((noinline)) void begin_root(ThreadState& thread, PythonFrame call) noexcept {
  Gathering counted;
  if (stopped.load()) return;
  call = outermost(call);
  PyObject* kwargs = const_cast<PyObject*>(local_of_call(call, kKwargsLocal));
  PythonHeld held(/*pauses_collection=*/false);
  if (stopped.load() || kwargs == nullptr) return;
  const uint64_t root = last_root.fetch_add(1, std::memory_order_relaxed) + 1;
  const long found = ask_about(call, kwargs);
  if ((found & kRootNotInThisStep) != 0) quiet_step().store(step.load(std::memory_order_relaxed));
  PyObject* capsule = python.PyCapsule_New(reinterpret_cast<void*>(root), kCapsuleName, root_returned);
  if (capsule == nullptr || python.PyDict_SetItemString(kwargs, kCapsuleName, capsule) != 0) {
    python.PyErr_Clear();  // no memory: the call is asked about again
  } else {
    thread.root = root;
    uint64_t none = 0;
    if ((found & kRootEndsStep) != 0) stepping_root.compare_exchange_strong(none, root);
  }
  if (capsule != nullptr) python.Py_DecRef(capsule);
}

}  // namespace

void end_step_by_call() noexcept {
  if (!spool_is_open()) return;
  end_parts(thread_state);
  RkmStep record;
  record.step() = step.load(std::memory_order_relaxed);
  record.optimizer() = root_step_name.load(std::memory_order_relaxed);
  record.thread = current_thread_id();
  record.time_ns = monotonic_ns();
  write_record(record);
  follow_orders(step.fetch_add(1, std::memory_order_relaxed) + 1, /*by_call=*/true, /*times=*/0);
}

void watch_roots(PyObject* ask, uint32_t name) noexcept {
  if (asks_root != nullptr || !can_follow_modules()) return;
  python.Py_IncRef(ask);
  asks_root = ask;
  root_step_name.store(name);
  watches_roots.store(true, std::memory_order_release);
}

void follow_root(ThreadState& thread, const ModuleHere& here) noexcept {
  const bool is_inside = here.module_call != nullptr;
  if (is_inside == (thread.root != 0) || here.python_frame == nullptr) return;
  if (!is_inside) {
    end_root(thread.root);
  } else if (watches_roots.load(std::memory_order_acquire) &&
             quiet_step().load(std::memory_order_relaxed) != step.load(std::memory_order_relaxed)) {
    begin_root(thread, here.module_call);
  }
}

}  // namespace rankmem
