// What the tap reads of Python's objects itself, without running Python: types, containers, and the tensors in them.
// All of it with the GIL held, in builds that have one.
#pragma once

#include <c10/core/TensorImpl.h>

#include <cstring>

#include "stacks.h"

namespace rankmem {

// CPython's stable ABI; found with dlsym, as in stacks.cpp.
#define RKM_OBJECT_FUNCTIONS(F)                                            \
  F(PyObject*, PyDict_GetItemWithError, (PyObject*, PyObject*))            \
  F(ptrdiff_t, PyDict_Size, (PyObject*))                                   \
  F(int, PyDict_Next, (PyObject*, ptrdiff_t*, PyObject**, PyObject**))     \
  F(ptrdiff_t, PyList_Size, (PyObject*))                                   \
  F(PyObject*, PyList_GetItem, (PyObject*, ptrdiff_t))                     \
  F(ptrdiff_t, PyTuple_Size, (PyObject*))                                  \
  F(PyObject*, PyTuple_GetItem, (PyObject*, ptrdiff_t))                    \
  F(int, PyType_IsSubtype, (PyObject*, PyObject*))                         \
  F(void, PyErr_Clear, (void))

struct ObjectFunctions {
#define RKM_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  RKM_OBJECT_FUNCTIONS(RKM_MEMBER)
#undef RKM_MEMBER
};
extern ObjectFunctions objects;

// Finds them. 0, or -ENOSYS.
int find_object_functions() noexcept;

constexpr ptrdiff_t kTypeOffset = 8;  // of the type in every Python object (builds with a GIL)

inline const void* word_at(const void* object, ptrdiff_t offset) noexcept {
  const void* value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof value);
  return value;
}

inline const void* type_of(const void* object) noexcept { return word_at(object, kTypeOffset); }

// Whether this tensor's object keeps this TensorImpl where those of all tensors do; the first one asked about shows where.
bool keeps_impl(const void* object, const c10::TensorImpl* impl) noexcept;
// The TensorImpl of a tensor's object; nullptr before the place is known.
const c10::TensorImpl* impl_of(const void* object) noexcept;
// A tensor whose bytes lie in a storage of its own: no wrapper around others, none without an address.
bool is_plain(const c10::TensorImpl& tensor);

}  // namespace rankmem
