// Pointers in the data of loaded libraries: found, and replaced at run time. See library_data.cpp.
#pragma once

#include <cstddef>

namespace rankmem {

// Replaces a pointer in a loaded library's data with one atomic store. False if `slot` lies in no library's
// writable data, or its page cannot be made writable. Any thread may read the slot meanwhile.
bool replace_pointer(void** slot, void* replacement) noexcept;

// Whether `slot` lies in a loaded library's data that replace_pointer() could change.
bool is_replaceable(void** slot) noexcept;

// The slots through which the library whose file name is `library` calls the function `symbol` of another
// library. How many there are; the first `capacity` of them are stored in `slots`.
size_t find_call_slots(const char* library, const char* symbol, void*** slots, size_t capacity) noexcept;

}  // namespace rankmem
