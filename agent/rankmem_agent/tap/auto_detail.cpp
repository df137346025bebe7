// The rule of detail auto.
//
// - The first steps are recorded in full, then memory alone.
// - A step recorded in summary that stood higher than every step in full, by more than a hundredth, has the next steps
//   recorded in full: what recurs in each step is then known as high as it gets.
// - If none of these came as high, the height does not recur at once. From its second time on the step that lies as
//   far ahead as the two were apart is recorded in full: an evaluation each N steps is known from its third time on.
// - A step with an out-of-memory that the program survived has the next steps recorded in full.
//
// What came once and never again stays in summary, which every answer says.

#include <algorithm>
#include <limits>

#include "auto_detail.h"
#include "heights.h"
#include "tap_cpu.h"

namespace rankmem {

namespace {

constexpr uint64_t kFirstSteps = 8;  // the optimizer's state and gradients are there from the second on
constexpr uint64_t kAgainSteps = 4;
constexpr int64_t kShareOf = 100;  // a hundredth
constexpr int64_t kNone = std::numeric_limits<int64_t>::min();

struct Choice {
  uint64_t order = 0;
  uint64_t full_left = kFirstSteps;     // steps that are still to be recorded in full
  uint64_t passed_step = RKM_UNKNOWN;   // the last one in summary that stood higher
  uint64_t expected_step = RKM_UNKNOWN;  // when the next such one is
};
Choice choice;

struct Known {
  int64_t in_full = kNone;     // the highest of a step recorded in full
  int64_t in_summary = kNone;  // and in summary
};
Known known[kHeightsMax];

bool stands_higher(int64_t height, int64_t in_full) noexcept {
  if (in_full == kNone) return height != 0;
  return height > in_full + std::max<int64_t>(in_full, 0) / kShareOf;
}

void note_passed(uint64_t step) noexcept {
  if (choice.passed_step != RKM_UNKNOWN) choice.expected_step = step + (step - choice.passed_step);
  choice.passed_step = step;
  choice.full_left = std::max(choice.full_left, kAgainSteps);
}

}  // namespace

bool follow_heights() noexcept {
  if (cpu_sees() != 0 && !knows_cpu_sizes()) return false;
  if (!enabled(kHeights)) heights.saw_oom.store(false, std::memory_order_relaxed);  // one of long ago
  enabled_bits.fetch_or(kHeights);
  return true;
}

void look_at_heights(uint64_t ended_step, bool was_full) noexcept {
  if (was_full && choice.full_left != 0) --choice.full_left;
  if (heights.saw_oom.exchange(false, std::memory_order_relaxed)) {
    choice.full_left = std::max(choice.full_left, kAgainSteps);
  }
  bool passed = false, is_matched = true;
  const uint32_t count = heights.count.load(std::memory_order_relaxed);
  for (uint32_t device = 0; device < count; ++device) {
    Height& height = heights.of[device];
    Known& so_far = known[device];
    const int64_t highest = height.highest.exchange(height.live.load(std::memory_order_relaxed));
    int64_t& same_detail = was_full ? so_far.in_full : so_far.in_summary;
    same_detail = std::max(same_detail, highest);
    passed |= !was_full && stands_higher(highest, so_far.in_full);
    is_matched &= so_far.in_summary == kNone || !stands_higher(so_far.in_summary, so_far.in_full);
  }
  if (passed) note_passed(ended_step);
  if (is_matched) choice.passed_step = RKM_UNKNOWN;
}

uint64_t auto_detail(uint64_t order, uint64_t now) noexcept {
  if (order != choice.order) {
    choice = {};
    choice.order = order;
  }
  return choice.full_left != 0 || now == choice.expected_step ? RKM_DETAIL_FULL : RKM_DETAIL_EVENTS;
}

}  // namespace rankmem
