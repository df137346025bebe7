"""Orders in the control page: followed as a step ends, from the step that they name on; events go on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankmem_agent.spool.layout import Action, Detail, Kind, Outcome
from rankmem_ship.spool_reader.segments import named
from tap_process import CALLS_OF_MODELS, ORDERS, Recording, changes_of, record_process

PAGE = (
    ORDERS
    + """
def step(number):
    kept.append(torch.ones(1000 + number))
    tap.record(Kind.STEP, step=number)
    tap.set_step(number + 1)
kept = []
"""
)
SCRIPT = (
    PAGE
    + """
tap.enable(ALL)
assert struct.unpack_from("<Q", page, at["order_reader"])[0] == 1
for number in range(20):
    if number == 1: order(1, EVENTS, 4)
    if number == 3: assert taken() == 1; order(2, FULL, 7, 8)
    if number == 10: order(3, FULL, 5)
    if number == 12: order(4, EVENTS, 13, check=1)
    if number == 14: assert taken() == 3, "it was not whole"; order(4, EVENTS, 14, 16)
    if number == 17: order(5, EVENTS, 1, 2)
    step(number)
tap.close()
"""
)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    made = record_process(SCRIPT, tmp_path_factory.mktemp("control"))
    assert made.returncode == 0, made.stderr
    return made


def test_each_order_is_followed_from_its_step_on_or_from_the_next_where_it_came_late(
    recording: Recording,
) -> None:
    full, events = Detail.FULL, Detail.EVENTS
    applied, over = Outcome.APPLIED, Outcome.OVER
    assert changes_of(recording) == [
        (1, applied, 4, events),
        (2, applied, 7, full),
        (2, over, 9, events),
        (3, applied, 11, full),
        (1, over, 11, full),
        (4, applied, 15, events),
        (4, over, 17, full),
        (5, over, 18, full),
    ]


def test_events_are_recorded_in_every_step_and_operators_where_detail_is_full(recording: Recording) -> None:
    events = recording.of(Kind.EVENT)
    sizes = 4 * (1000 + np.arange(20))
    made = events[(events["action"] == Action.ALLOC) & np.isin(events["b"], sizes)]
    assert made["b"].tolist() == sizes.tolist()
    summary = {4, 5, 6, 9, 10, 15, 16}
    assert {step for step in range(20) if not made["call_id"][step]} == summary
    begun, ended = recording.of(Kind.CALL_BEGIN), recording.of(Kind.CALL_END)
    assert sorted(begun["call_id"]) == sorted(ended["call_id"])


def test_a_change_stands_right_behind_the_step_that_ended(recording: Recording) -> None:
    kinds = recording.records["kind"]
    for at in np.flatnonzero(kinds == Kind.DETAIL):
        assert kinds[at - 1] in (Kind.STEP, Kind.DETAIL)


def test_what_was_switched_off_for_good_is_brought_back_by_no_order(tmp_path: Path) -> None:
    script = """
tap.enable(ALL)
order(1, EVENTS, 0)
step(0)
tap.enable(What.CALLS | What.STACKS, False)
order(2, FULL, 0)
step(1); step(2)
assert taken() == 2
tap.close()
"""
    recording = record_process(PAGE + script, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    assert not len(recording.of(Kind.CALL_BEGIN)[1:])


def test_a_process_whose_steps_are_calls_of_the_model_refuses(tmp_path: Path) -> None:
    script = """
tap.enable(ALL)
import rankmem_agent.hooks.module_frames as frames
model = torch.nn.Linear(4, 4)
reader = tap.module_reader()
assert reader is not None and frames.follow(reader, lambda module: 0)
reader.watch_calls(lambda module, args, kwargs, answered: 1, tap.intern("model call"))
order(1, EVENTS, 0)
with torch.no_grad():
    for _ in range(3):
        model(torch.ones(1, 4))
tap.close()
"""
    recording = record_process(PAGE + script, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    (change,) = named(recording.of(Kind.DETAIL), Kind.DETAIL)
    assert (change["outcome"], change["detail"]) == (Outcome.REFUSED, Detail.FULL)


def test_a_training_without_an_optimizer_refuses_since_only_operators_show_its_steps(tmp_path: Path) -> None:
    script = (
        CALLS_OF_MODELS
        + """
model = torch.nn.Linear(4, 4)
for number in range(6):
    if number == 2: order(1, EVENTS, 0)
    model(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
calls.finish()
assert not guard.failures
tap.stop_stacks()
tap.close()
"""
    )
    recording = record_process(PAGE + script, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    (change,) = named(recording.of(Kind.DETAIL), Kind.DETAIL)
    assert (change["outcome"], change["detail"]) == (Outcome.REFUSED, Detail.FULL)
    assert len(recording.of(Kind.STEP)) == 6


def test_an_order_that_a_later_one_ends_or_that_is_one_too_many_is_over_and_not_forgotten(
    tmp_path: Path,
) -> None:
    script = """
tap.enable(ALL)
for number in range(24):
    if number < 9: order(number + 1, EVENTS, 100 + number, 100 + number)
    if number == 10: order(10, EVENTS, 12, 14)
    if number == 12: order(11, FULL, 13)
    if number == 14: order(12, EVENTS, 16, 40)
    if 15 <= number < 23: order(number - 2, EVENTS, 100, 101)
    step(number)
tap.close()
"""
    recording = record_process(PAGE + script, tmp_path, is_forked=True)
    assert recording.returncode == 0, recording.stderr
    full, events = Detail.FULL, Detail.EVENTS
    applied, over = Outcome.APPLIED, Outcome.OVER
    assert changes_of(recording) == [
        (1, over, 9, full),
        (2, over, 11, full),
        (10, applied, 12, events),
        (11, applied, 13, full),
        *((number, over, 13, full) for number in range(3, 11)),
        (12, applied, 16, events),
        (12, over, 23, full),
    ]
