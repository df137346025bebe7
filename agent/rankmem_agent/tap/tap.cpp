// The tap's C interface, as docs/internals.md lists it; loaded through ctypes by tap/library.py.
//
// All return 0 or -errno unless noted, none raises. In a forked child, before rkm_open and after rkm_close they
// do nothing, unless noted.

#include <cerrno>
#include <iterator>

#include "calls.h"
#include "children.h"
#include "control.h"
#include "evidence.h"
#include "modules.h"
#include "parts.h"
#include "roots.h"
#include "same_calls.h"
#include "spool.h"
#include "stacks.h"
#include "steps.h"
#include "tap_cpu.h"

using namespace rankmem;

#define RKM_EXPORT extern "C" __attribute__((visibility("default")))

// rkm_stat's figures; tap/library.py names them.
enum Stat : uint32_t {
  kNextSeq = 0,
  kDropped = 1,
  kStringsDropped = 2,
  kStacksKnown = 3,
  kCallsBegun = 4,
  kStacksGathered = 5,
  kPythonFound = 6,
  kHasCuda = 7,
  kSegmentsReady = 8,
  kSpoolOpen = 9,
  kStacksWalked = 10,
  kFramesKnown = 11,
  kModulesFollowed = 12,
  kModulesAsked = 13,
  kStep = 14,
  kEvidenceRead = 15,
  kChoosesDetail = 16,
  kFramesMisread = 17,
  kCpuSees = 20,
  kHasBlocks = 21,
};

// rkm_open's flags; tap/library.py names them.
constexpr uint32_t kProvisional = 1;

RKM_EXPORT int rkm_open(const char* folder, uint64_t budget_bytes, uint32_t flags) {
  return folder == nullptr ? -EINVAL : open_spool(folder, budget_bytes, (flags & kProvisional) != 0);
}

RKM_EXPORT int rkm_publish(const char* folder) { return folder == nullptr ? -EINVAL : publish_spool(folder); }

RKM_EXPORT void rkm_when_busy(void* callback, uint64_t after_ns, uint64_t records) {
  if (spool_is_open()) call_when_busy(callback, after_ns, records);
}

RKM_EXPORT int rkm_attach_cpu() { return attach_cpu(); }

RKM_EXPORT int rkm_attach_calls() { return attach_calls(); }

#ifndef RKM_WITH_CUDA
RKM_EXPORT int rkm_attach_cuda() { return -ENOSYS; }
RKM_EXPORT void rkm_leave_cpu(uint32_t) {}
RKM_EXPORT int rkm_cuda_counters() { return 0; }
#endif

RKM_EXPORT int rkm_sample_pinned() {
  if (!spool_is_open()) return -EINVAL;
  const ForkHeld held;
  return sample_pinned();
}

RKM_EXPORT void rkm_enable(uint32_t what, int on) {
  if (!spool_is_open()) return;
  if (!can_follow_modules()) what &= ~kModules;
  if ((what & kEvidence) != 0 && !(can_read_evidence() && prepare_parts())) what &= ~kEvidence;
  if ((what & kHeights) != 0 && (on == 0 || !choose_detail())) what &= ~kHeights;
  if (on != 0) {
    enabled_bits.fetch_or(what);
  } else {
    enabled_bits.fetch_and(~what);
    forget_switched(what);
    if ((what & ~(kCpuEvents | kCudaEvents)) != 0) forget_parts();
  }
  if ((what & kCalls) != 0) observe_calls(on != 0);
}

RKM_EXPORT int rkm_choose_steady(uint64_t audits_every, uint64_t apart_ns) {
  if (!spool_is_open() || audits_every == 0) return -EINVAL;
  if (!enabled(kEvidence) || !enabled(kCalls)) return -ENOSYS;
  choose_steady(audits_every, apart_ns);
  return 0;
}

RKM_EXPORT uint32_t rkm_intern(const char* utf8, uint64_t length) {
  // JSON of NOTE and DEVICE records comes this way too, so the bound is theirs.
  return utf8 == nullptr ? 0 : intern_bounded({utf8, length}, RKM_NOTE_BYTES_MAX);
}

RKM_EXPORT void rkm_record(uint8_t kind, uint8_t action, uint8_t device_type, uint8_t device_index, uint64_t a,
                           uint64_t b, uint64_t c, uint64_t d, uint32_t e) {
  if (!spool_is_open()) return;
  RkmRecord record = {};
  record.kind = kind;
  record.action = action;
  record.device_type = device_type;
  record.device_index = device_index;
  record.a = a;
  record.b = b;
  record.c = c;
  record.d = d;
  record.e = e;
  record.thread = current_thread_id();
  write_record(record);
}

// TAG records of blocks that have meant `category` since they were allocated; addresses of 0 are left out.
RKM_EXPORT void rkm_tag(uint8_t category, uint8_t device_type, uint8_t device_index, uint32_t count,
                        const uint64_t* addresses, const uint64_t* sizes_bytes, const uint32_t* names) {
  if (!spool_is_open()) return;
  const uint64_t now = monotonic_ns();
  const uint32_t thread = current_thread_id();
  for (uint32_t index = 0; index < count; ++index) {
    if (addresses[index] == 0) continue;
    RkmTag tag;
    tag.category() = category;
    tag.device_type = device_type;
    tag.device_index = device_index;
    tag.address() = addresses[index];
    tag.size_bytes() = sizes_bytes[index];
    tag.since_allocation() = 1;
    tag.name() = names[index];
    tag.thread = thread;
    tag.time_ns = now;
    write_record(tag);
  }
}

RKM_EXPORT void rkm_set_module(uint32_t module_string_id) { thread_state.module = module_string_id; }

RKM_EXPORT uint32_t* rkm_module_slot() { return &thread_state.module; }

// All of modules is called with the GIL.
RKM_EXPORT int rkm_follow_modules(rankmem::PyObject* call_code, rankmem::PyObject* ask, int asks_names,
                                  const rankmem::PyObject* const* modules, uint32_t count) {
  return follow_modules(call_code, ask, asks_names != 0, modules, count);
}

RKM_EXPORT void rkm_name_module(const rankmem::PyObject* module, uint32_t name, int may_change) {
  name_module(module, name, may_change != 0);
}

RKM_EXPORT void rkm_forget_module(const rankmem::PyObject* module) { forget_module(module); }

RKM_EXPORT void rkm_watch_roots(rankmem::PyObject* ask, uint32_t name) { watch_roots(ask, name); }

RKM_EXPORT int rkm_answer_same_calls(const void* tensor, const void* impl, rankmem::PyObject* containers,
                                     uint32_t calls, uint32_t asked, uint32_t nested) {
  return answer_same_calls(tensor, impl, containers, {calls, asked, nested});
}

RKM_EXPORT void rkm_others_end() { others_end(); }

RKM_EXPORT void rkm_note_inputs(uint32_t module, uint64_t size_bytes, uint64_t num_left_out, uint32_t facts) {
  note_inputs({module, size_bytes, num_left_out, facts});
}

RKM_EXPORT void rkm_forget_same_calls(const rankmem::PyObject* module) { forget_same_calls(module); }

RKM_EXPORT void rkm_set_phase(uint8_t now) { set_phase(now); }

// For a test, with kCompareModules: the phase as the hooks of modules have it.
RKM_EXPORT void rkm_compare_phase(uint8_t now) { compared_phase.store(now, std::memory_order_relaxed); }

RKM_EXPORT void rkm_set_step(uint64_t now, int by_call) {
  const bool is_open = spool_is_open();
  const uint32_t times = is_open ? end_parts(thread_state) : 0;
  step.store(now, std::memory_order_relaxed);
  if (is_open) follow_orders(now, by_call != 0, times);
}

RKM_EXPORT int rkm_steps_prepare(void* params_key, const void* tensor_type) {
  return prepare_steps(params_key, tensor_type);
}

RKM_EXPORT void* rkm_plan_make(uint32_t count, const uint64_t* objects, const uint64_t* impls, const uint32_t* names,
                               uint8_t* odd) {
  return make_plan(count, objects, impls, names, odd);
}

RKM_EXPORT void rkm_plan_free(void* plan) { free_plan(static_cast<StepPlan*>(plan)); }

RKM_EXPORT int rkm_plan_state(void* plan, void* state) { return is_state_new(static_cast<StepPlan*>(plan), state); }

RKM_EXPORT uint32_t rkm_step_begin(void* plan, void* groups, uint8_t now) {
  return begin_step(static_cast<StepPlan*>(plan), groups, now);
}

RKM_EXPORT uint32_t rkm_step_end(void* plan, void* state, int ends, uint64_t number, uint32_t name) {
  return end_step(static_cast<StepPlan*>(plan), state, ends, number, name);
}

// Needs no spool, and works after rkm_close.
RKM_EXPORT int rkm_start_unseen(const char* const* arguments, const char* const* environment, int output, int kept) {
  return start_unseen(arguments, environment, output, kept);
}

RKM_EXPORT void rkm_stop_stacks() { stop_stacks(); }

RKM_EXPORT int rkm_close() {
  if (spool_is_open()) {
    const ForkHeld held;
    rkm_cuda_counters();  // the allocator's last word, to hold the replay against
    end_parts(thread_state);
    end_control();
  }
  return close_spool();
}

RKM_EXPORT uint64_t rkm_stat(uint32_t which) {
  const RkmControl* control = spool.control;
  switch (which) {
    case kNextSeq: return control == nullptr ? 0 : __atomic_load_n(&control->next_seq, __ATOMIC_RELAXED);
    case kDropped: return control == nullptr ? 0 : __atomic_load_n(&control->dropped, __ATOMIC_RELAXED);
    case kStringsDropped: return control == nullptr ? 0 : __atomic_load_n(&control->strings_dropped, __ATOMIC_RELAXED);
    case kStacksKnown: return control == nullptr ? 0 : __atomic_load_n(&control->stacks, __ATOMIC_RELAXED);
    case kCallsBegun: return calls_begun();
    case kStacksGathered: return stacks_gathered();
    case kPythonFound: return python_found() ? 1 : 0;
#ifdef RKM_WITH_CUDA
    case kHasCuda: return 1;
#endif
    case kSegmentsReady: return segments_made();
    case kSpoolOpen: return spool_is_open() ? 1 : 0;
    case kStacksWalked: return stacks_walked();
    case kFramesKnown: return frame_layout_known() ? 1 : 0;
    case kModulesFollowed: return enabled(kModules) ? 1 : 0;
    case kModulesAsked: return modules_asked();
    case kChoosesDetail: return enabled(kHeights) ? 1 : 0;
    case kEvidenceRead: return enabled(kEvidence) ? 1 : 0;
    case kFramesMisread: return frames_misread();
    case kStep: return step.load(std::memory_order_relaxed);
    case kCpuSees: return cpu_sees();
    case kHasBlocks: return has_recorded_blocks() ? 1 : 0;
    default: return 0;
  }
}

// The index-th field of the layout as this compiler laid it out, for the test that holds both sides together;
// -ENOENT past the last.
RKM_EXPORT int rkm_layout(uint32_t index, const char** name, uint64_t* offset) {
  if (index >= std::size(RKM_OFFSETS)) return -ENOENT;
  *name = RKM_OFFSETS[index].name;
  *offset = RKM_OFFSETS[index].offset;
  return 0;
}
