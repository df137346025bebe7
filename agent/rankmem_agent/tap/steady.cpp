// The rule of steady.
//
// - Steps are recorded in full until one came that is known for sure (parts.h). The step after it is steady: calls are
//   not observed.
// - An audit is such a step that is recorded in full all the same: two of the first ten, then one of each fifty (or as
//   many as RANKMEM_STEADY says), drawn at random, so that no period hides from them. With RANKMEM_STEADY=auto at most
//   one a second: each is two changes of detail, and so two batches more behind the trainer.
// - A block that no known part has is a miss. Calls are observed again from the next one on, and in full for ten steps
//   after it, so that what is new is learned; for twice as many as the last time where not even ten steps were steady
//   in between. A program that never repeats, or seldom, ends with all recorded in full; one that meets something rare
//   now and then loses ten steps by it.
// - After 200 steps of which none is known for sure nothing is compared for 1,000, the next time for 2,000, and so on: a
//   program that never repeats pays for full detail alone.
// - From the second miss at one place of the program on the three steps that lie as far ahead as the two were apart are
//   recorded in full as well: what comes each N steps, an evaluation, is learned so, and what comes each M steps beside.

#include <algorithm>
#include <iterator>

#include "parts.h"
#include "steady.h"

namespace rankmem {

namespace {

constexpr uint64_t kFirstWindow = 10;
constexpr uint64_t kPauseSteps = 10;
constexpr uint64_t kPauseStepsMax = 100'000;
constexpr uint64_t kVainSteps = 200;
constexpr uint64_t kRestSteps = 1'000;
constexpr size_t kPlaces = 8;
constexpr uint64_t kSoonSteps = 10;  // after a pause; a miss within is followed by a longer one

struct Misses {  // at one place
  uint64_t place = 0;
  uint64_t last = 0;      // step
  uint64_t period = 0;
  uint64_t expected = 0;  // the next step in which there should be one
  uint64_t expected_left = 0;

  // Whether one should be in step `now`.
  bool comes(uint64_t now) noexcept {
    for (; expected_left != 0 && expected < now; --expected_left) expected += period;
    return expected_left != 0 && expected == now;
  }
};

struct Steady {
  uint64_t every = 0;
  uint64_t apart_ns = 0;       // audits are, at least
  uint64_t audited_ns = 0;
  uint64_t random = 0;
  bool is_sure = false;        // the step that ended last came before
  uint64_t vain = 0;           // steps since one was
  uint64_t rest = kRestSteps;
  uint64_t resting_until = 0;
  uint64_t window_end = 0;     // of the steps for which audits are drawn; 0: none was steady yet
  uint64_t audits[2] = {RKM_UNKNOWN, RKM_UNKNOWN};
  Misses misses[kPlaces];      // the last ones
  uint64_t pause = 0;
  uint64_t paused_until = 0;
};
Steady steady;

uint64_t draw(uint64_t below) noexcept {  // xorshift64
  steady.random ^= steady.random << 13;
  steady.random ^= steady.random >> 7;
  steady.random ^= steady.random << 17;
  return steady.random % below;
}

bool is_audit(uint64_t now) noexcept {
  if (now >= steady.window_end) {
    const bool is_first = steady.window_end == 0;
    const uint64_t steps = is_first ? std::min(kFirstWindow, steady.every) : steady.every;
    steady.audits[0] = now + draw(steps);
    steady.audits[1] = is_first ? now + draw(steps) : RKM_UNKNOWN;
    if (steady.audits[1] == steady.audits[0]) steady.audits[1] = now + (steady.audits[0] - now + 1) % steps;
    steady.window_end = now + steps;
  }
  if (now != steady.audits[0] && now != steady.audits[1]) return false;
  const uint64_t now_ns = monotonic_ns();
  if (steady.audits[1] == RKM_UNKNOWN && now_ns - steady.audited_ns < steady.apart_ns) return false;
  steady.audited_ns = now_ns;
  return true;
}

}  // namespace

void audit_every(uint64_t steps, uint64_t apart_ns) noexcept {
  steady.every = steps;
  steady.apart_ns = apart_ns;
  steady.random = monotonic_ns() | 1;
}

void look_at_part(uint32_t times) noexcept {
  if (times != kNoBlocks) steady.is_sure = times >= kSureTimes;
}

void note_miss(uint64_t step, uint64_t place) noexcept {
  Misses* const end = std::end(steady.misses);
  Misses* found = std::find_if(steady.misses, end, [&](const Misses& each) { return each.place == place; });
  if (found == end) {
    found = std::min_element(steady.misses, end, [](const Misses& a, const Misses& b) { return a.last < b.last; });
    *found = Misses{place};
  } else if (step > found->last) {
    found->period = step - found->last;
    found->expected = step + found->period;
    found->expected_left = kSureTimes;
  }
  found->last = step;
  const bool is_soon = steady.pause != 0 && step < steady.paused_until + kSoonSteps;
  steady.pause = is_soon ? std::min(2 * steady.pause, kPauseStepsMax) : kPauseSteps;
  steady.paused_until = step + 1 + steady.pause;
}

bool compares_blocks(uint64_t now) noexcept {
  if (now < steady.resting_until) {
    steady.is_sure = false;  // nothing tells
    return false;
  }
  if (steady.is_sure) {
    steady.vain = 0;
    steady.rest = kRestSteps;
  } else if (++steady.vain >= kVainSteps) {
    steady.vain = 0;
    steady.resting_until = now + steady.rest;
    steady.rest = std::min(2 * steady.rest, kPauseStepsMax);
    return false;
  }
  return true;
}

uint64_t steady_detail(uint64_t now) noexcept {
  bool is_miss_expected = false;
  for (Misses& each : steady.misses) is_miss_expected |= each.comes(now);
  if (!steady.is_sure || now < steady.paused_until || is_miss_expected) return RKM_DETAIL_FULL;
  return is_audit(now) ? RKM_DETAIL_FULL : RKM_DETAIL_STEADY;
}

}  // namespace rankmem
