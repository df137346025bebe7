// Outermost calls that are given the same as one before, answered without asking Python. See same_calls.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

struct PyObject;

// The bits of the answer about a call; hooks/model_calls.py names them.
constexpr long kRootEndsStep = 1;       // a step ends when this call returns
constexpr long kRootNotInThisStep = 2;  // no further call in this grad mode is of interest until a step has ended
constexpr long kRootSameAgain = 4;      // a call that is given the same may be answered here
constexpr long kRootIsModel = 8;
constexpr long kRootIsPending = 16;     // of the model: the step ends as its next call begins
constexpr uint32_t kRootRoomShift = 8;  // from here on: how many more calls of the model are recorded in this step

// What a call is given, as an INPUT record has it.
struct GivenInputs {
  uint32_t module;      // string id
  uint64_t size_bytes;
  uint64_t num_left_out;
  uint32_t facts;       // string id
};

// What a call is given, in words. Names of arguments and unusual types are in it by their address: who keeps the words
// keeps these alive.
struct Given {
  static constexpr uint32_t kWordsMax = 96;  // of more Python is asked
  static constexpr uint32_t kHeldMax = 32;   // names and types
  uint64_t words[kWordsMax];
  PyObject* held[kHeldMax];
  uint32_t num_words = 0, num_held = 0;
  bool has_tensor = false;
};

// The question about one call, on the stack of the thread that asks it.
struct CallQuestion {
  const PyObject* module;
  PyObject *args, *kwargs;
  Given given;
  bool is_given = false;  // `given` is all of it
  bool is_noted = false;  // Python has recorded `inputs`
  GivenInputs inputs = {};
  uint64_t times_changed = 0;  // the model had, when Python was asked
};

// As hooks/model_calls.py and hooks/inputs.py have them.
struct CallLimits {
  uint32_t calls;   // of the model that are recorded in a step
  uint32_t asked;   // calls that are looked at in a step
  uint32_t nested;  // containers in one another
};

// All of this is called with the GIL held.

// Answers calls from here on. `tensor` is any one of torch.Tensor itself, `impl` its TensorImpl; `containers` a tuple
// of the types whose subclasses Python looks into. 0, or -errno where tensors cannot be read here. Once.
int answer_same_calls(const void* tensor, const void* impl, PyObject* containers, CallLimits limits) noexcept;
// From now on optimizers or the user end the steps, for good.
void others_end() noexcept;

// The answer about a call, its INPUT record written; -1 if Python has to be asked.
long answer_if_same(CallQuestion& question) noexcept;
// Python is asked now. How many calls of the model were recorded here in this step and grad mode that it has not counted.
long hand_to_python(CallQuestion& question) noexcept;
// It has recorded this of the call that it is being asked about.
void note_inputs(const GivenInputs& inputs) noexcept;
// Its answer.
void learn_answer(const CallQuestion& question, long answer) noexcept;

// A module is gone, or may be another from now on; nullptr: every one.
void forget_same_calls(const PyObject* module) noexcept;

// A step ends as a call of the model begins or returns.
void end_step_by_call() noexcept;

}  // namespace rankmem
