// The work around an optimizer's step. See steps.cpp. All of it is called with the GIL held.
#pragma once

#include "tap.h"

namespace rankmem {

struct StepPlan;

// What begin_step and end_step found; tap/step_calls.py names them.
constexpr uint32_t kStepOther = 1;   // the optimizer has other parameters than the plan: nothing was tagged
constexpr uint32_t kStepOdd = 2;     // some of them are left to Python: see StepPlan::odd
constexpr uint32_t kStepLook = 4;    // something moved, a gradient is the first of its parameter, or 64 steps are over
constexpr uint32_t kStepState = 8;   // the optimizer's state is new
constexpr uint32_t kStepSecond = 16;  // a second has gone by since this was found last

// What of a parameter is left to Python.
constexpr uint8_t kOddParameter = 1;  // itself and its gradient
constexpr uint8_t kOddGradient = 2;   // its gradient, in this step

// Finds CPython's functions. `params_key` is the string "params", never freed; `tensor_type` torch.Tensor.
// 0 or -errno.
int prepare_steps(void* params_key, const void* tensor_type) noexcept;
// A plan of an optimizer's parameters, in the order of its groups; nullptr where their objects are not as expected.
// `odd` has `count` bytes and lives as long as the plan.
StepPlan* make_plan(uint32_t count, const uint64_t* objects, const uint64_t* impls, const uint32_t* names,
                    uint8_t* odd) noexcept;
void free_plan(StepPlan* plan) noexcept;
// Whether an optimizer's state is new since this was asked, or end_step found it so.
int is_state_new(StepPlan* plan, void* state) noexcept;
// Before optimizer.step(): the phase is `now`, parameters that moved and gradients are tagged.
uint32_t begin_step(StepPlan* plan, void* groups, uint8_t now) noexcept;
// After it: the phase is "other"; if `ends`, step `number` has ended.
uint32_t end_step(StepPlan* plan, void* state, int ends, uint64_t number, uint32_t name) noexcept;

}  // namespace rankmem
