// Python's objects as the tap reads them. See python_objects.h.

#include <c10/core/DispatchKeySet.h>

#include <dlfcn.h>

#include <cerrno>

#include "python_objects.h"

namespace rankmem {

constinit ObjectFunctions objects;

namespace {

// Where a tensor's Python object keeps its TensorImpl; 0 until the first one has shown it.
ptrdiff_t impl_offset = 0;
constexpr ptrdiff_t kImplOffsetFirst = 16, kImplOffsetLast = 32;

}  // namespace

int find_object_functions() noexcept {
#define RKM_FIND(result, name, parameters)                                                 \
  objects.name = reinterpret_cast<result(*) parameters>(dlsym(RTLD_DEFAULT, #name));       \
  if (objects.name == nullptr) return -ENOSYS;
  RKM_OBJECT_FUNCTIONS(RKM_FIND)
#undef RKM_FIND
  return 0;
}

bool keeps_impl(const void* object, const c10::TensorImpl* impl) noexcept {
  for (ptrdiff_t tried = kImplOffsetFirst; impl_offset == 0 && tried <= kImplOffsetLast; tried += 8) {
    if (word_at(object, tried) == impl) impl_offset = tried;
  }
  return impl_offset != 0 && word_at(object, impl_offset) == impl;
}

const c10::TensorImpl* impl_of(const void* object) noexcept {
  return impl_offset == 0 ? nullptr : static_cast<const c10::TensorImpl*>(word_at(object, impl_offset));
}

bool is_plain(const c10::TensorImpl& tensor) {
  const c10::DispatchKeySet keys = tensor.key_set();
  // The keys first: the rest may ask a tensor class of the user's.
  return !keys.has(c10::DispatchKey::Python) && !keys.has(c10::DispatchKey::Functionalize) &&
         !keys.has(c10::DispatchKey::FuncTorchBatched) && !keys.has(c10::DispatchKey::FuncTorchGradWrapper) &&
         tensor.layout() == c10::Layout::Strided && tensor.has_storage() && !tensor.is_nested() &&
         !tensor.has_symbolic_sizes_strides();
}

}  // namespace rankmem
