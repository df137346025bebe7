// The work around optimizer.step(), in two calls that walk an optimizer's parameters natively.
//
// Comes in: an optimizer's plan (the addresses of its parameters' Python objects and TensorImpls, made by
// hooks/plans.py) and, at each step, its live param_groups and state. Goes out: the phase, TAG records of the
// parameters that moved and of all gradients, the STEP record. What cannot be read here (DTensor, sparse
// gradients, tensors without storage) is marked in an array that Python reads.
//
// Threads: whichever calls optimizer.step(), with the GIL held throughout (ctypes.PyDLL), so that nothing changes
// lists and tensors meanwhile. No Python code runs in here. Nothing blocks.
//
// Lifetimes: a plan owns nothing of the user's. A TensorImpl is touched only after the optimizer's own list was
// found to hold the same object of the same type with the same TensorImpl, so that it is alive. A parameter's
// StorageImpl is held weakly: its memory goes when the user lets go of it, while its address cannot come to mean
// another storage. Not so the TensorImpl: torch.utils.swap_tensors() refuses tensors that are held weakly.

#include <ATen/core/TensorBody.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <vector>

#include "calls.h"
#include "control.h"
#include "frames.h"
#include "python_objects.h"
#include "spool.h"
#include "steps.h"

namespace rankmem {

namespace {

// The key of an optimizer's groups, and torch.Tensor.
PyObject* params_key = nullptr;
const void* tensor_type = nullptr;

constexpr uint64_t kLookEvery = 64;
constexpr uint64_t kSecondNs = 1'000'000'000;

}  // namespace

struct PlannedParameter {
  const void* object = nullptr;
  const void* type = nullptr;
  c10::TensorImpl* impl = nullptr;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage{c10::intrusive_ptr<c10::StorageImpl>{}};
  uint64_t address = 0;  // where it was when it was tagged last
  uint32_t name = 0;
  bool had_gradient = false;
};

struct StepPlan {
  std::vector<PlannedParameter> parameters;
  uint8_t* odd = nullptr;  // one for each parameter, in Python's memory: RKM_ODD_* bits
  uint64_t steps = 0;
  const void* state = nullptr;
  ptrdiff_t state_size = 0;
  uint64_t state_address = 0;  // of its first tensor
  uint64_t looked_ns = 0;
};

namespace {

// The spool's name of a device; false where nothing is recorded of it.
bool device_of(const c10::TensorImpl& tensor, RkmRecord& record) {
  const c10::Device device = tensor.device();
  switch (device.type()) {
    case c10::DeviceType::CPU: record.device_type = RKM_DEVICETYPE_CPU; break;
    case c10::DeviceType::CUDA: record.device_type = RKM_DEVICETYPE_CUDA; break;
    case c10::DeviceType::XPU: record.device_type = RKM_DEVICETYPE_XPU; break;
    default: return false;
  }
  record.device_index = device.has_index() ? static_cast<uint8_t>(device.index()) : 0;
  return true;
}

// The address of the first element, 0 of a storage that was freed; reading it as const leaves a copy-on-write storage
// as it is.
uint64_t address_of(const c10::TensorImpl& tensor) {
  const c10::StorageImpl* storage = tensor.unsafe_storage().unsafeGetStorageImpl();
  if (storage == nullptr || storage->data() == nullptr) return 0;
  return reinterpret_cast<uint64_t>(tensor.data());
}

void write_tag(const c10::TensorImpl& tensor, uint64_t address, uint8_t category, uint32_t name, uint64_t now) {
  RkmTag tag;
  if (address == 0 || !device_of(tensor, tag)) return;
  tag.category() = category;
  tag.address() = address;
  tag.size_bytes() = static_cast<uint64_t>(tensor.numel()) * tensor.itemsize();
  tag.since_allocation() = 1;
  tag.name() = name;
  tag.thread = current_thread_id();
  tag.time_ns = now;
  write_record(tag);
}

// Whether the groups hold the plan's parameters, one for one. Reads Python's objects, so the GIL is held.
bool holds_same(const StepPlan& plan, PyObject* groups) noexcept {
  size_t next = 0;
  const ptrdiff_t num_groups = objects.PyList_Size(groups);
  for (ptrdiff_t at = 0; at < num_groups; ++at) {
    PyObject* list = objects.PyDict_GetItemWithError(objects.PyList_GetItem(groups, at), params_key);
    const ptrdiff_t size = list == nullptr ? -1 : objects.PyList_Size(list);
    if (size < 0) break;
    if (next + static_cast<size_t>(size) > plan.parameters.size()) return false;
    for (ptrdiff_t place = 0; place < size; ++place) {
      const PlannedParameter& known = plan.parameters[next++];
      const void* object = objects.PyList_GetItem(list, place);
      if (object != known.object || type_of(object) != known.type ||
          impl_of(object) != known.impl) {
        return false;
      }
    }
    if (at + 1 == num_groups) return next == plan.parameters.size();
  }
  objects.PyErr_Clear();  // no list, or no dict: Python's walk deals with it
  return num_groups == 0 && plan.parameters.empty();
}

// Tags a parameter if it is not where it was; true if so.
bool follow_parameter(PlannedParameter& known, uint64_t now) {
  const c10::Storage& storage = known.impl->unsafe_storage();
  const uint64_t address = address_of(*known.impl);
  if (address == known.address && storage.unsafeGetStorageImpl() == known.storage._unsafe_get_target()) return false;
  const bool was_tagged = known.address != 0;
  known.address = address;
  known.storage = storage.getWeakStorageImpl();
  write_tag(*known.impl, address, RKM_CATEGORY_PARAMETER, known.name, now);
  return was_tagged;
}

// Tags a parameter's gradient; RKM_STEP_* bits.
uint32_t follow_gradient(PlannedParameter& known, uint8_t& odd, uint64_t now) {
  const at::Tensor gradient = known.impl->grad();  // held: an autograd thread may replace it
  if (!gradient.defined()) return 0;
  const c10::TensorImpl& tensor = *gradient.unsafeGetTensorImpl();
  if (is_plain(tensor)) {
    write_tag(tensor, address_of(tensor), RKM_CATEGORY_GRADIENT, known.name, now);
  } else {
    odd |= kOddGradient;
  }
  const bool is_first = !known.had_gradient;
  known.had_gradient = true;
  return ((odd & kOddGradient) != 0 ? kStepOdd : 0) | (is_first ? kStepLook : 0);
}

uint32_t walk(StepPlan& plan) noexcept {
  const uint64_t now = monotonic_ns();
  uint32_t found = plan.steps++ % kLookEvery == 0 ? kStepLook : 0;
  for (size_t at = 0; at < plan.parameters.size(); ++at) {
    plan.odd[at] &= kOddParameter;
    if (plan.odd[at] != 0) continue;
    try {
      if (follow_parameter(plan.parameters[at], now)) found |= kStepLook;
    } catch (...) {  // it has changed its kind under the same identity: it is Python's from here on
      plan.odd[at] = kOddParameter;
    }
  }
  for (size_t at = 0; at < plan.parameters.size(); ++at) {
    if (plan.odd[at] == 0) try {
        found |= follow_gradient(plan.parameters[at], plan.odd[at], now);
      } catch (...) {
        plan.odd[at] |= kOddGradient;
      }
    if (plan.odd[at] != 0) found |= kStepOdd;
  }
  return found;
}

// The address of the first tensor of an optimizer's state, where its first entry is a dict that has one.
uint64_t state_address(PyObject* state) noexcept try {
  ptrdiff_t at = 0;
  PyObject *key = nullptr, *values = nullptr, *value = nullptr;
  if (objects.PyDict_Next(state, &at, &key, &values) == 0) return 0;
  at = 0;
  while (objects.PyDict_Next(values, &at, &key, &value) != 0) {  // 0 for what is no dict
    if (type_of(value) != tensor_type) continue;
    const c10::TensorImpl* impl = impl_of(value);
    return impl != nullptr && is_plain(*impl) ? address_of(*impl) : 0;
  }
  return 0;
} catch (...) {
  return 0;
}

// Whether the state is another, has grown, or its first tensor is elsewhere.
bool has_new_state(StepPlan& plan, PyObject* state) noexcept {
  const ptrdiff_t size = objects.PyDict_Size(state);
  if (size < 0) objects.PyErr_Clear();
  if (size == 0) return false;
  const uint64_t address = state_address(state);
  if (size > 0 && state == plan.state && size == plan.state_size && address == plan.state_address) return false;
  plan.state = state;
  plan.state_size = size;
  plan.state_address = address;
  return true;
}

}  // namespace

int prepare_steps(void* key, const void* type) noexcept {
  params_key = static_cast<PyObject*>(key);
  tensor_type = type;
  return find_object_functions();
}

StepPlan* make_plan(uint32_t count, const uint64_t* objects, const uint64_t* impls, const uint32_t* names,
                    uint8_t* odd) noexcept try {
  auto plan = std::make_unique<StepPlan>();
  plan->odd = odd;
  plan->parameters.resize(count);
  for (uint32_t at = 0; at < count; ++at) {
    PlannedParameter& made = plan->parameters[at];
    made.object = reinterpret_cast<const void*>(objects[at]);
    made.impl = reinterpret_cast<c10::TensorImpl*>(impls[at]);
    if (!keeps_impl(made.object, made.impl)) return nullptr;
    made.type = type_of(made.object);
    made.name = names[at];
    if (!is_plain(*made.impl)) odd[at] = kOddParameter;
  }
  return plan.release();
} catch (...) {
  return nullptr;
}

void free_plan(StepPlan* plan) noexcept { delete plan; }

int is_state_new(StepPlan* plan, void* state) noexcept {
  return has_new_state(*plan, static_cast<PyObject*>(state)) ? 1 : 0;
}

uint32_t begin_step(StepPlan* plan, void* groups, uint8_t now) noexcept {
  if (!spool_is_open()) return 0;
  set_phase(now);
  return holds_same(*plan, static_cast<PyObject*>(groups)) ? walk(*plan) : kStepOther;
}

uint32_t end_step(StepPlan* plan, void* state, int ends, uint64_t number, uint32_t name) noexcept {
  if (!spool_is_open()) return 0;
  set_phase(RKM_PHASE_OTHER);
  uint32_t found = 0;
  if (ends != 0) {
    RkmStep record;
    record.step() = number;
    record.optimizer() = name;
    record.thread = current_thread_id();
    record.time_ns = monotonic_ns();
    if (record.time_ns - plan->looked_ns >= kSecondNs) {
      plan->looked_ns = record.time_ns;
      found = kStepSecond;
    }
    const uint32_t times = end_parts(thread_state);
    write_record(record);
    step.store(number + 1, std::memory_order_relaxed);
    follow_orders(number + 1, /*by_call=*/false, times);
  }
  return found | (has_new_state(*plan, static_cast<PyObject*>(state)) ? kStepState : 0);
}

}  // namespace rankmem
