// Which Python frames a thread is in, distinguished without the GIL. See frames.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

struct PyObject;  // opaque: only pointers pass through here

struct FrameKey {
  PyObject* code;
  int offset;  // of the instruction, in bytes
  bool operator==(const FrameKey& other) const noexcept { return code == other.code && offset == other.offset; }
};

// One multiplication to 128 bits, folded: two different stacks of 100,000 meet with probability 3e-10.
inline uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  const unsigned __int128 product = static_cast<unsigned __int128>(hash ^ value) * 0x9E37'79B9'7F4A'7C15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// What key_of_frames answers besides keys.
constexpr uint64_t kFramesUnknown = 0;
constexpr uint64_t kFramesNone = 1;

// Checks that frames lie in this interpreter as we believe, against `keys`: this thread's frames, nearest first,
// as the public interface gives them. Without it, or if they do not, key_of_frames answers kFramesUnknown.
// Under the GIL, once.
void check_frame_layout(const void* thread_state, const FrameKey* keys, uint32_t count) noexcept;
// Whether key_of_frames works here.
bool frame_layout_known() noexcept;

// Frames of a thread, as far as they can be read without the GIL. Null without one, or where the layout is not known.
using PythonFrame = const char*;
// The frame that runs now on the thread with this state.
PythonFrame current_frame(const void* thread_state) noexcept;

// The code object that a frame runs and the instruction it is at.
struct PlaceOfFrame {
  const char* code;
  const char* instruction;
};
PlaceOfFrame place_of_frame(PythonFrame frame) noexcept;

// The nearest call of a module at or outside of `frame`, by the code object that every call of one runs; null if
// there is none, or before check_module_frames succeeded. `thread_state` is this thread's; no GIL.
PythonFrame nearest_module_call(PythonFrame frame) noexcept;
// The module of such a call, and the next frame outside of it.
const PyObject* module_of_call(PythonFrame call) noexcept;
PythonFrame caller_of(PythonFrame frame) noexcept;
// The local variable of such a call at this place, arguments first; borrowed.
const PyObject* local_of_call(PythonFrame call, uint32_t place) noexcept;
// Whether the nearest calls of modules on this thread are those of `modules`, nearest first, as `call_code` runs them.
// Read through the kernel, like the layout's own check; from then on nearest_module_call works. Under the GIL.
bool check_module_frames(const void* thread_state, const PyObject* call_code, const PyObject* const* modules,
                         uint32_t count) noexcept;

// A key of the stack of Python frames that this thread is in: the same for the same instructions of the same
// code objects, as long as those live. kFramesNone without a frame. `thread_state` is this thread's; no GIL.
uint64_t key_of_frames(const void* thread_state) noexcept;

// Frames followed, the interpreter's own between them included. A deeper stack has no key.
constexpr uint32_t kFramesFollowed = 192;

// Such a key, not the same, and one of the modules whose calls are among the frames; 0 where there is none.
struct FramesShown {
  uint64_t frames_key;
  uint64_t modules_key;
};

// The frames of a thread when they were last looked at, outermost first from 1 on, each with the keys of all up to it.
struct FrameTrail {
  uint32_t depth;
  uint32_t num_modules;
  PythonFrame frames[kFramesFollowed + 1];  // the first is null
  const char* instructions[kFramesFollowed + 1];
  FramesShown shown[kFramesFollowed + 1];
  uint32_t module_places[kFramesFollowed];  // of calls of modules
  const PyObject* modules[kFramesFollowed];
};
void start_trail(FrameTrail& trail) noexcept;
FramesShown shown_by_frames(const void* thread_state, FrameTrail& trail) noexcept;

}  // namespace rankmem
