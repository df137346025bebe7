// Python stacks: gathered once at the end of a call that allocated, interned, named by an id.
//
// A stack that this thread has met before is known by the key of its frames (frames.cpp), without the GIL.
// Where the GIL cannot be waited for, names are read from the code objects (read_stack).
// Otherwise through CPython's public C API alone (3.11 to 3.14), whose few functions are declared here and found with
// dlsym: Python.h is absent on many machines. A frame is known by (code object, offset of its instruction);
// file, function and line are looked up the first time it is seen. We keep a reference on each code object
// seen, so an address never comes to mean another code.
//
// Locks: the GIL (only for a stack that is new to the thread), then `table().mutex`, then the strings' mutex; nothing of Python is called under the latter two,
// since a reference count that falls to zero may run anything. No GIL is asked for after stop_stacks(): a thread
// that asks for it in a finalising interpreter never comes back.

#include <dlfcn.h>
#include <time.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "calls.h"
#include "frames.h"
#include "spool.h"
#include "stacks.h"

namespace rankmem {

namespace {

// Members carry the names of the functions, so that one macro finds them all.
#define RKM_PYTHON_FUNCTIONS(F)                                           \
  F(int, PyGILState_Ensure, (void))                                       \
  F(void, PyGILState_Release, (int))                                      \
  F(void*, PyGILState_GetThisThreadState, (void))                         \
  F(int, PyGILState_Check, (void))                                        \
  F(PyObject*, PyEval_GetFrame, (void))                                   \
  F(PyObject*, PyFrame_GetBack, (PyObject*))                              \
  F(PyObject*, PyFrame_GetCode, (PyObject*))                              \
  F(int, PyFrame_GetLasti, (PyObject*))                                   \
  F(int, PyCode_Addr2Line, (PyObject*, int))                              \
  F(PyObject*, PyObject_GetAttrString, (PyObject*, const char*))          \
  F(const char*, PyUnicode_AsUTF8AndSize, (PyObject*, ptrdiff_t*))        \
  F(PyObject*, PyObject_CallFunctionObjArgs, (PyObject*, ...))            \
  F(int, Py_AddPendingCall, (int (*)(void*), void*))                      \
  F(void, Py_IncRef, (PyObject*))                                         \
  F(void, Py_DecRef, (PyObject*))                                         \
  F(PyObject*, PyErr_Occurred, (void))                                    \
  F(void, PyErr_Clear, (void))                                            \
  F(void, PyErr_Fetch, (PyObject**, PyObject**, PyObject**))              \
  F(void, PyErr_Restore, (PyObject*, PyObject*, PyObject*))               \
  F(int, PyGC_Disable, (void))                                            \
  F(int, PyGC_Enable, (void))                                             \
  F(PyObject*, PyCapsule_New, (void*, const char*, void (*)(PyObject*)))  \
  F(void*, PyCapsule_GetPointer, (PyObject*, const char*))                \
  F(int, PyDict_SetItemString, (PyObject*, const char*, PyObject*))       \
  F(long, PyLong_AsLong, (PyObject*))                                     \
  F(PyObject*, PyLong_FromLong, (long))

struct Python {
#define RKM_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  RKM_PYTHON_FUNCTIONS(RKM_MEMBER)
#undef RKM_MEMBER
  bool found = false;
};
constinit Python python;

// Frames of a training's whole life, at most: a program that makes code without end would fill the memory.
constexpr size_t kFramesKnownMax = 200'000;
constexpr uint32_t kOwnFrame = ~0u;  // rankmem's: left out of stacks

struct FrameKeyHash {
  size_t operator()(const FrameKey& key) const noexcept;
};

inline uint64_t hash_frame(uint64_t hash, const FrameKey& key) noexcept {
  return mix(hash, reinterpret_cast<uintptr_t>(key.code) * 4 + static_cast<uint64_t>(key.offset));
}

size_t FrameKeyHash::operator()(const FrameKey& key) const noexcept { return hash_frame(0x51ED, key); }

// What all threads know. Leaked on purpose, as everything that threads may use while the process ends.
struct Table {
  std::mutex mutex;
  std::unordered_map<FrameKey, uint32_t, FrameKeyHash> frames;  // to frame id or kOwnFrame
  std::unordered_map<uint64_t, uint32_t> frame_ids;             // by hash of (file, function, line)
  std::unordered_map<uint64_t, uint32_t> stacks;                // by hash of frame keys
  std::unordered_map<uint64_t, uint32_t> stack_ids;             // by hash of frame ids
};
Table& table() {
  static auto* known = new Table;
  return *known;
}

std::atomic<bool> stopped{false};
std::atomic<int> gatherers{0};
std::atomic<uint64_t> gathered{0};
std::atomic<uint64_t> walked{0};

struct Walk {
  FrameKey keys[RKM_STACK_FRAMES_MAX];
  uint32_t count = 0;
  uint64_t hash = 0x2545'F491'4F6C'DD1Du;
};

// Follows this thread's frames, nearest first. The code pointers stay good while we hold the thread: its frames
// own them.
void walk_frames(Walk& walk) noexcept {
  PyObject* frame = python.PyEval_GetFrame();
  if (frame != nullptr) python.Py_IncRef(frame);
  while (frame != nullptr && walk.count < RKM_STACK_FRAMES_MAX) {
    FrameKey& key = walk.keys[walk.count++];
    key.code = python.PyFrame_GetCode(frame);
    python.Py_DecRef(key.code);
    key.offset = python.PyFrame_GetLasti(frame);
    walk.hash = hash_frame(walk.hash, key);
    PyObject* caller = python.PyFrame_GetBack(frame);
    python.Py_DecRef(frame);
    frame = caller;
  }
  if (frame != nullptr) python.Py_DecRef(frame);
}

inline const char* word_of_object(const void* object, ptrdiff_t offset) noexcept {
  const char* value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof value);
  return value;
}

// How names lie in this Python's code objects, as find_python() has found it; 0: not known.
struct CodeLayout {
  ptrdiff_t file = 0, function = 0;  // offsets in bytes, of str objects
  ptrdiff_t instructions = 0;
  ptrdiff_t text = 0;                // of the bytes in a str of ASCII
  const char* code_type = nullptr;
};
CodeLayout code_layout;

constexpr ptrdiff_t kTypeOfObject = 8, kLengthOfText = 16, kStateOfText = 32;  // CPython 3.11 to 3.13
constexpr uint32_t kCompactAscii = 3u << 5;
constexpr ptrdiff_t kCodeBytesMax = 256;

inline bool is_ascii(const char* text) noexcept {
  uint32_t state;
  std::memcpy(&state, text + kStateOfText, sizeof state);
  return (state & kCompactAscii) == kCompactAscii;
}

inline std::string_view ascii_at(const char* text) noexcept {
  return {text + code_layout.text, reinterpret_cast<uintptr_t>(word_of_object(text, kLengthOfText))};
}

// Where a code object has this attribute; 0 if that is not to be seen.
ptrdiff_t find_attribute(PyObject* code, const char* attribute) noexcept {
  PyObject* value = python.PyObject_GetAttrString(code, attribute);
  if (value == nullptr) {
    python.PyErr_Clear();
    return 0;
  }
  ptrdiff_t found = 0;
  for (ptrdiff_t at = kLengthOfText + 8; at < kCodeBytesMax && found == 0; at += 8) {
    if (word_of_object(code, at) == reinterpret_cast<const char*>(value)) found = at;
  }
  ptrdiff_t size = 0;
  const char* text = found == 0 ? nullptr : python.PyUnicode_AsUTF8AndSize(value, &size);
  const auto* object = reinterpret_cast<const char*>(value);
  if (text == nullptr || !is_ascii(object) || word_of_object(object, kLengthOfText) != reinterpret_cast<char*>(size)) {
    found = 0;
  } else if (code_layout.text == 0) {
    code_layout.text = text - object;
  } else if (code_layout.text != text - object) {
    found = 0;
  }
  python.Py_DecRef(value);
  return found;
}

// A text attribute of a code object, interned; sets `own` if it lies in rankmem's own package.
uint32_t intern_attribute(PyObject* code, const char* attribute, bool* own) {
  PyObject* value = python.PyObject_GetAttrString(code, attribute);
  if (value == nullptr) {
    python.PyErr_Clear();
    return 0;
  }
  ptrdiff_t size = 0;
  const char* text = python.PyUnicode_AsUTF8AndSize(value, &size);
  uint32_t id = 0;
  if (text != nullptr) {
    const std::string_view view(text, static_cast<size_t>(size));
    if (own != nullptr) *own = view.find("/rankmem_agent/") != std::string_view::npos;
    id = intern(view);
  } else {
    python.PyErr_Clear();  // lone surrogates in a file name
  }
  python.Py_DecRef(value);
  return id;
}

uint32_t frame_id_by_names(uint32_t file, uint32_t function, int line) {
  const uint64_t hash = mix(mix(mix(1, file), function), static_cast<uint64_t>(line));
  std::lock_guard lock(table().mutex);
  uint32_t& id = table().frame_ids[hash];
  if (id == 0) id = intern_frame(file, function, line < 0 ? 0 : static_cast<uint32_t>(line));
  return id;
}

// Frames of a stack, nearest first, by their ids; rankmem's own are left out.
struct FrameIds {
  uint32_t ids[RKM_STACK_FRAMES_MAX];
  uint32_t count = 0;
  uint64_t hash = 1;

  void add(uint32_t id) noexcept {
    ids[count++] = id;
    hash = mix(hash, id);
  }
  // Under the table's mutex; 0 for no frame, or if it could not be written.
  uint32_t stack_id() {
    if (count == 0) return 0;
    uint32_t& id = table().stack_ids[hash];
    if (id == 0) id = intern_stack(ids, count);
    return id;
  }
};

// The id of a frame seen for the first time; 0 if it could not be written.
uint32_t learn_frame(const FrameKey& key) {
  bool own = false;
  const uint32_t file = intern_attribute(key.code, "co_filename", &own);
  const uint32_t function = intern_attribute(key.code, "co_qualname", nullptr);
  const int line = python.PyCode_Addr2Line(key.code, key.offset < 0 ? 0 : key.offset);
  Table& known = table();
  uint32_t id = kOwnFrame;
  if (!own) id = frame_id_by_names(file, function, line);
  if (id == 0) return 0;
  python.Py_IncRef(key.code);  // for good: the key is its address
  std::lock_guard lock(known.mutex);
  known.frames.emplace(key, id);
  return id;
}

uint32_t frame_id_of(const FrameKey& key) {
  Table& known = table();
  {
    std::lock_guard lock(known.mutex);
    auto found = known.frames.find(key);
    if (found != known.frames.end()) return found->second;
    if (known.frames.size() >= kFramesKnownMax) return 0;
  }
  return learn_frame(key);
}

// A stack seen for the first time by its keys. Two that differ only in instructions of one line are the same.
uint32_t learn_stack(const Walk& walk) {
  FrameIds frames;
  for (uint32_t index = 0; index < walk.count; ++index) {
    const uint32_t id = frame_id_of(walk.keys[index]);
    if (id == 0) return 0;
    if (id != kOwnFrame) frames.add(id);
  }
  std::lock_guard lock(table().mutex);
  const uint32_t stack_id = frames.stack_id();
  if (stack_id != 0) table().stacks.emplace(walk.hash, stack_id);
  return stack_id;
}

uint32_t stack_id_of(const Walk& walk) {
  {
    std::lock_guard lock(table().mutex);
    auto found = table().stacks.find(walk.hash);
    if (found != table().stacks.end()) return found->second;
  }
  return learn_stack(walk);
}

// The GIL and the thread's Python error state, given back as they were. CPython 3.11 may collect garbage when
// a frame object is made: finalizers of the user's would run inside an operator, so collection waits.
class PythonHeld {
 public:
  explicit PythonHeld(bool pauses_collection = true) noexcept
      : gil_(python.PyGILState_Ensure()), collecting_(pauses_collection ? python.PyGC_Disable() : 0) {
    if (python.PyErr_Occurred() != nullptr) {
      raised_ = true;
      python.PyErr_Fetch(&type_, &value_, &traceback_);
    }
  }
  ~PythonHeld() {
    if (raised_) python.PyErr_Restore(type_, value_, traceback_);
    if (collecting_ != 0) python.PyGC_Enable();
    python.PyGILState_Release(gil_);
  }
  PythonHeld(const PythonHeld&) = delete;
  PythonHeld& operator=(const PythonHeld&) = delete;

 private:
  int gil_, collecting_;
  bool raised_ = false;
  PyObject *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

// Counts who reads Python's memory on our behalf, so that stop_stacks() can wait for them.
class Counted {
 public:
  // Sequentially consistent with `stopped`: one of the two sides sees the other.
  Counted() noexcept { gatherers.fetch_add(1); }
  ~Counted() { gatherers.fetch_sub(1); }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
};

// The same for who runs Python: what it calls there is not looked at again.
class Gathering {
 public:
  Gathering() noexcept { thread_state.gathering = true; }
  ~Gathering() { thread_state.gathering = false; }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;

 private:
  const Counted counted_;
};

// The frames of this thread without the GIL; false where they cannot be read so.
bool read_frames(Walk& walk) noexcept {
  const CodeLayout& layout = code_layout;
  if (layout.file == 0 || layout.function == 0) return false;
  PythonFrame frame = current_frame(python.PyGILState_GetThisThreadState());
  for (; frame != nullptr && walk.count < RKM_STACK_FRAMES_MAX; frame = caller_of(frame)) {
    const PlaceOfFrame place = place_of_frame(frame);
    if (place.code == nullptr || word_of_object(place.code, kTypeOfObject) != layout.code_type) continue;
    const ptrdiff_t offset = place.instruction - place.code - layout.instructions;
    const char* function = word_of_object(place.code, layout.function);
    // The interpreter puts frames of its own between those of the program.
    const char* file = word_of_object(place.code, layout.file);
    if (is_ascii(function) && ascii_at(function) == "<interpreter trampoline>") continue;
    if (is_ascii(file) && ascii_at(file) == "__init__") continue;  // 3.13: around a class's __init__
    walk.keys[walk.count++] = {reinterpret_cast<PyObject*>(const_cast<char*>(place.code)), static_cast<int>(offset)};
  }
  return walk.count != 0;
}

// Under the GIL, once: whether names can be read without it, held against what the public interface gives.
void check_code_layout(const Walk& known) noexcept {
  if (known.count == 0 || !frame_layout_known()) return;
  PyObject* code = known.keys[0].code;
  const PlaceOfFrame here = place_of_frame(current_frame(python.PyGILState_GetThisThreadState()));
  if (here.code != reinterpret_cast<const char*>(code)) return;
  code_layout.instructions = here.instruction - here.code - known.keys[0].offset;
  code_layout.code_type = word_of_object(code, kTypeOfObject);
  code_layout.file = find_attribute(code, "co_filename");
  code_layout.function = find_attribute(code, "co_qualname");
  Walk read;
  bool agrees = read_frames(read) && read.count == known.count;
  for (uint32_t at = 0; agrees && at < known.count; ++at) agrees = read.keys[at] == known.keys[at];
  if (!agrees) code_layout = {};
}

uint32_t read_attribute(const PyObject* code, ptrdiff_t offset, bool* own) noexcept {
  const char* text = word_of_object(code, offset);
  if (!is_ascii(text)) return 0;
  const std::string_view view = ascii_at(text);
  if (own != nullptr) *own = view.find("/rankmem_agent/") != std::string_view::npos;
  return intern(view);
}

}  // namespace

int find_python() noexcept {
#define RKM_FIND(result, name, parameters) \
  python.name = reinterpret_cast<result(*) parameters>(dlsym(RTLD_DEFAULT, #name)); \
  if (python.name == nullptr) return -ENOSYS;
  RKM_PYTHON_FUNCTIONS(RKM_FIND)
#undef RKM_FIND
  python.found = true;
  const void* thread_state = python.PyGILState_GetThisThreadState();
  if (thread_state == nullptr) return 0;
  PythonHeld held;
  Walk walk;
  walk_frames(walk);
  check_frame_layout(thread_state, walk.keys, walk.count);
  check_code_layout(walk);
  return 0;
}

bool python_found() noexcept { return python.found; }

uint32_t gather_stack(StackCacheEntry* cache, bool may_wait) {
  if (!python.found) return 0;
  Gathering counted;
  if (stopped.load()) return 0;
  const void* thread_state = python.PyGILState_GetThisThreadState();
  if (thread_state == nullptr) return 0;
  gathered.fetch_add(1, std::memory_order_relaxed);
  const uint64_t key = key_of_frames(thread_state);
  if (key == kFramesNone) return 0;
  StackCacheEntry& entry = cache[key % kStacksCached];
  if (key != kFramesUnknown && entry.key == key) return entry.stack_id;
  if (!may_wait && python.PyGILState_Check() == 0) return 0;
  walked.fetch_add(1, std::memory_order_relaxed);
  PythonHeld held;
  Walk walk;
  walk_frames(walk);
  const uint32_t stack_id = walk.count == 0 ? 0 : stack_id_of(walk);
  if (stack_id != 0 && key != kFramesUnknown) entry = {key, stack_id};
  return stack_id;
}

uint32_t known_stack(const StackCacheEntry* cache) noexcept {
  if (!python.found || thread_state.gathering) return 0;
  const Counted counted;
  const void* python_thread = stopped.load() ? nullptr : python.PyGILState_GetThisThreadState();
  if (python_thread == nullptr) return 0;
  const uint64_t key = key_of_frames(python_thread);
  const StackCacheEntry& entry = cache[key % kStacksCached];
  return key > kFramesNone && entry.key == key ? entry.stack_id : 0;
}

uint32_t read_stack(const StackCacheEntry* cache) noexcept try {
  if (const uint32_t known = known_stack(cache)) return known;
  if (!python.found || thread_state.gathering) return 0;
  const Counted counted;
  if (stopped.load()) return 0;
  Walk walk;
  if (!read_frames(walk)) return 0;
  FrameIds frames;
  for (uint32_t at = 0; at < walk.count; ++at) {
    const FrameKey& frame = walk.keys[at];
    bool own = false;
    const uint32_t file = read_attribute(frame.code, code_layout.file, &own);
    if (own) continue;
    const uint32_t function = read_attribute(frame.code, code_layout.function, nullptr);
    if (file == 0 || function == 0) return 0;
    const int line = python.PyCode_Addr2Line(frame.code, frame.offset < 0 ? 0 : frame.offset);
    const uint32_t id = frame_id_by_names(file, function, line);
    if (id == 0) return 0;
    frames.add(id);
  }
  std::lock_guard lock(table().mutex);
  return frames.stack_id();
} catch (...) {
  return 0;
}

void stop_stacks() noexcept {
  stopped.store(true);
  // Called without the GIL (ctypes gives it up), so those who wait for it come through.
  const timespec pause = {0, 100'000};
  for (int tries = 0; tries < 10'000 && gatherers.load() != 0; ++tries) nanosleep(&pause, nullptr);
}

uint64_t stacks_gathered() noexcept { return gathered.load(std::memory_order_relaxed); }

uint64_t stacks_walked() noexcept { return walked.load(std::memory_order_relaxed); }

}  // namespace rankmem
