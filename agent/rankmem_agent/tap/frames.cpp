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

// Frames followed, the interpreter's own between them included. A deeper stack has no key.
constexpr uint32_t kFramesFollowed = 192;

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

FramesShown shown_by_frames(const void* thread_state) noexcept {
  if (!frame_layout_known()) return {kFramesUnknown, 0};
  const char* frame = current_frame(thread_state);
  if (frame == nullptr) return {kFramesNone, 0};
  const ptrdiff_t code = layout.code, previous = layout.previous, at = layout.instruction, locals = layout.locals;
  const char* call_code = module_call_code.load(std::memory_order_relaxed);
  uint64_t frames_key = 0x6A09'E667'F3BC'C908u, modules_key = 0;
  for (uint32_t followed = 0; frame != nullptr; ++followed) {
    if (followed == kFramesFollowed) return {kFramesUnknown, 0};
    frames_key = (frames_key + reinterpret_cast<uintptr_t>(pointer_at(frame + at))) * kKeyFactor;
    if (pointer_at(frame + code) == call_code) {
      modules_key = (modules_key + reinterpret_cast<uintptr_t>(pointer_at(frame + locals))) * kKeyFactor;
    }
    frame = pointer_at(frame + previous);
  }
  frames_key = mix(frames_key, 1);
  return {frames_key > kFramesNone ? frames_key : ~frames_key, modules_key};
}

}  // namespace rankmem
