// Evidence: what can be read at an allocation itself that distinguishes it from others, whatever is observed.
//
// - The key of the thread's Python frames, and of the modules whose calls are among them (frames.cpp).
// - The autograd node that runs: its class and its sequence number, which leads to the forward call that made it.
// - autograd's counter of the thread: how many nodes were made before.
//
// No GIL, no lock, no system call: an allocator's lock may be held. The node's reference count moves for a moment;
// the engine holds two references of its own meanwhile, so nothing is freed and no object of Python's is touched.
// Source: torch/csrc/autograd/function.h. The node is a shared_ptr in 2.6 and an intrusive_ptr in 2.13: its layout, and
// where its class is found, are the compiler's to know.

#include <torch/csrc/autograd/function.h>

#include <optional>
#include <typeinfo>

#include "evidence.h"
#include "stacks.h"

namespace rankmem {

namespace {

__attribute__((noinline)) FramesShown shown_without_trail(const void* python_thread) noexcept {
  FrameTrail trail;
  start_trail(trail);
  return shown_by_frames(python_thread, trail);
}

std::atomic<uint64_t> misread{0};

// For a test.
__attribute__((noinline)) void compare_with_new_trail(const void* python_thread, const FramesShown& read) noexcept {
  const FramesShown anew = shown_without_trail(python_thread);
  if (anew.frames_key != read.frames_key || anew.modules_key != read.modules_key) misread.fetch_add(1);
}

}  // namespace

uint64_t frames_misread() noexcept { return misread.load(); }

bool is_in_node() noexcept { return static_cast<bool>(torch::autograd::get_current_node()); }

bool read_evidence(ThreadState& thread, Shown& shown) noexcept {
  if (thread.gathering) return false;
  std::optional<Counted> counted;  // as long as frames are read
  if (!is_main_thread(thread)) counted.emplace();
  if (stopped.load()) return false;
  const void* python_thread = python.PyGILState_GetThisThreadState();
  const FramesShown frames = thread.trail != nullptr ? shown_by_frames(python_thread, *thread.trail)
                                                     : shown_without_trail(python_thread);
  if (__builtin_expect(enabled(kShowAll), 0)) compare_with_new_trail(python_thread, frames);
  shown.frames_key = frames.frames_key;
  shown.modules_key = frames.modules_key;
  if (const auto running = torch::autograd::get_current_node()) {
    const torch::autograd::Node& node = *running;
    shown.node_class = reinterpret_cast<uintptr_t>(&typeid(node));
    shown.node_sequence = node.sequence_nr();
    shown.node_thread = node.thread_id();
  }
  shown.nodes_made = at::sequence_number::peek();
  return true;
}

}  // namespace rankmem
