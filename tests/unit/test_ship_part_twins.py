"""Which block of an earlier step each block is like, out of what the tap says of whole parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankmem_agent.spool.layout import UNKNOWN, Action, Course, Kind
from rankmem_ship.parts import Likeness, parts_of, twins_of
from rankmem_ship.spool_reader.segments import RECORD_DTYPE, named


class Log:
    """Records of blocks and parts; each block is known by its index among the blocks."""

    def __init__(self) -> None:
        self._records: list[Any] = []

    def blocks(self, count: int, thread: int = 1) -> None:
        for _ in range(count):
            self._add(Kind.EVENT, thread, action=Action.ALLOC)
            self._add(Kind.EVENT, thread, action=Action.FREE_COMPLETED)

    def part(
        self, course: Course, step: int, position: int, like: int = UNKNOWN, thread: int = 1, nodes: int = 0
    ) -> None:
        fields = {"step": step, "position": position, "like_step": like, "nodes_of": nodes}
        self._add(Kind.PART, thread, course=course, **fields)

    def known(self, step: int, count: int, thread: int = 1) -> None:
        """A whole part that is like no other."""
        self.part(Course.DIFFERS, step, 0, thread=thread)
        self.blocks(count, thread)
        self.part(Course.ENDS, step, count, step, thread)

    def alike(self, step: int, count: int, like: int, thread: int = 1) -> None:
        """A whole part that is like that of an earlier step."""
        self.part(Course.FOLLOWS, step, 0, like, thread)
        self.blocks(count, thread)
        self.part(Course.ENDS, step, count, like, thread)

    def backward(self, step: int, like: int, thread: int = 2, nodes_of: int = 1) -> None:
        """A part of one block, in a node of another thread."""
        self.part(Course.DIFFERS if step == like else Course.FOLLOWS, step, 0, like, thread, nodes_of)
        self.blocks(1, thread)
        self.part(Course.ENDS, step, 1, like, thread, nodes_of)

    def records(self) -> Any:
        return np.concatenate(self._records)

    def twins(self) -> list[tuple[int, int, Likeness]]:
        """By the blocks' own numbers."""
        records = self.records()
        is_block = (records["kind"] == Kind.EVENT) & (records["action"] == Action.ALLOC)
        number = np.cumsum(is_block) - 1
        return [(int(number[b]), int(number[t]), Likeness(how)) for b, t, how in twins_of(records).tolist()]

    def _add(self, kind: Kind, thread: int, **fields: int) -> None:
        record = np.zeros(1, RECORD_DTYPE)
        record["kind"], record["thread"] = kind, thread
        for name, value in fields.items():
            named(record, kind)[name] = value
        self._records.append(record)


def test_a_block_of_an_equal_part_has_the_block_in_its_place_as_its_twin() -> None:
    log = Log()
    log.known(0, 3)
    log.alike(1, 3, like=0)
    log.alike(2, 3, like=0)
    twins = [(3, 0), (4, 1), (5, 2), (6, 0), (7, 1), (8, 2)]
    assert log.twins() == [(block, twin, Likeness.WHOLE) for block, twin in twins]


def test_each_thread_has_its_own_parts_whatever_comes_between() -> None:
    log = Log()
    log.part(Course.DIFFERS, 0, 0, thread=1)
    log.blocks(1, 1)
    log.known(0, 2, thread=2)
    log.blocks(1, 1)
    log.part(Course.ENDS, 0, 2, 0, thread=1)
    log.part(Course.FOLLOWS, 1, 0, 0, thread=1)
    log.blocks(1, 1)
    log.alike(1, 2, like=0, thread=2)
    log.blocks(1, 1)
    log.part(Course.ENDS, 1, 2, 0, thread=1)
    assert [(block, twin) for block, twin, _ in log.twins()] == [(4, 0), (5, 1), (6, 2), (7, 3)]


def test_a_part_that_leaves_another_one_is_like_its_beginning_and_known_from_then_on() -> None:
    log = Log()
    log.known(0, 4)
    log.part(Course.FOLLOWS, 1, 0, 0)
    log.blocks(2)
    log.part(Course.DIFFERS, 1, 2)
    log.blocks(1)
    log.part(Course.ENDS, 1, 3, 1)
    log.alike(2, 3, like=1)
    beginning, whole = Likeness.BEGINNING, Likeness.WHOLE
    assert log.twins() == [
        (4, 0, beginning), (5, 1, beginning), (7, 4, whole), (8, 5, whole), (9, 6, whole),
    ]  # fmt: skip


def test_a_part_that_goes_over_to_another_one_is_like_that_as_a_whole() -> None:
    log = Log()
    log.known(0, 3)
    log.known(1, 3)
    log.part(Course.FOLLOWS, 2, 0, 0)
    log.blocks(2)
    log.part(Course.FOLLOWS, 2, 2, 1)
    log.blocks(1)
    log.part(Course.ENDS, 2, 3, 1)
    assert log.twins() == [(6, 3, Likeness.WHOLE), (7, 4, Likeness.WHOLE), (8, 5, Likeness.WHOLE)]


def test_a_part_whose_end_is_not_in_the_log_is_like_a_beginning() -> None:
    log = Log()
    log.known(0, 3)
    log.part(Course.FOLLOWS, 1, 0, 0)
    log.blocks(2)
    assert log.twins() == [(3, 0, Likeness.BEGINNING), (4, 1, Likeness.BEGINNING)]
    *_, last = parts_of(log.records())
    assert last.like_step is None


def test_a_part_with_a_block_too_few_or_too_many_in_the_log_is_like_none_and_none_is_like_it() -> None:
    for there in (2, 4):
        log = Log()
        log.part(Course.DIFFERS, 0, 0)
        log.blocks(there)
        log.part(Course.ENDS, 0, 3, 0)
        log.alike(1, 3, like=0)
        assert log.twins() == []


def test_a_part_that_was_spoilt_is_like_none() -> None:
    log = Log()
    log.known(0, 3)
    log.part(Course.FOLLOWS, 1, 0, 0)
    log.blocks(1)
    log.part(Course.DIFFERS, 1, 1)
    log.blocks(2)
    log.part(Course.ENDS, 1, 1)
    log.alike(2, 3, like=1)
    assert [(block, twin) for block, twin, _ in log.twins()] == [(3, 0)]


def test_two_parts_of_one_step_are_not_taken_for_each_other() -> None:
    log = Log()
    log.known(0, 2)
    log.known(0, 2)
    log.alike(1, 2, like=0)
    assert log.twins() == []


def test_a_log_in_which_nothing_was_compared_has_no_parts() -> None:
    log = Log()
    log.blocks(3)
    assert log.twins() == []
    assert list(parts_of(log.records())) == []


def test_a_forward_is_like_another_one_if_its_backward_in_another_thread_is_too() -> None:
    log = Log()
    log.known(0, 1)
    log.backward(0, like=0)
    log.alike(1, 1, like=0)
    log.backward(1, like=0)
    log.alike(2, 1, like=0)
    log.backward(2, like=2)
    log.alike(3, 1, like=0)
    log.backward(3, like=2)
    log.alike(4, 1, like=0)  # whose backward is not in the log
    whole, beginning = Likeness.WHOLE, Likeness.BEGINNING
    forward = [(block, how) for block, twin, how in log.twins() if twin == 0]
    assert forward == [(2, whole), (4, beginning), (6, beginning), (8, beginning)]
