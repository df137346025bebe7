"""Detail auto: some steps are recorded in full, one as high as the peak among them, the others in summary."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rankmem_agent.spool.layout import NO_PHASE, Action, Detail, Kind, Outcome
from rankmem_ship.spool_reader.segments import named
from tap_process import ORDERS, Recording, changes_of, record_process

FIRST = 8
"""Steps recorded in full before anything is known."""
AGAIN = 4
"""And after one that stood higher."""
MIB = 1 << 20
STEPS = (
    ORDERS
    + """
tap.enable(ALL | What.HEIGHTS)
def run(number, mib=8):
    block = torch.ones(mib << 18)
    torch.add(block, 1)
    del block
    tap.record(Kind.STEP, step=number)
    tap.set_step(number + 1)
"""
)


def recorded(tmp_path: Path, script: str) -> Recording:
    made = record_process(STEPS + script + "\ntap.close()\n", tmp_path, is_forked=True)
    assert made.returncode == 0, made.stderr
    return made


def steps_in_full(recording: Recording) -> list[int]:
    """The steps in which an operator is known."""
    steps = np.cumsum(recording.records["kind"] == Kind.STEP)
    return sorted(set(steps[recording.records["kind"] == Kind.CALL_BEGIN].tolist()))


def test_the_first_steps_are_in_full_and_those_that_stand_no_higher_in_summary(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "for number in range(20): run(number)")
    assert changes_of(recording) == [(0, Outcome.AUTO, FIRST, Detail.EVENTS)]
    assert steps_in_full(recording) == list(range(FIRST))
    events = recording.of(Kind.EVENT)
    high = events[(events["action"] == Action.ALLOC) & (events["b"] == 8 * MIB)]
    assert len(high) == 2 * 20, "every block of every step"


def test_a_height_that_recurs_is_recorded_in_full_from_the_next_step_on(tmp_path: Path) -> None:
    recording = recorded(tmp_path, "for number in range(40): run(number, 8 if number < 20 else 12)")
    assert changes_of(recording) == [
        (0, Outcome.AUTO, FIRST, Detail.EVENTS),
        (0, Outcome.AUTO, 21, Detail.FULL),
        (0, Outcome.AUTO, 21 + AGAIN, Detail.EVENTS),
    ]


def test_a_step_that_is_hardly_higher_changes_nothing(tmp_path: Path) -> None:
    """216 MiB are alive at most, and then 218."""
    script = "kept = torch.ones(200 << 18)\nfor number in range(20): run(number, 8 if number < 12 else 9)"
    assert len(changes_of(recorded(tmp_path, script))) == 1


def test_a_height_that_recurs_each_n_steps_is_in_full_from_its_third_time_on(tmp_path: Path) -> None:
    script = "for number in range(64): run(number, 32 if number % 15 == 14 else 8)"
    full = steps_in_full(recorded(tmp_path, script))
    assert [step in full for step in (14, 29, 44, 59)] == [False, False, True, False]
    assert len(full) == FIRST + 2 * AGAIN + 1, "and once it is known nothing more is recorded in full"


def test_what_an_order_says_comes_before_what_the_tap_chooses(tmp_path: Path) -> None:
    script = """
for number in range(39):
    if number == 1: order(1, EVENTS, 3, 4)
    if number == 12: order(2, FULL, 15, 16)
    if number == 20: order(3, EVENTS, 22)
    if number == 30: order(4, AUTO, 32)
    run(number, 8 if number < 24 else 12)
"""
    full, events, auto = Detail.FULL, Detail.EVENTS, Outcome.AUTO
    assert changes_of(recorded(tmp_path, script)) == [
        (1, Outcome.APPLIED, 3, events),
        (1, Outcome.OVER, 5, full),
        (0, auto, FIRST + 2, events),
        (2, Outcome.APPLIED, 15, full),
        (2, Outcome.OVER, 17, events),
        (3, Outcome.APPLIED, 22, events),
        (4, Outcome.APPLIED, 32, full),
        (3, Outcome.OVER, 32, full),
    ]


def test_the_steps_after_an_out_of_memory_are_in_full(tmp_path: Path) -> None:
    script = """
for number in range(24):
    if number == 15:
        try:
            torch.empty(1 << 58)
        except RuntimeError:
            pass
    run(number)
"""
    changes = changes_of(recorded(tmp_path, script))
    assert [change[2:] for change in changes[1:]] == [(16, Detail.FULL), (16 + AGAIN, Detail.EVENTS)]


def test_an_out_of_memory_in_summary_has_its_operator_its_module_and_its_line(tmp_path: Path) -> None:
    script = """
import rankmem_agent.hooks.module_frames as frames
class Model(torch.nn.Module):
    def forward(self, size):
        return torch.ones(1).expand(size).mul(2)
def elsewhere():
    torch.empty(1).expand(1 << 55).exp()
model, name = Model(), tap.intern("model")
assert frames.follow(tap.module_reader(), lambda module, *around: tap.name_module(id(module), name, False))
def ask(call, *arguments):
    try:
        call(*arguments)
    except RuntimeError:
        pass
for number in range(20):
    ask(model, 1 << 55 if number == 15 else 1 << 10)
    if number == 15: ask(elsewhere)
    run(number)
"""
    recording = recorded(tmp_path, script)
    events, begun, ended = (recording.of(kind) for kind in (Kind.EVENT, Kind.CALL_BEGIN, Kind.CALL_END))
    failed = events[events["action"] == Action.OOM]["call_id"]
    calls = [begun[begun["call_id"] == call_id][0] for call_id in failed]
    ends = [named(ended[ended["call_id"] == call_id], Kind.CALL_END) for call_id in failed]
    stacks = [int(end["stack_id"][0]) for end in ends]
    assert [recording.text(call["e"]) for call in calls] == ["aten::mul", "aten::exp"]
    assert [recording.text(call["b"]) for call in calls] == ["model", None]
    assert {int(call["action"]) for call in calls} == {NO_PHASE}
    assert all(stacks), "also of a line that was never met, for which no thread waits for the GIL"
