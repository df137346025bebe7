// What the shipper has written into the control page is read as a step ends, and what it orders is done there.
//
// Cost: where nothing is ordered, one load and two comparisons a step; with detail auto a look at each device's height.
// It never waits, and takes a lock (torch's, of its callbacks) only in the moment of a change. Events are recorded at
// every level: an order moves what is known about them, never a byte.
//
// Steady steps (steady.cpp) are left amid a step as well, by whichever thread allocates what no known part has; under
// an allocator's lock it leaves that to the native thread.

#include <sched.h>

#include "auto_detail.h"
#include "calls.h"
#include "control.h"
#include "parts.h"
#include "spool.h"
#include "steady.h"

namespace rankmem {

namespace {

constexpr uint32_t kCallsAlone = kCalls | kStacks | kModules;
constexpr uint32_t kSwitched = kCallsAlone | kEvidence;
constexpr uint32_t kOrdersMax = 8;  // that wait, or hold for some steps; of more the earliest is over

struct Order {
  uint64_t number, detail, first, last;
  bool is_applied;
};

// Of the threads that end steps (one, but for odd programs): whoever finds the gate shut leaves it to the other.
std::atomic<bool> gate{false};
Order orders[kOrdersMax + 1];  // with one that has just come
uint32_t num_orders = 0;
// What is ordered, and by which order; 0: none, it was so from the start.
struct Level {
  uint64_t detail, order;
};
Level base_level = {RKM_DETAIL_FULL, 0};  // where no order holds for some steps
uint64_t detail_now = RKM_DETAIL_FULL;
uint64_t num_outcomes = 0;
uint64_t latest_step = 0;
std::atomic<uint64_t> orders_taken{0};
std::atomic<uint64_t> next_due{RKM_UNKNOWN};  // the step at which something changes
std::atomic<uint32_t> switched_off{0};        // the bits to be brought back
std::atomic<bool> steady_now{false};
std::atomic<uint64_t> leaving_asked{0};  // the place of the block that asks
std::atomic<bool> are_steps_steady{false};    // where no order says otherwise

void write_outcome(uint8_t outcome, const Order& order, uint64_t now) noexcept {
  RkmDetail record;
  record.outcome() = outcome;
  record.order() = order.number;
  record.step() = now;
  record.detail() = detail_now;
  record.thread = current_thread_id();
  write_record(record);
  ++num_outcomes;
}

void drop_order(uint32_t at) noexcept {
  for (--num_orders; at < num_orders; ++at) orders[at] = orders[at + 1];
}

// Reads the page's order, if it is whole and new.
void take_order(RkmControl* control, uint64_t now, bool by_call) noexcept {
  Order order = {};
  order.number = __atomic_load_n(&control->order_number, __ATOMIC_ACQUIRE);
  order.detail = __atomic_load_n(&control->order_detail, __ATOMIC_ACQUIRE);
  order.first = __atomic_load_n(&control->order_step_first, __ATOMIC_ACQUIRE);
  order.last = __atomic_load_n(&control->order_step_last, __ATOMIC_ACQUIRE);
  const uint64_t check = order.number ^ (order.detail << 1) ^ (order.first << 8) ^ order.last ^ RKM_ORDER_SALT;
  if (__atomic_load_n(&control->order_check, __ATOMIC_ACQUIRE) != check) return;  // at the next step
  if (order.detail == RKM_DETAIL_AUTO && !by_call && !follow_heights()) {
    write_outcome(RKM_OUTCOME_REFUSED, order, now);
  } else {
    orders[num_orders++] = order;
  }
  orders_taken.store(order.number, std::memory_order_relaxed);
  __atomic_store_n(&control->order_taken, order.number, __ATOMIC_RELEASE);
}

// What is observed around the events from here on.
void observe(uint64_t detail) noexcept {
  const uint32_t off = detail == RKM_DETAIL_FULL ? 0 : detail == RKM_DETAIL_STEADY ? kCallsAlone : kSwitched;
  enabled_bits.fetch_or(switched_off.fetch_and(off) & ~off);
  switched_off.fetch_or(enabled_bits.fetch_and(~off) & off);
  if ((off & kEvidence) != 0) forget_parts();
  calls_are_off(off != 0);
  steady_now.store(detail == RKM_DETAIL_STEADY, std::memory_order_relaxed);
  observe_calls(enabled(kCalls));
  observe_ranges(detail == RKM_DETAIL_STEADY);
}

// Whether blocks are compared in steps that may be steady. Of what was learned before a stretch without it nothing holds.
void compare_blocks(bool on) noexcept {
  if (on == enabled(kEvidence)) return;
  on ? enabled_bits.fetch_or(kEvidence) : enabled_bits.fetch_and(~kEvidence);
  forget_parts();
}

// What holds from step `now` on: the latest order whose steps these are, else what is ordered for good.
Level level_of(uint64_t now) noexcept {
  Level level = base_level;
  for (uint32_t at = 0; at < num_orders; ++at) {
    if (orders[at].first <= now && now <= orders[at].last) level = {orders[at].detail, orders[at].number};
  }
  return level;
}

// Takes out the orders that end before their steps do: an order for good ends all that came before it, itself the last
// of them; of more than are kept the earliest ends. Returns whether there is one for good, and what it replaces.
bool end_early(uint64_t now, Order* ended, uint32_t& num_ended, Level& replaced) noexcept {
  uint32_t count = num_orders > kOrdersMax ? 1 : 0;
  bool is_lasting = false;
  for (uint32_t at = num_orders; at-- > 0 && !is_lasting;) {
    if (orders[at].last != RKM_UNKNOWN || orders[at].first > now) continue;
    is_lasting = true;
    replaced = base_level;
    base_level = {orders[at].detail, orders[at].number};
    count = at + 1;
  }
  for (num_ended = 0; num_ended < count; ++num_ended) {
    ended[num_ended] = orders[0];
    drop_order(0);
  }
  return is_lasting;
}

void plan_next(uint64_t now) noexcept {
  uint64_t due = enabled(kHeights) || are_steps_steady.load(std::memory_order_relaxed) ? now + 1 : RKM_UNKNOWN;
  for (uint32_t at = 0; at < num_orders; ++at) {
    const uint64_t change = orders[at].first > now ? orders[at].first : orders[at].last + 1;
    if (change > now) due = std::min(due, change);
  }
  next_due.store(due, std::memory_order_relaxed);
}

void refuse_all(uint64_t now) noexcept {
  while (num_orders != 0) {
    write_outcome(RKM_OUTCOME_REFUSED, orders[0], now);
    drop_order(0);
  }
}

void write_due(uint64_t now) noexcept {
  for (uint32_t at = 0; at < num_orders;) {
    Order& order = orders[at];
    if (order.first <= now && !order.is_applied) {
      order.is_applied = true;
      write_outcome(now <= order.last ? RKM_OUTCOME_APPLIED : RKM_OUTCOME_OVER, order, now);
      if (now > order.last) drop_order(at);  // it came too late for all of its steps
      else ++at;
    } else if (order.first <= now && now > order.last) {
      write_outcome(RKM_OUTCOME_OVER, order, now);
      drop_order(at);
    } else {
      ++at;
    }
  }
}

void apply_due(uint64_t now) noexcept {
  Order ended[kOrdersMax + 1];
  uint32_t num_ended = 0;
  Level replaced = {};
  const bool is_lasting = end_early(now, ended, num_ended, replaced);
  const Level level = level_of(now);
  const bool is_steady_level = level.detail == RKM_DETAIL_STEADY;
  if (is_steady_level && (switched_off.load() & kEvidence) == 0) compare_blocks(compares_blocks(now));
  const uint64_t detail = level.detail == RKM_DETAIL_AUTO     ? auto_detail(level.order, now)
                          : is_steady_level ? steady_detail(now)
                                            : level.detail;
  const uint64_t outcomes_before = num_outcomes;
  const bool changes = detail != detail_now;
  detail_now = detail;
  // Between the records that say full detail everything was observed, on other threads as well.
  if (changes && detail == RKM_DETAIL_FULL) {
    if (is_steady()) note_resumed();  // another thread may be within an operator
    observe(detail);
  }
  // Of the records of a change the first is the one that made it.
  if (is_lasting) write_outcome(RKM_OUTCOME_APPLIED, ended[--num_ended], now);
  for (uint32_t at = 0; at < num_ended; ++at) write_outcome(RKM_OUTCOME_OVER, ended[at], now);
  if (replaced.order != 0) {
    Order before{};
    before.number = replaced.order;
    write_outcome(RKM_OUTCOME_OVER, before, now);
  }
  write_due(now);
  if (changes && num_outcomes == outcomes_before) {
    write_outcome(RKM_OUTCOME_AUTO, {level.order, detail, now, now, true}, now);
  }
  if (changes && detail != RKM_DETAIL_FULL) observe(detail);
  plan_next(now);
}

__attribute__((noinline)) void follow_orders_slowly(RkmControl* control, uint64_t now, bool by_call,
                                                    uint32_t times) noexcept {
  if (gate.exchange(true, std::memory_order_acquire)) return;
  look_at_part(detail_now == RKM_DETAIL_EVENTS ? 0 : times);
  if (now > latest_step && enabled(kHeights)) look_at_heights(now - 1, detail_now == RKM_DETAIL_FULL);
  now = latest_step = std::max(latest_step, now);  // another thread may have ended a later one
  if (__atomic_load_n(&control->order_number, __ATOMIC_ACQUIRE) != orders_taken.load()) take_order(control, now, by_call);
  // With calls unobserved no step would end any more, and none would bring them back.
  by_call ? refuse_all(now) : apply_due(now);
  gate.store(false, std::memory_order_release);
}

}  // namespace

void follow_orders(uint64_t now, bool by_call, uint32_t times) noexcept {
  RkmControl* control = spool.control;
  const uint64_t ordered = __atomic_load_n(&control->order_number, __ATOMIC_RELAXED);
  const bool is_new = ordered != orders_taken.load(std::memory_order_relaxed);
  if (__builtin_expect(!is_new && now < next_due.load(std::memory_order_relaxed), 1)) return;
  follow_orders_slowly(control, now, by_call, times);
}

bool choose_detail() noexcept {
  if (!follow_heights()) return false;
  base_level = {RKM_DETAIL_AUTO, 0};
  next_due.store(0, std::memory_order_relaxed);
  return true;
}

void choose_steady(uint64_t audits_every, uint64_t apart_ns) noexcept {
  audit_every(audits_every, apart_ns);
  base_level = {RKM_DETAIL_STEADY, 0};
  are_steps_steady.store(true, std::memory_order_relaxed);
  next_due.store(0, std::memory_order_relaxed);
}

bool is_steady() noexcept { return steady_now.load(std::memory_order_relaxed); }

bool can_be_steady() noexcept { return are_steps_steady.load(std::memory_order_relaxed); }

void leave_steady(uint64_t place) noexcept {
  // A child would inherit torch's lock as it is: no fork meanwhile.
  if (!try_hold_fork()) return ask_to_leave_steady(place);
  if (gate.exchange(true, std::memory_order_acquire)) return release_fork();
  leaving_asked.store(0, std::memory_order_relaxed);
  if (detail_now == RKM_DETAIL_STEADY) {
    const uint64_t now = step.load(std::memory_order_relaxed);
    detail_now = RKM_DETAIL_FULL;
    note_resumed();
    observe(detail_now);
    note_miss(now, place);
    write_outcome(RKM_OUTCOME_MISSED, {level_of(now).order, detail_now, now, now, true}, now);
  }
  gate.store(false, std::memory_order_release);
  release_fork();
}

void end_control() noexcept {
  constexpr int kTries = 10'000;  // who has it needs microseconds
  for (int tries = 0; tries < kTries && gate.exchange(true, std::memory_order_acquire); ++tries) sched_yield();
}

void ask_to_leave_steady(uint64_t place) noexcept { leaving_asked.store(place, std::memory_order_relaxed); }

void leave_steady_if_asked() noexcept {
  if (const uint64_t place = leaving_asked.load(std::memory_order_relaxed)) leave_steady(place);
}

bool is_switched_off(uint32_t what) noexcept { return (switched_off.load(std::memory_order_relaxed) & what) != 0; }

void forget_switched(uint32_t what) noexcept { switched_off.fetch_and(~what); }

}  // namespace rankmem
