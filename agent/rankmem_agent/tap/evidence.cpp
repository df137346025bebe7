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

bool read_evidence(ThreadState& thread, RkmEvidence& evidence) noexcept {
  if (thread.gathering) return false;
  std::optional<Counted> counted;  // as long as frames are read
  if (!is_main_thread(thread)) counted.emplace();
  if (stopped.load()) return false;
  const FramesShown shown = shown_by_frames(python.PyGILState_GetThisThreadState());
  evidence.frames_key() = shown.frames_key;
  evidence.modules_key() = shown.modules_key;
  evidence.node_sequence() = RKM_NO_SEQUENCE;
  if (const auto running = torch::autograd::get_current_node()) {
    const torch::autograd::Node& node = *running;
    evidence.node_class() = reinterpret_cast<uintptr_t>(&typeid(node));
    evidence.node_sequence() = node.sequence_nr();
  }
  evidence.nodes_made() = at::sequence_number::peek();
  return true;
}

}  // namespace rankmem
