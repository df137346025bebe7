// Operator calls: which call an event belongs to. See calls.cpp.
#pragma once

#include "tap.h"

namespace at {
struct RecordFunction;
}

namespace rankmem {

// Frames kept of a thread's stack of observed functions. Only what may be a call is kept, so 3 is usual;
// a deeper nest (recursion of custom autograd functions) is attributed to its 48th frame.
constexpr uint32_t kFramesMax = 48;

struct Frame {
  const at::RecordFunction* function;  // identity only
  uint64_t call_id;                    // 0 until the call's first record
  uint64_t started_ns;
  uint64_t sequence_mark;  // autograd's counter as last seen here
  uint64_t sequence_first, sequence_last;  // numbers made in it and not in calls inside of it
  uint64_t forward_thread, forward_sequence;  // of a BACKWARD_FUNCTION; sequence RKM_NO_SEQUENCE if unknown
  uint64_t device_mask;
  uint64_t node;  // of a BACKWARD_FUNCTION: its number, 0 until a call in it begins
  uint32_t name;
  uint32_t module;             // string id, by frames; by hooks, ThreadState has it
  const char* python_frame;    // that ran when it began; null without Python
  const char* module_call;     // the nearest call of a module around it; null outside of all
  bool is_operator;
  bool is_backward;  // a BACKWARD_FUNCTION: an autograd node runs
  bool is_engine;    // that, or what autograd's engine does around it (it sums gradients there)
  bool wants_stack;
};

struct ThreadCaches;
struct FrameTrail;
struct Part;

// The segment a thread wrote to last. Its base is used only for a number within the segment; as long as such a
// number is uncommitted the native thread does not unmap it, so the pointer never dangles in use.
struct LastSegment {
  char* base;
  uint64_t number;
};

// All that a thread keeps, in one object: each thread-local of a loaded library costs a call to find it.
// One a thread, zero-initialised and trivially destroyed: usable in late thread-local destructors, and its
// first use in a thread needs no registration.
struct ThreadState {
  uint32_t thread_id;
  uint32_t module;       // string id, rkm_set_module: by hooks
  uint32_t depth;        // of frames[]
  uint32_t operator_at;  // 1 + index of the outermost operator's frame; 0: none
  uint64_t last_forward_thread, last_forward_sequence;  // of the autograd node that ended last; thread 0: none
  enum Main : uint8_t { kNotAsked = 0, kMain = 1, kOther = 2 };
  uint8_t main;          // whether it is the process's first thread
  bool gathering;        // in gather_stack or naming modules: what Python does there is not looked at again
  uint32_t times_resumed;  // when its last call began (note_resumed)
  uint32_t vain;         // times in a row that Python was asked for a module's name and gave none
  uint64_t vain_ns;      // when it was asked so last
  uint64_t root;         // the outermost call of a module that it is in, once that was asked about; 0: none
  LastSegment last_segment;
  ThreadCaches* caches;
  Part* part;            // of the step that goes on (parts.h); null: this thread has no room for one
  FrameTrail* trail;     // in the same room
  Frame frames[kFramesMax];
};
extern constinit thread_local ThreadState thread_state;

// Of the process; they are read when a call begins.
extern std::atomic<uint8_t> phase;
extern std::atomic<uint64_t> step;
// A Phase, or IN_CLOSURE, from the hooks around an optimizer's step, on its thread.
void set_phase(uint8_t now) noexcept;

// Makes all who hand out CPU memory in torch record, once (tap_cpu.cpp). 0 or -errno.
int attach_cpu() noexcept;
// Adds the global RecordFunction callback, once. 0 or -errno.
int attach_calls() noexcept;
// Lets torch run the callback or not. Without one torch skips observation altogether, so "off" costs nothing;
// a callback that returns at once costs 1% of a step.
void observe_calls(bool on) noexcept;
// Calls are observed again amid a step, from behind this on.
void note_resumed() noexcept;
// Lets torch run the callback of the user's ranges alone, while the other one does not run.
void observe_ranges(bool on) noexcept;
uint64_t calls_begun() noexcept;
// Whether a block was ever recorded.
bool has_recorded_blocks() noexcept;

}  // namespace rankmem
