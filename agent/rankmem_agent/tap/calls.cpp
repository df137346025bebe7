// Operator calls: a global at::RecordFunction callback keeps a small stack of frames for each thread.
//
// A call is the thread's outermost frame that has an operator_name(); failing that, its innermost FUNCTION or
// BACKWARD_FUNCTION frame. So frames inside an operator are not even pushed, except BACKWARD_FUNCTION ones
// (they name the forward call). USER_SCOPE frames are ranges of the user's and become markers only: taken as
// calls they would swallow a whole forward. A call that neither touches memory nor makes an autograd node
// writes nothing.
//
// Source: ATen/record_function.h and ATen/SequenceNumber.h, torch 2.6 to 2.15. Start and end callbacks run
// on the thread that runs the operator, without the GIL as a rule, and never under an allocator's lock.

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <pthread.h>

#include <cstring>

#include "calls.h"
#include "control.h"
#include "evidence.h"
#include "heights.h"
#include "modules.h"
#include "native_operator.h"
#include "parts.h"
#include "roots.h"
#include "spool.h"
#include "stacks.h"

namespace rankmem {

constinit thread_local ThreadState thread_state = {};
std::atomic<uint8_t> phase{0};
std::atomic<uint64_t> step{0};
std::atomic<uint8_t> compared_phase{0};

namespace {

at::CallbackHandle callback_handle = at::INVALID_CALLBACK_HANDLE;
at::CallbackHandle range_callback_handle = at::INVALID_CALLBACK_HANDLE;
std::atomic<CallEndHook> call_end_hook{nullptr};
std::atomic<uint64_t> last_call_id{0};
std::atomic<uint64_t> last_marker_id{0};
std::atomic<uint64_t> last_node{0};
std::atomic<bool> has_blocks{false};
// How often calls were observed again amid a step: operators go on then that nobody saw begin.
std::atomic<uint32_t> times_resumed{0};
// Of the optimizer's step that goes on: its thread, and the call of a module that it is in.
std::atomic<const ThreadState*> stepping_thread{nullptr};
std::atomic<PythonFrame> call_around_step{nullptr};

}  // namespace

// A name seen by a thread: by its address (operators' names lie in their schemas), or, for names that are
// made anew each time ("autograd::engine::evaluate_function: …"), by its text.
struct NameEntry {
  const char* address;
  const char* text;  // interned copy: an address may be reused by another name, so it is compared
  uint32_t id;
  bool is_operator;
  bool is_engine;  // "autograd::engine::evaluate_function: …", around each node
};
constexpr size_t kNamesByAddress = 512;  // 12 KiB a thread; a training uses about 100 operators
constexpr size_t kNamesByText = 256;

// What a thread learns; on the heap, made at its first frame, freed at its end.
struct ThreadCaches {
  NameEntry by_address[kNamesByAddress];
  NameEntry by_text[kNamesByText];
  StackCacheEntry stacks[kStacksCached];
};

namespace {

pthread_key_t caches_key;  // for its destructor, which runs after those of C++ thread_locals; late users make new ones

ThreadCaches* caches_of(ThreadState& thread) noexcept {
  if (thread.caches == nullptr) {
    thread.caches = static_cast<ThreadCaches*>(std::calloc(1, sizeof(ThreadCaches)));
    if (thread.caches != nullptr) pthread_setspecific(caches_key, thread.caches);
  }
  return thread.caches;
}

void free_caches(void* caches) noexcept {
  thread_state.caches = nullptr;
  std::free(caches);
}

inline bool same_name(const char* interned, const char* name) noexcept {
  return interned != nullptr && std::strncmp(interned, name, RKM_STRING_BYTES_MAX) == 0;
}

inline bool is_engine_name(const char* name) noexcept {
  constexpr std::string_view prefix = "autograd::engine::evaluate_function";
  return std::strncmp(name, prefix.data(), prefix.size()) == 0;
}

// Only for names made anew each time, some 40 characters long: eight at a time.
inline size_t hash_text(const char* text) noexcept {
  size_t left = strnlen(text, RKM_STRING_BYTES_MAX);
  uint64_t hash = left;
  for (; left != 0; ) {
    const size_t taken = std::min<size_t>(left, 8);
    uint64_t word = 0;
    std::memcpy(&word, text, taken);
    hash = (hash ^ word) * 0x9E37'79B9'7F4A'7C15u;
    hash ^= hash >> 32;
    text += taken;
    left -= taken;
  }
  return hash;
}

__attribute__((noinline)) NameEntry learn_name(const at::RecordFunction& function, const char* name,
                                               ThreadCaches& caches, NameEntry& by_address) {
  const bool is_operator = function.operator_name().has_value();
  NameEntry& by_text = caches.by_text[hash_text(name) % kNamesByText];
  if (!same_name(by_text.text, name) || by_text.is_operator != is_operator) {
    const Interned interned = intern_entry(name, RKM_STRING_BYTES_MAX);
    if (interned.id == 0) return {name, nullptr, 0, is_operator, is_engine_name(name)};
    by_text = {nullptr, interned.text, interned.id, is_operator, is_engine_name(name)};
  }
  if (is_operator) by_address = {name, by_text.text, by_text.id, true, false};
  return by_text;
}

// The name of a frame and whether it is an operator's. operator_name() copies two strings, so it is asked
// once for each address and text.
inline NameEntry name_of(const at::RecordFunction& function, ThreadCaches& caches) {
  const char* name = function.name();
  NameEntry& entry = caches.by_address[(reinterpret_cast<uintptr_t>(name) >> 4) % kNamesByAddress];
  if (entry.address == name && same_name(entry.text, name)) return entry;
  return learn_name(function, name, caches, entry);
}

inline uint32_t known_thread_id(ThreadState& thread) noexcept {
  if (thread.thread_id == 0) thread.thread_id = static_cast<uint32_t>(at::RecordFunction::currentThreadId());
  return thread.thread_id;
}

inline Frame* current_frame(ThreadState& thread) noexcept {
  if (thread.operator_at != 0) return &thread.frames[thread.operator_at - 1];
  return thread.depth != 0 ? &thread.frames[thread.depth - 1] : nullptr;
}

inline void write_call_record(ThreadState& thread, const Frame& frame, RkmRecord& record, uint64_t now) noexcept {
  record.call_id = frame.call_id;
  record.thread = thread.thread_id;
  write_record_at(thread.last_segment, record, now);
}

// The phase of a call that autograd's engine does not run. An optimizer works with autograd switched off, and
// switches it on for the closure that it was given (torch 2.6 to 2.13: each of torch.optim does).
inline uint8_t phase_outside_engine(uint8_t reported) noexcept {
  if (__builtin_expect(reported != RKM_IN_CLOSURE, 1)) return reported;
  return c10::GradMode::is_enabled() ? RKM_PHASE_OTHER : RKM_PHASE_OPTIMIZER;
}

// The same of a frame: forward is what a module runs, but for an optimizer that steps in a module's call. A thread
// without Python (a collective's) works for the main one.
inline uint8_t phase_of(const ThreadState& thread, const Frame& frame) noexcept {
  const uint8_t reported = phase.load(std::memory_order_relaxed);
  if (frame.module_call == nullptr) {
    const bool works_for_main = reported == RKM_PHASE_OTHER && frame.python_frame == nullptr && enabled(kModules);
    return works_for_main && main_thread_in_module() ? RKM_PHASE_FORWARD : phase_outside_engine(reported);
  }
  if (reported != RKM_PHASE_OPTIMIZER && reported != RKM_IN_CLOSURE) return RKM_PHASE_FORWARD;
  if (stepping_thread.load(std::memory_order_relaxed) != &thread) return RKM_PHASE_FORWARD;
  const bool is_outside = frame.module_call == call_around_step.load(std::memory_order_relaxed);
  if (reported == RKM_PHASE_OPTIMIZER && !is_outside) {  // its step raised: torch calls no hook after that
    phase.store(RKM_PHASE_OTHER, std::memory_order_relaxed);
    return RKM_PHASE_FORWARD;
  }
  return reported == RKM_PHASE_OPTIMIZER || is_outside ? phase_outside_engine(reported) : RKM_PHASE_FORWARD;
}

// For a test in which hooks and frames both give the module: the hooks' goes where the step does, and into a
// field without a meaning.
void compare_modules(const ThreadState& thread, RkmCallBegin& begin, bool in_backward) noexcept {
  const uint8_t reported = phase_outside_engine(compared_phase.load(std::memory_order_relaxed));
  begin.device_index = in_backward ? static_cast<uint8_t>(RKM_PHASE_BACKWARD) : reported;
  begin.step() = thread.module;
}

// Gives a frame its call id and writes how it began. Hot path: from a call's first event.
__attribute__((noinline)) void begin_call(ThreadState& thread, Frame& frame, uint64_t now) noexcept {
  frame.call_id = last_call_id.fetch_add(1, std::memory_order_relaxed) + 1;
  RkmCallBegin begin;
  begin.phase() = phase_of(thread, frame);
  // A hook of a gradient may step an optimizer in backward; a closure runs a backward in an optimizer.
  const bool in_optimizer = phase.load(std::memory_order_relaxed) == RKM_PHASE_OPTIMIZER;
  bool in_engine = false;
  begin.started_ns() = frame.started_ns;
  begin.module() = enabled(kModules) ? frame.module : thread.module;
  begin.step() = step.load(std::memory_order_relaxed);
  begin.operator_name() = frame.name;
  for (uint32_t index = 0; index < thread.depth; ++index) {  // outermost first: a backward may run in another
    Frame& outer = thread.frames[index];
    in_engine |= outer.is_engine;
    if (!outer.is_backward) continue;
    if (outer.node == 0) outer.node = last_node.fetch_add(1, std::memory_order_relaxed) + 1;
    begin.node() = outer.node;
    break;
  }
  if (in_engine && !in_optimizer) begin.phase() = RKM_PHASE_BACKWARD;
  // What autograd's engine began while calls were not observed is no frame of this thread's.
  if (__builtin_expect(can_be_steady(), 0) && !in_engine && !in_optimizer && is_part_mixed(thread)) {
    if (is_in_node()) begin.phase() = RKM_PHASE_BACKWARD;
    else if (begin.phase() == RKM_PHASE_OTHER) begin.phase() = RKM_NO_PHASE;
  }
  if (__builtin_expect(enabled(kCompareModules), 0)) compare_modules(thread, begin, in_engine && !in_optimizer);
  write_call_record(thread, frame, begin, now);
  RkmCallForward forward;
  for (uint32_t index = thread.depth; index-- > 0;) {
    const Frame& backward = thread.frames[index];
    if (backward.forward_sequence == RKM_NO_SEQUENCE) continue;
    forward.forward_thread() = backward.forward_thread;
    forward.forward_sequence() = backward.forward_sequence;
    write_call_record(thread, frame, forward, now);
    return;
  }
  // What the engine does around nodes, and AccumulateGrad, have no forward call of their own: they work on the
  // gradient that the node before them made (AccumulateGrad has the highest priority in the engine's queue).
  if (!in_engine || in_optimizer || thread.last_forward_thread == 0) return;
  forward.forward_thread() = thread.last_forward_thread;
  forward.forward_sequence() = thread.last_forward_sequence;
  write_call_record(thread, frame, forward, now);
}

// Credits autograd nodes made since the last look to `frame`.
inline void credit_sequence(Frame& frame, uint64_t now) noexcept {
  if (now == frame.sequence_mark) return;
  if (frame.sequence_first == RKM_NO_SEQUENCE) frame.sequence_first = frame.sequence_mark;
  frame.sequence_last = now - 1;
  frame.sequence_mark = now;
}

// Where the frame that is pushed next begins. What autograd's engine runs within its own functions, still in the same
// Python frame, is in the module that they are in: a node costs one look and not three.
inline ModuleHere where(ThreadState& thread) noexcept {
  if (!enabled(kModules)) return {};
  if (thread.depth != 0) {
    const Frame* outer = &thread.frames[thread.depth - 1];
    return module_here(thread, outer->is_engine ? outer : nullptr);
  }
  // A module that is called within a function of autograd's (a checkpoint that runs again) is no outermost call.
  const ModuleHere here = module_here(thread, nullptr);
  follow_root(thread, here);
  return here;
}

// Whether a call that begins is the outermost of its thread although calls were not observed when others began: what
// runs within one of those is no call, and its blocks are read as that one's (write_read_block).
__attribute__((noinline)) bool is_outermost(ThreadState& thread, const NameEntry& name, bool is_backward) noexcept {
  if (!is_backward && !name.is_engine) {
    const uint32_t around = native_operator();
    if (around != 0 && around != name.id) return false;
  }
  thread.times_resumed = times_resumed.load(std::memory_order_relaxed);
  return true;
}

void push_frame(ThreadState& thread, const at::RecordFunction& function, bool is_backward) {
  ThreadCaches* caches = caches_of(thread);
  if (caches == nullptr || thread.depth == kFramesMax || function.isAsync()) return;
  const ModuleHere here = where(thread);
  const NameEntry name = name_of(function, *caches);
  if (__builtin_expect(thread.times_resumed != times_resumed.load(std::memory_order_relaxed), 0) &&
      !is_outermost(thread, name, is_backward)) {
    return;
  }
  const uint64_t sequence = at::sequence_number::peek();
  // What moved before an inner call began is the outer one's own.
  if (thread.depth != 0 && thread.operator_at == 0) credit_sequence(thread.frames[thread.depth - 1], sequence);
  known_thread_id(thread);
#ifdef RKM_WITH_EVIDENCE
  if (__builtin_expect(enabled(kEvidence), 0)) take_room(thread);
#endif
  Frame& frame = thread.frames[thread.depth++];
  frame.function = &function;
  frame.call_id = 0;
  frame.sequence_mark = sequence;
  frame.sequence_first = frame.sequence_last = RKM_NO_SEQUENCE;
  frame.forward_sequence = RKM_NO_SEQUENCE;
  frame.device_mask = 0;
  frame.name = name.id;
  frame.module = here.name;
  frame.python_frame = here.python_frame;
  frame.module_call = here.module_call;
  frame.node = 0;
  frame.is_operator = name.is_operator;
  frame.is_backward = is_backward;
  frame.is_engine = is_backward || name.is_engine;
  frame.wants_stack = false;
  if (is_backward && function.seqNr() >= 0 && function.forwardThreadId() != 0) {
    frame.forward_thread = function.forwardThreadId();
    frame.forward_sequence = static_cast<uint64_t>(function.seqNr());
  }
  if (name.is_operator && thread.operator_at == 0) thread.operator_at = thread.depth;
  frame.started_ns = monotonic_ns();
}

// Writes what is left to record of a call at its end: off the allocator's lock, so Python may be asked.
void end_call(ThreadState& thread, Frame& frame) {
  credit_sequence(frame, at::sequence_number::peek());
  const bool made_nodes = frame.sequence_first != RKM_NO_SEQUENCE;
  // One that has begun in the log ends there, whatever was switched off meanwhile.
  if (frame.call_id == 0 ? !made_nodes || !enabled(kCalls) : !spool_is_open()) return;
  const uint64_t now = monotonic_ns();
  if (frame.call_id == 0) begin_call(thread, frame, now);
  RkmCallEnd end;
  end.started_ns() = frame.started_ns;
  end.sequence_first() = frame.sequence_first;
  end.sequence_last() = frame.sequence_last;
  end.with_grad() = c10::GradMode::is_enabled() ? 1 : 0;
  // A call that made nodes is the line that backward's blocks are led to, also if it allocated nothing (a view).
  if ((frame.wants_stack || made_nodes) && enabled(kStacks)) {
    ThreadCaches* caches = caches_of(thread);
    end.stack_id() = caches != nullptr ? gather_stack(caches->stacks) : 0;
  }
  if (frame.device_mask != 0) {
    if (CallEndHook hook = call_end_hook.load(std::memory_order_acquire)) hook(frame.call_id, frame.device_mask);
  }
  write_call_record(thread, frame, end, now);
}

// A marker may end on another thread (a Work of torch.distributed), so its id travels in torch's own context.
struct MarkerContext final : at::ObserverContext {
  uint64_t marker_id = 0;
};

std::unique_ptr<at::ObserverContext> begin_marker(const at::RecordFunction& function) {
  auto context = std::make_unique<MarkerContext>();
  context->marker_id = last_marker_id.fetch_add(1, std::memory_order_relaxed) + 1;
  RkmMarkerBegin record;
  record.marker_kind() = RKM_MARKERKIND_USER_SCOPE;
  record.marker_id() = context->marker_id;
  record.name() = intern(function.name());
  record.thread = current_thread_id();
  write_record(record);
  return context;
}

void end_marker(const at::ObserverContext& context) noexcept {
  RkmMarkerEnd record;
  record.marker_id() = static_cast<const MarkerContext&>(context).marker_id;
  record.thread = current_thread_id();
  write_record(record);
}

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  ThreadState& thread = thread_state;
  const at::RecordScope scope = function.scope();
  // First the frequent case: an operator within an operator.
  if (thread.operator_at != 0 && scope == at::RecordScope::FUNCTION) return nullptr;
  if (!enabled(kCalls) || thread.gathering) return nullptr;
  if (scope == at::RecordScope::USER_SCOPE) return begin_marker(function);
  push_frame(thread, function, scope == at::RecordScope::BACKWARD_FUNCTION);
  return nullptr;
}

// While calls are not observed, ranges of the user's are.
std::unique_ptr<at::ObserverContext> on_range_start(const at::RecordFunction& function) {
  return is_steady() && !thread_state.gathering ? begin_marker(function) : nullptr;
}

void on_range_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context != nullptr) end_marker(*context);
}

void on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  ThreadState& thread = thread_state;
  if (context != nullptr) {
    end_marker(*context);
    return;
  }
  // Not found: it is inside an operator, or began while recording was off. Frames above the one found never
  // ended on this thread; they go with it.
  uint32_t index = thread.depth;
  while (index != 0 && thread.frames[index - 1].function != &function) --index;
  if (index == 0) return;
  // A BACKWARD_FUNCTION inside an operator is no call; what it made is the operator's.
  Frame& ended = thread.frames[index - 1];
  if (thread.operator_at == 0 || thread.operator_at >= index) end_call(thread, ended);
  if (ended.forward_sequence != RKM_NO_SEQUENCE) {
    thread.last_forward_thread = ended.forward_thread;
    thread.last_forward_sequence = ended.forward_sequence;
  }
  thread.depth = index - 1;
  if (thread.operator_at > thread.depth) thread.operator_at = 0;
  // What an inner call made is not the outer one's.
  if (thread.depth != 0 && thread.operator_at == 0) {
    thread.frames[thread.depth - 1].sequence_mark = at::sequence_number::peek();
  }
}

}  // namespace

void set_phase(uint8_t now) noexcept {
  if (now == RKM_PHASE_OPTIMIZER || now == RKM_IN_CLOSURE) {
    stepping_thread.store(&thread_state, std::memory_order_relaxed);
    call_around_step.store(module_call_here(), std::memory_order_relaxed);
  }
  phase.store(now, std::memory_order_relaxed);
  compared_phase.store(now, std::memory_order_relaxed);
}

uint32_t current_thread_id() noexcept { return known_thread_id(thread_state); }

uint64_t current_call_id() noexcept {
  const Frame* frame = current_frame(thread_state);
  return frame == nullptr ? 0 : frame->call_id;
}

// If this thread holds the GIL, or has met the stack before, or (of an out-of-memory) it can be read from the frames;
// else 0, unless it may wait for the GIL. As a rule not:
// whoever asks for memory may hold what the GIL's holder waits for.
__attribute__((noinline)) static uint32_t stack_outside_calls(ThreadState& thread, uint8_t action,
                                                              bool may_wait) noexcept try {
  const bool is_oom = action == RKM_ACTION_OOM;
  if (thread.gathering || !(enabled(kStacks) || (is_oom && is_switched_off(kStacks)))) return 0;
  if (!enabled(kCalls) && !(is_oom && (enabled(kEvidence) || is_switched_off(kCalls)))) return 0;
  ThreadCaches* caches = caches_of(thread);
  if (caches == nullptr) return 0;
  const uint32_t stack_id = gather_stack(caches->stacks, may_wait);
  return stack_id == 0 && is_oom ? read_stack(caches->stacks) : stack_id;
} catch (...) {
  return 0;
}

EventPlace place_of_event(uint8_t action, bool may_wait) noexcept {
  ThreadState& thread = thread_state;
  const Frame* frame = current_frame(thread);
  EventPlace place;
  if (frame == nullptr) place.stack_id = stack_outside_calls(thread, action, may_wait);
  if (action == RKM_ACTION_OOM && frame == nullptr && !thread.gathering && is_switched_off(kCalls)) {
    place.native_operator = native_operator();
    place.module = is_switched_off(kModules) ? known_module_here() : 0;
    place.is_unobserved = true;
    return place;
  }
#ifdef RKM_WITH_EVIDENCE
  if (__builtin_expect(!enabled(kEvidence), 1)) return place;
  take_room(thread);
  if ((frame == nullptr || !frame->is_operator) && !thread.gathering) {
    // While calls are observed a block without an operator is rare; otherwise no block has one.
    if (action == RKM_ACTION_OOM || enabled(kCalls)) place.native_operator = native_operator();
  }
#endif
  return place;
}

void set_call_end_hook(CallEndHook hook) noexcept { call_end_hook.store(hook, std::memory_order_release); }

// Whether an allocator's lock may be held where an event is written.
static inline bool is_locked(uint8_t device_type, const EventPlace& place) noexcept {
  return device_type != RKM_DEVICETYPE_CPU || place.is_locked;
}

// A call that nobody observed, of which its one event tells: what can be read at an out-of-memory, or at a block that no
// known part has.
static void write_read_call(ThreadState& thread, RkmEvent& event, const EventPlace& place, uint8_t phase_here,
                            uint64_t now) noexcept {
  event.call_id = last_call_id.fetch_add(1, std::memory_order_relaxed) + 1;
  RkmCallBegin begin;
  begin.phase() = phase_here;
  begin.started_ns() = now;
  begin.module() = place.module;
  begin.step() = step.load(std::memory_order_relaxed);
  begin.operator_name() = place.native_operator;
  RkmCallEnd end;
  end.is_read() = 1;
  end.started_ns() = now;
  end.sequence_first() = end.sequence_last() = RKM_NO_SEQUENCE;
  end.with_grad() = c10::GradMode::is_enabled() ? 1 : 0;
  end.stack_id() = place.stack_id;
  RkmRecord* const records[] = {&begin, &event, &end};
  for (RkmRecord* record : records) {
    record->call_id = event.call_id;
    record->thread = event.thread;
    write_record_at(thread.last_segment, *record, now);
  }
}

#ifdef RKM_WITH_EVIDENCE
// The phase as far as a block shows it: a node runs in backward, and forward is what a module runs.
static uint8_t shown_phase(const Shown& shown) noexcept {
  if (shown.node_class != 0) return RKM_PHASE_BACKWARD;
  const uint8_t reported = phase.load(std::memory_order_relaxed);
  if (reported == RKM_PHASE_OPTIMIZER) return RKM_PHASE_OPTIMIZER;
  return reported == RKM_PHASE_OTHER && shown.modules_key != 0 ? RKM_PHASE_FORWARD : RKM_NO_PHASE;
}

// A block that its part does not name, while calls are not observed or were not when its operator began. True if it was
// written, with what can be read here: off every lock of an allocator.
static bool write_read_block(ThreadState& thread, RkmEvent& event, uint64_t now, const Shown& shown) noexcept try {
  EventPlace place;
  place.native_operator = native_operator();
  place.module = known_module_here();
  ThreadCaches* caches = caches_of(thread);
  if (caches != nullptr) place.stack_id = read_stack(caches->stacks);
  if (place.native_operator == 0 && shown.node_class == 0) {  // in no operator, as far as anybody would know
    event.stack_id() = place.stack_id;
    write_record_at(thread.last_segment, event, now);
  } else {
    write_read_call(thread, event, place, shown_phase(shown), now);
  }
  return true;
} catch (...) {
  return false;
}

// Compares a block with those of steps before. True if the event is written, with what it shows.
static inline bool write_with_evidence(ThreadState& thread, RkmEvent& event, uint64_t now, EventPlace place) noexcept {
  Shown shown;
  const bool is_block = event.action == RKM_ACTION_ALLOC;
  bool is_known = false;
  if (!read_evidence(thread, shown)) {
    if (is_block) spoil_part(thread);
    return false;
  }
  // A stack that is too deep has no key: in two of them anything may run.
  const bool may_be_locked = is_locked(event.device_type, place);
  // A thread without Python outside of autograd (a collective's) shows nothing of where it is.
  const bool shows_place = shown.frames_key != kFramesNone || shown.node_class != 0;
  const bool is_vain = can_be_steady() && may_be_locked && !shows_place;  // nor can it be read
  if (is_block && (is_vain || shown.frames_key == RKM_FRAMES_UNKNOWN)) {
    spoil_part(thread);
  } else if (is_block) {
    is_known = follow_part(thread, shown, event.stream() << 16 | event.device_type << 8 | event.device_index);
  }
  if (is_block && can_be_steady() && event.call_id == 0) {
    const bool was_steady = is_steady();
    const bool is_read = was_steady ? !(is_known && shows_place) : is_part_mixed(thread);
    const bool is_written = is_read && !may_be_locked && write_read_block(thread, event, now, shown);
    if (is_read && may_be_locked && thread.caches != nullptr) event.stack_id() = known_stack(thread.caches->stacks);
    if (was_steady && shows_place && !is_known) {
      const uint64_t at = (shown.frames_key ^ shown.node_class) | 1;
      may_be_locked ? ask_to_leave_steady(at) : leave_steady(at);
    }
    if (is_written) return true;
  }
  if (__builtin_expect(place.native_operator == 0 && !enabled(kShowAll), 1)) return false;
  RkmEvidence evidence;
  evidence.frames_key() = shown.frames_key;
  evidence.modules_key() = shown.modules_key;
  evidence.node_class() = shown.node_class;
  evidence.node_sequence() = shown.node_sequence;
  evidence.nodes_made() = shown.nodes_made;
  evidence.native_operator() = place.native_operator;
  evidence.thread = event.thread;
  const uint64_t seq = take_numbers(2);
  put_record(thread.last_segment, seq, event, now);
  put_record(thread.last_segment, seq + 1, evidence, now);
  return true;
}
#endif

// A call's stack is written as the call ends: if the process dies before, its first block has it. That costs another
// look at the frames, so only in a process that leaves most calls unobserved. Off every lock of an allocator a stack
// that this thread has not met is read.
__attribute__((noinline)) static uint32_t stack_at_first_block(ThreadState& thread, bool may_be_locked) noexcept {
  if (!enabled(kStacks) || thread.caches == nullptr) return 0;
  return may_be_locked ? known_stack(thread.caches->stacks) : read_stack(thread.caches->stacks);
}

void write_event(uint8_t action, uint8_t device_type, uint8_t device_index, uint64_t address, uint64_t size_bytes,
                 uint64_t stream, uint64_t pool_or_free_bytes, EventPlace place) noexcept {
  ThreadState& thread = thread_state;
  const uint64_t now = monotonic_ns();
  RkmEvent event;
  event.action = action;
  event.device_type = device_type;
  event.device_index = device_index;
  event.address() = address;
  event.size_bytes() = size_bytes;
  event.stream() = stream;
  event.pool() = pool_or_free_bytes;
  if (action == RKM_ACTION_OOM) heights.saw_oom.store(true, std::memory_order_relaxed);
  event.thread = known_thread_id(thread);
  Frame* frame = current_frame(thread);
  if (frame != nullptr && (frame->call_id != 0 || enabled(kCalls))) {
    if (frame->call_id == 0) begin_call(thread, *frame, now);
    const bool is_block = action == RKM_ACTION_ALLOC;
    if (__builtin_expect(can_be_steady(), 0) && is_block && !frame->wants_stack) {
      event.stack_id() = stack_at_first_block(thread, is_locked(device_type, place));
    }
    // An OOM wants its stack more than anything.
    if (is_block || action == RKM_ACTION_OOM) frame->wants_stack = true;
    const bool moves_counters = action != RKM_ACTION_FREE_REQUESTED && action != RKM_ACTION_FREE_COMPLETED;
    if (device_type == RKM_DEVICETYPE_CUDA && moves_counters) frame->device_mask |= 1ull << (device_index & 63);
    event.call_id = frame->call_id;
  } else if (place.is_unobserved) {
    write_read_call(thread, event, place, RKM_NO_PHASE, now);
    return;
  } else {
    event.stack_id() = place.stack_id;
  }
  if (action == RKM_ACTION_ALLOC && !has_blocks.load(std::memory_order_relaxed)) {
    has_blocks.store(true, std::memory_order_relaxed);
  }
#ifdef RKM_WITH_EVIDENCE
  const bool shows = action == RKM_ACTION_ALLOC || action == RKM_ACTION_OOM;
  if (__builtin_expect(enabled(kEvidence), 0) && shows && write_with_evidence(thread, event, now, place)) return;
#endif
  write_record_at(thread.last_segment, event, now);
}

bool has_recorded_blocks() noexcept { return has_blocks.load(std::memory_order_relaxed); }

uint64_t calls_begun() noexcept { return last_call_id.load(std::memory_order_relaxed); }

int attach_calls() noexcept try {
  if (callback_handle != at::INVALID_CALLBACK_HANDLE) return -EALREADY;
  const int failure = pthread_key_create(&caches_key, free_caches);
  if (failure != 0) return -failure;
  find_python();  // without it calls have no stacks, which rkm_stat shows
  callback_handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_start, on_end)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
  observe_calls(enabled(kCalls));
  range_callback_handle = at::addGlobalCallback(
      at::RecordFunctionCallback(on_range_start, on_range_end).scopes({at::RecordScope::USER_SCOPE}));
  observe_ranges(false);
  return 0;
} catch (...) {
  return -ENOMEM;
}

void observe_ranges(bool on) noexcept try {
  if (range_callback_handle == at::INVALID_CALLBACK_HANDLE) return;
  on ? at::reenableCallback(range_callback_handle) : at::disableCallback(range_callback_handle);
} catch (...) {
}

void note_resumed() noexcept { times_resumed.fetch_add(1); }

void observe_calls(bool on) noexcept try {
  if (callback_handle == at::INVALID_CALLBACK_HANDLE) return;
  on ? at::reenableCallback(callback_handle) : at::disableCallback(callback_handle);
} catch (...) {  // torch only logs here; a callback that runs while off returns at once
}

}  // namespace rankmem
