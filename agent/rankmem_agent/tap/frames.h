// Which Python frames a thread is in, told apart without the GIL. See frames.cpp.
#pragma once

#include "tap.h"

namespace rankmem {

struct PyObject;  // opaque: only pointers pass through here

struct FrameKey {
  PyObject* code;
  int offset;  // of the instruction, in bytes
  bool operator==(const FrameKey& other) const noexcept { return code == other.code && offset == other.offset; }
};

// One multiplication to 128 bits, folded: two different stacks of 100,000 meet with probability 3e-10.
inline uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  const unsigned __int128 product = static_cast<unsigned __int128>(hash ^ value) * 0x9E37'79B9'7F4A'7C15u;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// What key_of_frames answers besides keys.
constexpr uint64_t kFramesUnknown = 0;
constexpr uint64_t kFramesNone = 1;

// Checks that frames lie in this interpreter as we believe, against `keys`: this thread's frames, nearest first,
// as the public interface tells them. Without it, or if they do not, key_of_frames answers kFramesUnknown.
// Under the GIL, once.
void check_frame_layout(const void* thread_state, const FrameKey* keys, uint32_t count) noexcept;
// Whether key_of_frames works here.
bool frame_layout_known() noexcept;

// A key of the stack of Python frames that this thread is in: the same for the same instructions of the same
// code objects, as long as those live. kFramesNone without a frame. `thread_state` is this thread's; no GIL.
uint64_t key_of_frames(const void* thread_state) noexcept;

}  // namespace rankmem
