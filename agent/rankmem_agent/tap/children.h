// Starting a program that the training does not notice. See children.cpp.
#pragma once

#include <cstdint>

namespace rankmem {

// Starts a program that is no child of this process, in a session of its own and in "/". Its input is /dev/null, its output
// and errors are `output`; it inherits `kept`, which is above 2, and no other descriptor. `arguments` (the first is the
// program's path) and `environment` end with a null. Returns once it runs: 0, or -errno where it does not.
int start_unseen(const char* const* arguments, const char* const* environment, int output, int kept) noexcept;

}  // namespace rankmem
