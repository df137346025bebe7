// A program without an optimizer calls its model a thousand times a second, each time with tensors of the same shapes.
// To have Python look at the arguments takes 20 to 40 us of a call of 90.
//
// A call is the same as one before if the module is, autograd records or does not as it did then, and the arguments
// are: their types, the shapes and dtypes of tensors, and so on within tuples, lists and dictionaries, word for word.
// Whatever cannot be read here as Python would read it (a tensor class of the user's, a dictionary of a class of its
// own, anything that is traced) is left to Python: answers are never made up here, only given again.
//
// What an answer rests on beyond the arguments: which module is the model (Python says so, and when one is gone), how
// many calls of this step were recorded, and whether calls end steps, which Python says as it changes.

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarTypeToTypeMeta.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <dlfcn.h>

#include <cerrno>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "calls.h"
#include "python_objects.h"
#include "same_calls.h"
#include "spool.h"

namespace rankmem {

namespace {

constexpr size_t kSameCallsMax = 1024;  // of more all are learned anew

// What a word is about, where it is no address.
enum Word : uint64_t { kTensor = 1ull << 60, kTuple = 2ull << 60, kList = 3ull << 60, kDict = 4ull << 60 };

struct SameCall {
  const PyObject* module;
  bool with_grad;
  std::vector<uint64_t> words;
  std::vector<PyObject*> held;
  GivenInputs inputs;
};
using SameCalls = std::unordered_map<uint64_t, SameCall>;

// torch.Tensor, Python's own containers, str, and the types whose subclasses are left to Python.
struct Types {
  const void *tensor = nullptr, *tuple = nullptr, *list = nullptr, *dict = nullptr, *str = nullptr;
  std::vector<PyObject*> containers;
};

struct Memory {
  Types types;
  bool is_on = false;
  CallLimits limits = {};
  SameCalls calls;                             // of the model, by a hash of what they are given
  // Modules that are not the model when they are called so: without autograd, and with it.
  std::unordered_set<const PyObject*> others[2];
  const PyObject* model = nullptr;
  uint64_t times_changed = 0;  // the model was
  bool is_pending = false, others_end = false;
  uint64_t counted_step = ~uint64_t{0};
  struct InStep {
    uint64_t room = 0;      // calls of the model that may still be recorded
    uint64_t answered = 0;  // those recorded here that Python has not counted
    uint64_t others = 0;    // calls of other modules
  } in_step[2];             // without and with autograd
};
// Leaked on purpose, as everything that threads may use while the process ends. Under the GIL.
Memory& memory() {
  static auto* state = new Memory;
  return *state;
}

// The question that this thread has Python answer.
constinit thread_local CallQuestion* asking = nullptr;

bool add(Given& given, uint64_t word) noexcept {
  if (given.num_words == Given::kWordsMax) return false;
  given.words[given.num_words++] = word;
  return true;
}

bool add_held(Given& given, PyObject* object) noexcept {
  if (given.num_held == Given::kHeldMax) return false;
  given.held[given.num_held++] = object;
  return add(given, reinterpret_cast<uintptr_t>(object));
}

bool add_tensor(Given& given, const void* object) {
  const c10::TensorImpl* impl = impl_of(object);
  if (impl == nullptr || !is_plain(*impl)) return false;
  const auto sizes = impl->sizes();
  given.has_tensor = true;
  bool fits = add(given, kTensor | static_cast<uint64_t>(c10::typeMetaToScalarType(impl->dtype())) << 16 | sizes.size());
  for (const int64_t size : sizes) fits = fits && add(given, static_cast<uint64_t>(size));
  return fits;
}

bool add_value(Given& given, PyObject* value, uint32_t depth);

bool add_dict(Given& given, PyObject* dict, uint32_t depth) {
  if (!add(given, kDict | static_cast<uint64_t>(objects.PyDict_Size(dict)))) return false;
  ptrdiff_t at = 0;
  PyObject *key = nullptr, *value = nullptr;
  while (objects.PyDict_Next(dict, &at, &key, &value) != 0) {
    if (type_of(key) != memory().types.str || !add_held(given, key) || !add_value(given, value, depth)) return false;
  }
  return true;
}

// `depth`: how many containers may lie in one another from here on.
bool add_value(Given& given, PyObject* value, uint32_t depth) {
  const Types& types = memory().types;
  const void* type = type_of(value);
  if (depth == 0) return false;
  if (type == types.tensor) return add_tensor(given, value);
  if (type == types.dict) return add_dict(given, value, depth - 1);
  const bool is_tuple = type == types.tuple;
  if (is_tuple || type == types.list) {
    const ptrdiff_t size = is_tuple ? objects.PyTuple_Size(value) : objects.PyList_Size(value);
    bool fits = add(given, (is_tuple ? kTuple : kList) | static_cast<uint64_t>(size));
    for (ptrdiff_t at = 0; fits && at < size; ++at) {
      PyObject* item = is_tuple ? objects.PyTuple_GetItem(value, at) : objects.PyList_GetItem(value, at);
      fits = add_value(given, item, depth - 1);
    }
    return fits;
  }
  auto* other = static_cast<PyObject*>(const_cast<void*>(type));
  for (PyObject* container : types.containers) {
    if (objects.PyType_IsSubtype(other, container) != 0) return false;
  }
  return add_held(given, other);
}

// One level more than within: the arguments lie in containers of their own.
bool read_given(CallQuestion& question) {
  Given& given = question.given;
  const uint32_t depth = memory().limits.nested;
  return add_value(given, question.args, depth + 1) && add_dict(given, question.kwargs, depth) && given.has_tensor;
}

// Whether nothing but the program itself runs: the rest may be traced, which Python knows more exactly.
bool is_run_alone() noexcept {
  const c10::DispatchKeySet keys = c10::impl::tls_local_dispatch_key_set().included_;
  return !keys.has(c10::DispatchKey::Tracer) && !keys.has(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
         !keys.has(c10::DispatchKey::Functionalize) && c10::impl::TorchDispatchModeTLS::stack_len() == 0;
}

// Where what is kept for each grad mode has its own: 0 without autograd, 1 with it.
size_t grad_mode() noexcept { return c10::GradMode::is_enabled() ? 1 : 0; }

// What was counted in this step and grad mode.
Memory::InStep& counted(Memory& state) noexcept {
  const uint64_t now = step.load(std::memory_order_relaxed);
  if (state.counted_step != now) {
    state.counted_step = now;
    state.in_step[0] = state.in_step[1] = {state.limits.calls, 0, 0};
  }
  return state.in_step[grad_mode()];
}

uint64_t hash_of(const CallQuestion& question, bool with_grad) noexcept {
  uint64_t hash = mix(reinterpret_cast<uintptr_t>(question.module), with_grad ? 1 : 0);
  for (uint32_t at = 0; at < question.given.num_words; ++at) hash = mix(hash, question.given.words[at]);
  return hash;
}

bool is_same(const SameCall& call, const CallQuestion& question, bool with_grad) noexcept {
  return call.module == question.module && call.with_grad == with_grad &&
         std::equal(call.words.begin(), call.words.end(), question.given.words,
                    question.given.words + question.given.num_words);
}

void let_go(SameCalls& calls) noexcept {
  SameCalls gone;
  gone.swap(calls);  // first: what dies may run code
  for (const auto& each : gone) {
    for (PyObject* object : each.second.held) python.Py_DecRef(object);
  }
}

void write_inputs(const GivenInputs& inputs, bool with_grad) noexcept {
  RkmInput record;
  record.with_grad() = with_grad ? 1 : 0;
  record.step() = step.load(std::memory_order_relaxed);
  record.size_bytes() = inputs.size_bytes;
  record.module() = inputs.module;
  record.num_left_out() = inputs.num_left_out;
  record.facts() = inputs.facts;
  record.thread = current_thread_id();
  write_record(record);
}

// The same as `ModelCalls._follow` of hooks/model_calls.py does, of a call of the model whose inputs are known.
long answer_model(Memory& state, const CallQuestion& question) {
  const bool with_grad = c10::GradMode::is_enabled(), ends = !state.others_end;
  if (ends && state.is_pending != with_grad) return -1;
  const auto found = state.calls.find(hash_of(question, with_grad));
  if (found == state.calls.end() || !is_same(found->second, question, with_grad)) return -1;
  if (ends && state.is_pending) end_step_by_call();
  Memory::InStep& in_step = counted(state);
  if (in_step.room == 0) return -1;
  write_inputs(found->second.inputs, with_grad);
  --in_step.room;
  ++in_step.answered;
  if (ends) return state.is_pending ? 0 : kRootEndsStep;
  return in_step.room == 0 ? kRootNotInThisStep : 0;
}

}  // namespace

int answer_same_calls(const void* tensor, const void* impl, PyObject* containers, CallLimits limits) noexcept try {
  Memory& state = memory();
  if (state.is_on) return -EALREADY;
  if (find_object_functions() != 0 || !keeps_impl(tensor, static_cast<const c10::TensorImpl*>(impl))) return -ENOSYS;
  Types types;
  types.tensor = type_of(tensor);
  types.tuple = dlsym(RTLD_DEFAULT, "PyTuple_Type");
  types.list = dlsym(RTLD_DEFAULT, "PyList_Type");
  types.dict = dlsym(RTLD_DEFAULT, "PyDict_Type");
  types.str = dlsym(RTLD_DEFAULT, "PyUnicode_Type");
  for (const void* type : {types.tuple, types.list, types.dict, types.str}) {
    if (type == nullptr) return -ENOSYS;
  }
  for (ptrdiff_t at = 0; at < objects.PyTuple_Size(containers); ++at) {
    types.containers.push_back(objects.PyTuple_GetItem(containers, at));
  }
  python.Py_IncRef(containers);  // for good, as its types
  state.types = types;
  state.limits = limits;
  state.is_on = true;
  return 0;
} catch (...) {
  return -ENOMEM;
}

// Which module is the model may change with it: one that is trained from now on.
void others_end() noexcept {
  memory().others_end = true;
  forget_same_calls(nullptr);
}

long answer_if_same(CallQuestion& question) noexcept try {
  Memory& state = memory();
  if (!state.is_on) return -1;
  if (state.others[grad_mode()].contains(question.module)) {
    return ++counted(state).others < state.limits.asked ? 0 : kRootNotInThisStep;
  }
  question.is_given = is_run_alone() && read_given(question);
  return question.is_given && question.module == state.model ? answer_model(state, question) : -1;
} catch (...) {
  return -1;
}

long hand_to_python(CallQuestion& question) noexcept {
  asking = &question;
  question.times_changed = memory().times_changed;
  return static_cast<long>(std::exchange(counted(memory()).answered, 0));
}

void note_inputs(const GivenInputs& inputs) noexcept {
  if (asking == nullptr) return;
  asking->inputs = inputs;
  asking->is_noted = true;
}

void learn_answer(const CallQuestion& question, long answer) noexcept try {
  asking = nullptr;
  Memory& state = memory();
  // Another thread may have asked meanwhile: what it was told of the model is newer, or older.
  if ((answer & kRootSameAgain) == 0 || question.times_changed != state.times_changed) return;
  if ((answer & kRootIsModel) == 0) {
    state.others[grad_mode()].insert(question.module);
    return;
  }
  if (state.model != question.module) {  // another one is the model now
    forget_same_calls(nullptr);
    state.model = question.module;
  }
  state.is_pending = (answer & kRootIsPending) != 0;
  counted(state).room = static_cast<uint64_t>(answer) >> kRootRoomShift;
  if (!question.is_given || !question.is_noted) return;
  if (state.calls.size() == kSameCallsMax) let_go(state.calls);
  const bool with_grad = c10::GradMode::is_enabled();
  const Given& given = question.given;
  SameCall call{question.module, with_grad, {given.words, given.words + given.num_words},
                {given.held, given.held + given.num_held}, question.inputs};
  const bool is_new = state.calls.try_emplace(hash_of(question, with_grad), std::move(call)).second;
  for (uint32_t at = 0; is_new && at < given.num_held; ++at) python.Py_IncRef(given.held[at]);
} catch (...) {
}

void forget_same_calls(const PyObject* module) noexcept {
  Memory& state = memory();
  if (module != nullptr && module != state.model) {
    for (auto& others : state.others) others.erase(module);
    return;
  }
  for (auto& others : state.others) others.clear();
  state.model = nullptr;
  ++state.times_changed;
  let_go(state.calls);
}

}  // namespace rankmem
