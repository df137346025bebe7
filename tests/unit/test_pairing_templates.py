"""Templates: what pairing learns of parts of steps, and what a block of an unobserved call takes over."""

from __future__ import annotations

from typing import Any

import numpy as np

from rankmem_ship.pairing.comparing import Comparison, EndedPart
from rankmem_ship.pairing.state import (
    ABSENT,
    BLOCK_DTYPE,
    COMPARED_DTYPE,
    LIFE_DTYPE,
    PART_DTYPE,
    STEP_END_DTYPE,
    TEMPLATE_DTYPE,
    Known,
)
from rankmem_ship.pairing.templates import WAIT_NS, learn, take_over

THREAD = 1
OPERATORS = (11, 12, 13)
OTHER = 99
NONE: Any = np.zeros(0, TEMPLATE_DTYPE)


def comparison(step: int, first_id: int, *, like: int | None = None, follows: int = ABSENT) -> Comparison:
    """A part of as many blocks as there are operators, ended unless ``like`` is None."""
    blocks = np.zeros(len(OPERATORS), COMPARED_DTYPE)
    blocks["allocation_id"] = first_id + np.arange(len(OPERATORS))
    blocks["part"], blocks["follows"], blocks["thread"] = step, follows, THREAD
    blocks["place"], blocks["died_steps"] = 1 + np.arange(len(OPERATORS)), ABSENT
    parts = np.zeros(1, PART_DTYPE)
    parts["thread"], parts["step"], parts["is_open"] = THREAD, step, like is None
    part = EndedPart(
        thread=THREAD, step=step, like_step=ABSENT if like is None else like, num_blocks=len(OPERATORS)
    )
    return Comparison(
        parts=parts, blocks=blocks, ended=() if like is None else (part,), lives=np.zeros(0, LIFE_DTYPE),
        step_ends=np.zeros(0, STEP_END_DTYPE), made_in_step=0,
    )  # fmt: skip


def blocks_of(first_id: int, by: Known, operators: tuple[int, ...] = OPERATORS) -> Any:
    blocks = np.zeros(len(operators), BLOCK_DTYPE)
    blocks["allocation_id"] = first_id + np.arange(len(operators))
    blocks["by"], blocks["like"], blocks["phase"] = by, ABSENT, ABSENT
    blocks["operator"] = operators if by is Known.OBSERVED else 0
    return blocks


def observed(templates: Any, step: int, like: int, operators: tuple[int, ...] = OPERATORS) -> Any:
    """After another part was observed."""
    blocks = blocks_of(100 * step, Known.OBSERVED, operators)
    return learn(templates, blocks, comparison(step, 100 * step, like=like))


def steady(templates: Any, compared: Comparison, now_ns: int = 0, *, final: bool = False) -> tuple[Any, Any]:
    """The blocks of a part that was not observed, and which of them wait."""
    waiting = blocks_of(900, Known.WAITS)
    holds = take_over(waiting, templates, compared, now_ns, final=final)
    return waiting, holds


def confirmed() -> Any:
    return observed(observed(NONE, 1, 1).templates, 2, 1).templates


def test_a_whole_part_takes_over_what_the_second_one_like_it_showed() -> None:
    waiting, holds = steady(confirmed(), comparison(9, 900, like=1, follows=1))
    assert not holds.any()
    assert waiting["operator"].tolist() == list(OPERATORS)
    assert waiting["like"].tolist() == [200, 201, 202]
    assert (waiting["by"] == Known.TEMPLATE).all()


def test_a_part_that_was_observed_once_says_nothing() -> None:
    waiting, _ = steady(observed(NONE, 1, 1).templates, comparison(9, 900, like=1, follows=1))
    assert (waiting["by"] == Known.NONE).all()
    assert not waiting["operator"].any()


def test_a_block_waits_for_the_end_of_its_part_but_no_longer_than_a_second() -> None:
    going_on = comparison(9, 900, follows=1)
    _, holds = steady(confirmed(), going_on, WAIT_NS)
    assert holds.all()
    for now_ns, final in ((WAIT_NS + 1, False), (0, True)):
        waiting, holds = steady(confirmed(), going_on, now_ns, final=final)
        assert not holds.any()
        assert (waiting["by"] == Known.TEMPLATE_PREFIX).all()
        assert waiting["operator"].tolist() == list(OPERATORS)


def test_a_part_that_is_like_none_in_the_end_has_what_its_beginning_said() -> None:
    waiting, _ = steady(confirmed(), comparison(9, 900, like=ABSENT, follows=1))
    assert (waiting["by"] == Known.TEMPLATE_PREFIX).all()


def test_another_operator_in_a_known_place_is_said_beside_the_first_one() -> None:
    learned = observed(confirmed(), 3, 1, (11, OTHER, 13))
    assert learned.differs["place"].tolist() == [2]
    rows = learned.templates[learned.templates["place"] == 2]
    assert (rows["operator"].tolist(), rows["other_operator"].tolist()) == ([12], [OTHER])
    assert not observed(learned.templates, 4, 1, (11, OTHER, 13)).differs.size  # known by now


def test_what_differs_before_anything_was_taken_over_is_no_difference_of_an_audit() -> None:
    learned = observed(observed(NONE, 1, 1).templates, 2, 1, (11, OTHER, 13))
    assert not learned.differs.size
    rows = learned.templates[learned.templates["place"] == 2]
    assert {int(rows["operator"][0]), int(rows["other_operator"][0])} == {12, OTHER}


def test_of_two_parts_with_one_name_neither_is_believed() -> None:
    twice = observed(observed(NONE, 1, 1).templates, 1, 1).templates
    assert not (twice["times"] != 0).any()


def test_what_another_thread_runs_nodes_for_is_never_more_than_a_beginning() -> None:
    compared = comparison(9, 900, like=1, follows=1)
    other = np.zeros(1, PART_DTYPE)
    other["thread"], other["nodes_of"] = THREAD + 1, THREAD
    apart = Comparison(
        parts=np.concatenate([compared.parts, other]), blocks=compared.blocks, ended=compared.ended,
        lives=compared.lives, step_ends=compared.step_ends, made_in_step=0,
    )  # fmt: skip
    waiting, _ = steady(confirmed(), apart)
    assert (waiting["by"] == Known.TEMPLATE_PREFIX).all()
