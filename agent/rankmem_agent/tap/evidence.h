// What an allocation shows of where it is made. See evidence.cpp.
//
// Compiled with RKM_WITH_EVIDENCE alone: it takes headers of torch that double the time of a build.
#pragma once

#include "calls.h"
#include "modules.h"

namespace rankmem {

// Whether evidence can be read here: built with it, and this Python's frames and modules can be read. Without, no
// evidence is written.
inline bool can_read_evidence() noexcept {
#ifdef RKM_WITH_EVIDENCE
  return can_follow_modules();
#else
  return false;
#endif
}

// What this thread shows now; false where its frames may not be read any more. Hot path.
bool read_evidence(ThreadState& thread, RkmEvidence& evidence) noexcept;

}  // namespace rankmem
