// The key of a thread's Python stack, read from the interpreter's own frames without the GIL.
//
// Why: the public interface needs the GIL, which another thread may hold for 5 ms at a time, and makes a frame
// object for each frame. A training asks for the same few hundred stacks again and again, so all that is
// needed each time is whether it is one of them. Nothing is believed of what is read here but equality: names
// and lines come from the public interface, once for each key.
//
// Why it holds: a thread's chain of frames is changed by that thread alone, and it is inside an operator now.
// An instruction's address names code object and offset as long as the code object lives; stacks.cpp keeps
// those of every stack it has an id for. At the interpreter's end nothing is read: stop_stacks().
//
// Layouts: CPython's Include/cpython/pystate.h and Include/internal/pycore_frame.h, x86-64 and aarch64, builds
// with a GIL. They are fixed within a minor version; each process checks its own before the first use, reading
// through the kernel, so that a wrong one is an error number and not a crash. Where none fits, the GIL it is.
//
// The module that a thread is in is found the same way: every call of one runs the code object of
// torch.nn.Module._wrapped_call_impl (torch 2.1 to 2.13), whose first argument is the module. Not _call_impl: an
// inner function of its captures `self`, which therefore lies in a cell.

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>

#include "frames.h"

namespace rankmem {

namespace {

constexpr int16_t kDirect = -1;

// Offsets in bytes.
struct FrameLayout {
  uint8_t minor_version;      // of Python 3
  int16_t in_thread;          // in the thread's state: the current frame, or where it is kept (3.11, 3.12)
  int16_t in_keeper;          // of the current frame there; kDirect: there is no such place
  int16_t code;               // in a frame: its code object
  int16_t previous;           // its caller's frame
  int16_t instruction;        // the instruction it is at
  int16_t locals;             // its local variables, the arguments first
};
constexpr FrameLayout kLayouts[] = {
    {11, 56, 8, 32, 48, 56, 72},
    {12, 56, 0, 0, 8, 56, 72},
    {13, 72, kDirect, 0, 8, 56, 72},
};

// Keys that are made at each allocation are polynomials in this: a multiplication to 64 bits is done before the next
// frame's address is there, one to 128 is not (58 and 70 ns for 40 frames).
constexpr uint64_t kKeyFactor = 0x9E37'79B9'7F4A'7C15u;

// Followed to find a module's call. Longer than any stack: only a broken chain is meant to be stopped by it.
constexpr uint32_t kFramesToModuleMax = 1u << 20;

FrameLayout layout = {};
std::atomic<bool> layout_checked{false};
std::atomic<const char*> module_call_code{nullptr};  // the code object; null: calls of modules cannot be recognised

inline const char* pointer_at(const char* address) noexcept {
  const char* value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

// Reads through the kernel: an address that is none gives false.
class CarefulReader {
 public:
  CarefulReader() noexcept : fd_(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC)) {}
  ~CarefulReader() {
    if (fd_ >= 0) ::close(fd_);
  }
  CarefulReader(const CarefulReader&) = delete;
  CarefulReader& operator=(const CarefulReader&) = delete;

  bool read(const char* address, const char*& value) const noexcept {
    const auto offset = static_cast<off_t>(reinterpret_cast<uintptr_t>(address));
    return fd_ >= 0 && address != nullptr && pread(fd_, &value, sizeof value, offset) == sizeof value;
  }

 private:
  int fd_;
};

// Follows the frames in this layout and finds all of `keys` among them, in order. An instruction's address has
// to be its code object's plus its offset plus what is the same for all code objects.
bool fits(const FrameLayout& tried, const char* thread_state, const FrameKey* keys, uint32_t count) noexcept {
  const CarefulReader memory;
  const char* frame = nullptr;
  if (!memory.read(thread_state + tried.in_thread, frame)) return false;
  if (tried.in_keeper != kDirect && !memory.read(frame + tried.in_keeper, frame)) return false;
  uint32_t found = 0;
  ptrdiff_t start = 0;  // of the instructions in a code object
  for (uint32_t followed = 0; frame != nullptr && followed < kFramesFollowed; ++followed) {
    const char *code = nullptr, *instruction = nullptr;
    if (!memory.read(frame + tried.code, code) || !memory.read(frame + tried.instruction, instruction)) return false;
    if (found < count && code == reinterpret_cast<const char*>(keys[found].code)) {
      const ptrdiff_t here = instruction - code - keys[found].offset;
      if (found == 0) start = here;
      if (here != start) return false;
      ++found;
    }
    if (!memory.read(frame + tried.previous, frame)) return false;
  }
  return frame == nullptr && found == count;
}

}  // namespace

void check_frame_layout(const void* thread_state, const FrameKey* keys, uint32_t count) noexcept {
  const auto* version = static_cast<const unsigned long*>(dlsym(RTLD_DEFAULT, "Py_Version"));  // since 3.11
  if (version == nullptr || thread_state == nullptr || count < 2 || frame_layout_known()) return;
  for (const FrameLayout& tried : kLayouts) {
    if (*version >> 16 != (0x300u | tried.minor_version)) continue;
    if (!fits(tried, static_cast<const char*>(thread_state), keys, count)) return;
    layout = tried;
    layout_checked.store(true, std::memory_order_release);
  }
}

bool frame_layout_known() noexcept { return layout_checked.load(std::memory_order_acquire); }

PythonFrame current_frame(const void* thread_state) noexcept {
  if (!frame_layout_known() || thread_state == nullptr) return nullptr;
  const char* frame = pointer_at(static_cast<const char*>(thread_state) + layout.in_thread);
  return layout.in_keeper != kDirect ? pointer_at(frame + layout.in_keeper) : frame;
}

PlaceOfFrame place_of_frame(PythonFrame frame) noexcept {
  if (frame == nullptr) return {nullptr, nullptr};
  return {pointer_at(frame + layout.code), pointer_at(frame + layout.instruction)};
}

PythonFrame nearest_module_call(PythonFrame frame) noexcept {
  const char* code = module_call_code.load(std::memory_order_relaxed);
  if (code == nullptr) return nullptr;
  for (uint32_t followed = 0; frame != nullptr && followed < kFramesToModuleMax; ++followed) {
    if (pointer_at(frame + layout.code) == code) return frame;
    frame = pointer_at(frame + layout.previous);
  }
  return nullptr;
}

const PyObject* module_of_call(PythonFrame call) noexcept {
  return reinterpret_cast<const PyObject*>(pointer_at(call + layout.locals));
}

const PyObject* local_of_call(PythonFrame call, uint32_t place) noexcept {
  return reinterpret_cast<const PyObject*>(pointer_at(call + layout.locals + place * sizeof(PyObject*)));
}

PythonFrame caller_of(PythonFrame frame) noexcept { return pointer_at(frame + layout.previous); }

bool check_module_frames(const void* thread_state, const PyObject* call_code, const PyObject* const* modules,
                         uint32_t count) noexcept {
  const CarefulReader memory;
  const char* frame = current_frame(thread_state);
  uint32_t found = 0;
  for (uint32_t followed = 0; frame != nullptr && found < count && followed < kFramesFollowed; ++followed) {
    const char *code = nullptr, *module = nullptr;
    if (!memory.read(frame + layout.code, code)) return false;
    if (code == reinterpret_cast<const char*>(call_code)) {
      if (!memory.read(frame + layout.locals, module)) return false;
      if (module != reinterpret_cast<const char*>(modules[found++])) return false;
    }
    if (!memory.read(frame + layout.previous, frame)) return false;
  }
  if (found != count || count == 0) return false;
  module_call_code.store(reinterpret_cast<const char*>(call_code), std::memory_order_relaxed);
  return true;
}

uint64_t key_of_frames(const void* thread_state) noexcept {
  if (!frame_layout_known()) return kFramesUnknown;
  const char* frame = current_frame(thread_state);
  if (frame == nullptr) return kFramesNone;
  uint64_t key = 0x6A09'E667'F3BC'C908u;
  for (uint32_t followed = 0; frame != nullptr; ++followed) {
    if (followed == kFramesFollowed) return kFramesUnknown;
    key = mix(key, reinterpret_cast<uintptr_t>(pointer_at(frame + layout.instruction)));
    frame = pointer_at(frame + layout.previous);
  }
  return key > kFramesNone ? key : ~key;
}

namespace {

// Whether the frame at `depth` of the trail has been left, seen from `frame`, which runs within what is left of the
// trail. Frames of one thread lie one behind the other but for those of generators and the interpreter's own: next to
// one of these the frame around it tells. A wrong answer costs time alone.
inline bool is_left(const FrameTrail& trail, uint32_t depth, PythonFrame frame) noexcept {
  constexpr uintptr_t kNear = 1u << 20;
  const auto beyond = reinterpret_cast<uintptr_t>(trail.frames[depth]) - reinterpret_cast<uintptr_t>(frame);
  if (beyond < kNear) return beyond != 0;
  if (beyond > ~kNear || depth == 1) return false;
  return reinterpret_cast<uintptr_t>(trail.frames[depth - 1]) - reinterpret_cast<uintptr_t>(frame) < kNear;
}

// The depth of the trail in which this thread still is; the frames within it, nearest first, go to `within`, of which
// there may be one too many.
inline uint32_t find_joint(const FrameTrail& trail, PythonFrame frame, PythonFrame* within,
                           uint32_t& num_within) noexcept {
  uint32_t depth = trail.depth;
  for (num_within = 0; frame != nullptr; frame = caller_of(frame)) {
    while (depth != 0 && is_left(trail, depth, frame)) --depth;
    if (depth != 0 && trail.frames[depth] == frame) return depth;
    if (num_within < kFramesFollowed) within[num_within] = frame;
    if (++num_within > kFramesFollowed) return 0;
  }
  return 0;
}

constexpr uint32_t kOtherFrames = kFramesFollowed + 2;

// The outermost place up to `depth` that shows something else than before, depth + 1 if none does; kOtherFrames if the
// frames themselves are others. The processor reads several frames at once, as it knows where they lie.
inline uint32_t find_changed(const FrameTrail& trail, uint32_t depth) noexcept {
  const ptrdiff_t previous = layout.previous, instruction = layout.instruction;
  uint32_t changed = depth + 1;
  PythonFrame frame = trail.frames[depth];
  for (uint32_t at = depth; at != 0; --at) {
    const PythonFrame around = trail.frames[at - 1];
    changed = pointer_at(frame + instruction) != trail.instructions[at] ? at : changed;
    if (pointer_at(frame + previous) != around) return kOtherFrames;
    frame = around;
  }
  for (uint32_t index = 0; index < trail.num_modules; ++index) {
    const uint32_t at = trail.module_places[index];
    if (at >= changed) break;
    if (module_of_call(trail.frames[at]) != trail.modules[index]) return at;
  }
  return changed;
}

// Reads the frames of the trail from `first` on.
inline void read_places(FrameTrail& trail, uint32_t first) noexcept {
  const char* call_code = module_call_code.load(std::memory_order_relaxed);
  while (trail.num_modules != 0 && trail.module_places[trail.num_modules - 1] >= first) --trail.num_modules;
  FramesShown shown = trail.shown[first - 1];
  for (uint32_t at = first; at <= trail.depth; ++at) {
    const PythonFrame frame = trail.frames[at];
    trail.instructions[at] = pointer_at(frame + layout.instruction);
    shown.frames_key = (shown.frames_key + reinterpret_cast<uintptr_t>(trail.instructions[at])) * kKeyFactor;
    if (pointer_at(frame + layout.code) == call_code) {
      const PyObject* module = module_of_call(frame);
      trail.module_places[trail.num_modules] = at;
      trail.modules[trail.num_modules++] = module;
      shown.modules_key = (shown.modules_key + reinterpret_cast<uintptr_t>(module)) * kKeyFactor;
    }
    trail.shown[at] = shown;
  }
}

}  // namespace

void start_trail(FrameTrail& trail) noexcept {
  trail.depth = trail.num_modules = 0;
  trail.frames[0] = nullptr;
  trail.shown[0] = {0x6A09'E667'F3BC'C908u, 0};
}

FramesShown shown_by_frames(const void* thread_state, FrameTrail& trail) noexcept {
  if (!frame_layout_known()) return {kFramesUnknown, 0};
  const PythonFrame frame = current_frame(thread_state);
  if (frame == nullptr) return {kFramesNone, 0};
  PythonFrame within[kFramesFollowed];
  uint32_t num_within = 0;
  uint32_t joint = find_joint(trail, frame, within, num_within);
  uint32_t changed = find_changed(trail, joint);
  if (changed == kOtherFrames) {
    start_trail(trail);
    joint = find_joint(trail, frame, within, num_within);
    changed = 1;
  }
  trail.depth = joint + num_within;
  if (trail.depth > kFramesFollowed) {
    start_trail(trail);
    return {kFramesUnknown, 0};
  }
  for (uint32_t at = joint + 1; at <= trail.depth; ++at) trail.frames[at] = within[trail.depth - at];
  if (changed <= trail.depth) read_places(trail, changed);
  FramesShown shown = trail.shown[trail.depth];
  shown.frames_key = mix(shown.frames_key, 1);
  if (shown.frames_key <= kFramesNone) shown.frames_key = ~shown.frames_key;
  return shown;
}

}  // namespace rankmem
