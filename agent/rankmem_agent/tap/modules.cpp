// The module that an operator runs in, without a hook in any module.
//
// Any global forward hook sends every call of a module down torch's slow path (1.5 us to 7.5 us a call, measured).
// The module is on the thread's own stack of Python frames all the same: frames.cpp finds it in 10 to 80 ns. Its path
// is a number in the table below, by the module's address.
//
// Where it is read: when an observed function begins, off every allocator's lock, so that a module met for the first
// time can be named by Python (hooks/module_frames.py) before its first call is written. Python is asked once a
// module; while something is traced it keeps silent and is asked again later.
//
// Why an address is enough: a module on a stack is alive, and its name is forgotten by a weak reference, before its
// memory can be given to another. Writers hold the GIL; readers take nothing.

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <optional>
#include <unordered_map>

#include "calls.h"
#include "control.h"
#include "modules.h"
#include "parts.h"
#include "spool.h"
#include "stacks.h"

namespace rankmem {

namespace {

// In the table: the module is known and has no name (its string could not be written).
constexpr uint32_t kNameless = 0x7FFF'FFFF;
// In the table, with a name: a module around this one that is not known yet may give it another.
constexpr uint32_t kMayChange = 0x8000'0000;
// Modules on a stack that are named at once, those not known yet.
constexpr uint32_t kNamedAtOnceMax = 64;
// Asked in vain this often in a row, a thread asks again only after a pause: something is traced for long. The pause
// is short, since calls have no module from the end of what is traced until the next question.
constexpr uint32_t kVainMax = 64;
constexpr uint64_t kVainPauseNs = 100'000;

// Paths by address, open addressing. One writer at a time (the GIL), readers without a lock.
class ModuleTable {
 public:
  // The name of a module; 0 if it is not known.
  uint32_t find(uintptr_t module) const noexcept {
    const Slots* slots = slots_.load(std::memory_order_acquire);
    if (slots == nullptr) return 0;
    for (size_t at = hash(module) & slots->mask;; at = (at + 1) & slots->mask) {
      const Entry& entry = slots->entries[at];
      const uintptr_t key = entry.module.load(std::memory_order_acquire);
      if (key == kEmpty) return 0;
      if (key != module) continue;
      const uint32_t name = entry.name.load(std::memory_order_acquire);
      // An entry that was given to another module in between had kGone first.
      return entry.module.load(std::memory_order_relaxed) == module ? name : 0;
    }
  }

  void put(uintptr_t module, uint32_t name) noexcept {
    Slots* slots = roomy();
    if (slots == nullptr) return;  // no memory: it stays unknown
    Entry* gone = nullptr;
    size_t at = hash(module) & slots->mask;
    for (;; at = (at + 1) & slots->mask) {
      Entry& entry = slots->entries[at];
      const uintptr_t key = entry.module.load(std::memory_order_relaxed);
      if (key == module) {
        if (entry.name.exchange(name, std::memory_order_acq_rel) != name) forget_parts();
        return;
      }
      if (key == kGone && gone == nullptr) gone = &entry;
      if (key == kEmpty) break;
    }
    Entry& entry = gone != nullptr ? *gone : slots->entries[at];
    if (gone == nullptr) ++used_;
    entry.name.store(name, std::memory_order_release);
    entry.module.store(module, std::memory_order_release);
  }

  void take(uintptr_t module) noexcept {
    Slots* slots = slots_.load(std::memory_order_relaxed);
    if (slots == nullptr) return;
    for (size_t at = hash(module) & slots->mask;; at = (at + 1) & slots->mask) {
      const uintptr_t key = slots->entries[at].module.load(std::memory_order_relaxed);
      if (key == kEmpty) return;
      if (key != module) continue;
      slots->entries[at].module.store(kGone, std::memory_order_release);
      tidy(*slots, at);
      return;
    }
  }

 private:
  static constexpr uintptr_t kEmpty = 0, kGone = 1;
  struct Entry {
    std::atomic<uintptr_t> module;
    std::atomic<uint32_t> name;
  };
  struct Slots {
    size_t mask;
    Entry entries[1];
  };

  static size_t hash(uintptr_t module) noexcept { return static_cast<size_t>(mix(0x6D6F'6475'6C65u, module)); }

  // Entries that are gone at the end of a run become empty again.
  void tidy(Slots& slots, size_t at) noexcept {
    if (slots.entries[(at + 1) & slots.mask].module.load(std::memory_order_relaxed) != kEmpty) return;
    while (slots.entries[at].module.load(std::memory_order_relaxed) == kGone) {
      slots.entries[at].module.store(kEmpty, std::memory_order_release);
      --used_;
      at = (at - 1) & slots.mask;
    }
  }

  // The slots, at most half full. A table that is replaced is left to those who read it.
  Slots* roomy() noexcept {
    Slots* old = slots_.load(std::memory_order_relaxed);
    if (old != nullptr && 2 * used_ < old->mask) return old;
    const size_t count = old == nullptr ? 1024 : 2 * (old->mask + 1);
    auto* slots = static_cast<Slots*>(std::calloc(1, sizeof(Slots) + count * sizeof(Entry)));
    if (slots == nullptr) return old != nullptr && used_ < old->mask ? old : nullptr;
    slots->mask = count - 1;
    used_ = 0;
    for (size_t at = 0; old != nullptr && at <= old->mask; ++at) {
      const uintptr_t key = old->entries[at].module.load(std::memory_order_relaxed);
      if (key == kEmpty || key == kGone) continue;
      size_t to = hash(key) & slots->mask;
      while (slots->entries[to].module.load(std::memory_order_relaxed) != kEmpty) to = (to + 1) & slots->mask;
      slots->entries[to].name.store(old->entries[at].name.load(std::memory_order_relaxed));
      slots->entries[to].module.store(key);
      ++used_;
    }
    slots_.store(slots, std::memory_order_release);
    return slots;
  }

  std::atomic<Slots*> slots_{nullptr};
  size_t used_ = 0;  // entries that are not empty
};
constinit ModuleTable module_names;

#ifdef RKM_WITH_EVIDENCE
// The names of modules that are gone: what was learned of blocks by such a module's address (parts.h) is true of
// another one there only if it has the same name. Under the GIL; leaked, as threads may outlive static objects.
constexpr size_t kGoneKept = 4096;
auto& gone_names = *new std::unordered_map<uintptr_t, uint32_t>;

void note_gone(uintptr_t module, uint32_t name) noexcept try {
  if (gone_names.size() == kGoneKept) {
    gone_names.clear();
    forget_parts();
  }
  if (name != 0) gone_names.insert_or_assign(module, name);
} catch (...) {
  forget_parts();
}

bool was_another(uintptr_t module, uint32_t name) noexcept {
  const auto found = gone_names.find(module);
  if (found == gone_names.end()) return false;
  const bool is_other = found->second != name;
  gone_names.erase(found);
  return is_other;
}
#else
void note_gone(uintptr_t, uint32_t) noexcept {}
bool was_another(uintptr_t, uint32_t) noexcept { return false; }
#endif

std::atomic<bool> checked{false};
std::atomic<uint64_t> asked{0};
std::atomic<bool> main_in_module{false};
PyObject* asks = nullptr;  // the callable, kept for good; null: no module gets a name

// The interpreter's end is run by the main thread, so that one need not be waited for while it reads its frames.
bool is_main_thread(ThreadState& thread) noexcept {
  if (thread.main == ThreadState::kNotAsked) {
    thread.main = syscall(SYS_gettid) == getpid() ? ThreadState::kMain : ThreadState::kOther;
  }
  return thread.main == ThreadState::kMain;
}

// A signal's handler may run and raise while Python names a module: nothing is there to catch it. It is raised again
// where the main thread goes on in Python. Source: Py_AddPendingCall, whose call may fail with an exception set.
struct Raised {
  PyObject *type, *value, *traceback;
};

int raise_again(void* raised) {
  auto* held = static_cast<Raised*>(raised);
  python.PyErr_Restore(held->type, held->value, held->traceback);
  delete held;
  return -1;
}

// No stack or no memory left for us: the training may have enough of both, so it is not reported.
bool is_our_own(const PyObject* type) noexcept {
  static auto* const* recursion = static_cast<PyObject* const*>(dlsym(RTLD_DEFAULT, "PyExc_RecursionError"));
  static auto* const* memory = static_cast<PyObject* const*>(dlsym(RTLD_DEFAULT, "PyExc_MemoryError"));
  return (recursion != nullptr && type == *recursion) || (memory != nullptr && type == *memory);
}

void hand_on_exception() noexcept {
  auto* raised = new (std::nothrow) Raised{};
  if (raised == nullptr) return;
  python.PyErr_Fetch(&raised->type, &raised->value, &raised->traceback);
  if (is_our_own(raised->type)) {
    for (PyObject* each : {raised->type, raised->value, raised->traceback}) {
      if (each != nullptr) python.Py_DecRef(each);
    }
    delete raised;
    return;
  }
  if (python.Py_AddPendingCall(raise_again, raised) != 0) delete raised;
}

inline uint32_t name_of_module(const PyObject* module) noexcept {
  return module_names.find(reinterpret_cast<uintptr_t>(module));
}

// The modules that this thread is in, nearest first, up to one whose name is final; 1 + the index of the outermost that
// is not known, 0 if all are.
struct Around {
  const PyObject* modules[kNamedAtOnceMax];
  uint32_t count = 0, unknown = 0;
};

Around modules_around(PythonFrame call) noexcept {
  Around around;
  for (; call != nullptr && around.count < kNamedAtOnceMax; call = nearest_module_call(caller_of(call))) {
    const PyObject* module = around.modules[around.count++] = module_of_call(call);
    const uint32_t name = name_of_module(module);
    if (name == 0) around.unknown = around.count;
    if (name != 0 && (name & kMayChange) == 0) break;
  }
  return around;
}

// Has Python name the module of `call` and those around it that are not known either, outermost first.
__attribute__((noinline)) uint32_t ask_names(ThreadState& thread, PythonFrame call) noexcept {
  Gathering counted;
  if (stopped.load()) return 0;
  const Around around_call = modules_around(call);
  const PyObject* const* modules = around_call.modules;
  const uint32_t count = around_call.count;
  if (around_call.unknown == 0) return name_of_module(modules[0]);
  if (thread.vain > kVainMax && monotonic_ns() - thread.vain_ns < kVainPauseNs) return name_of_module(modules[0]);
  PythonHeld held(/*pauses_collection=*/false);  // Python code runs here: what it sets of the collector stays
  asked.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t at = around_call.unknown; at-- > 0;) {
    if (stopped.load()) return 0;  // the interpreter is ending: it does not wait for long
    if (name_of_module(modules[at]) != 0) continue;
    auto* around = at + 1 < count ? const_cast<PyObject*>(modules[at + 1]) : nullptr;
    PyObject* answer =
        python.PyObject_CallFunctionObjArgs(asks, const_cast<PyObject*>(modules[at]), around, nullptr);
    if (answer != nullptr) {
      python.Py_DecRef(answer);
    } else {
      hand_on_exception();
    }
  }
  const bool in_vain = name_of_module(modules[around_call.unknown - 1]) == 0;
  thread.vain = in_vain ? thread.vain + 1 : 0;
  if (in_vain) thread.vain_ns = monotonic_ns();
  return name_of_module(modules[0]);
}

// Finds this thread's frame and the module's call around it; true if `engine` had the answer.
inline bool look(ModuleHere& here, const Frame* engine) noexcept {
  here.python_frame = current_frame(python.PyGILState_GetThisThreadState());
  if (here.python_frame == nullptr) return true;
  if (engine != nullptr && engine->python_frame == here.python_frame) {
    here = {engine->python_frame, engine->module_call, engine->module};
    return true;
  }
  here.module_call = nearest_module_call(here.python_frame);
  return false;
}

}  // namespace

bool main_thread_in_module() noexcept { return main_in_module.load(std::memory_order_relaxed); }

bool can_follow_modules() noexcept { return checked.load(std::memory_order_acquire); }

ModuleHere module_here(ThreadState& thread, const Frame* engine) noexcept {
  ModuleHere here = {};
  std::optional<Counted> counted;  // as long as frames are read
  if (is_main_thread(thread)) {
    if (stopped.load(std::memory_order_relaxed)) return here;
    const bool is_known = look(here, engine);
    const bool in_module = here.module_call != nullptr;
    if (main_in_module.load(std::memory_order_relaxed) != in_module) main_in_module.store(in_module);
    if (is_known) return here;
  } else {
    counted.emplace();
    if (stopped.load()) return here;
    if (look(here, engine)) return here;
  }
  if (here.module_call == nullptr || asks == nullptr) return here;
  here.name = name_of_module(module_of_call(here.module_call));
  if (here.name == 0 || (here.name & kMayChange) != 0) here.name = ask_names(thread, here.module_call) & ~kMayChange;
  if (here.name == kNameless) here.name = 0;
  return here;
}

PythonFrame module_call_here() noexcept {
  if (!enabled(kModules)) return nullptr;
  const Counted counted;
  if (stopped.load()) return nullptr;
  return nearest_module_call(current_frame(python.PyGILState_GetThisThreadState()));
}

uint32_t known_module_here() noexcept {
  const Counted counted;
  if (stopped.load() || !can_follow_modules()) return 0;
  const PythonFrame call = nearest_module_call(current_frame(python.PyGILState_GetThisThreadState()));
  const uint32_t name = call == nullptr ? 0 : name_of_module(module_of_call(call));
  return name == kNameless ? 0 : name & ~kMayChange;
}

int follow_modules(PyObject* call_code, PyObject* ask, bool asks_names, const PyObject* const* modules,
                   uint32_t count) noexcept {
  if (!spool_is_open() || !python.found || !frame_layout_known()) return -ENOSYS;
  if (!check_module_frames(python.PyGILState_GetThisThreadState(), call_code, modules, count)) return -ENOSYS;
  python.Py_IncRef(call_code);  // for good: it is known by its address
  python.Py_IncRef(ask);
  asks = asks_names ? ask : nullptr;
  checked.store(true, std::memory_order_release);
  enabled_bits.fetch_or(kModules);
  return 0;
}

void name_module(const PyObject* module, uint32_t name, bool may_change) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(module);
  const uint32_t named = name != 0 ? name : kNameless, kept = may_change ? named | kMayChange : named;
  if (was_another(address, kept)) forget_parts();
  module_names.put(address, kept);
}

void forget_module(const PyObject* module) noexcept {
  const auto address = reinterpret_cast<uintptr_t>(module);
  if (is_steady()) forget_parts();  // nobody would see another module at its address
  note_gone(address, module_names.find(address));
  module_names.take(address);
}

uint64_t modules_asked() noexcept { return asked.load(std::memory_order_relaxed); }

}  // namespace rankmem
