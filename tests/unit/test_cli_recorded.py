"""Notes and placeholders for what a session had switched off."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from rankmem_cli.show import columns, not_recorded
from rankmem_cli.show.session import SessionFacts
from rankmem_protos.errors import Code, RankmemError

ALL = ("operators", "stacks", "modules")


def facts(*not_recorded: str, detail: str | None = "full") -> SessionFacts:
    """A session whose ranks had these switched off, each different list once."""
    sets = tuple(frozenset(filter(None, off.split(","))) for off in not_recorded)
    return SessionFacts(session_id="s", name=None, started_ns=0, detail=detail, not_recorded=sets)


@pytest.mark.parametrize("session", [facts(), facts(""), facts(detail=None)])
def test_a_session_with_everything_or_from_an_older_version_has_no_notes(session: SessionFacts) -> None:
    assert not_recorded.notes(session, ALL) == []
    assert not_recorded.placeholder(session, "operators") == "(outside of operators)"
    assert not_recorded.with_placeholders(columns.ops(), session) == columns.ops()


def test_what_was_switched_off_is_named_with_its_switch() -> None:
    assert not_recorded.notes(
        facts("operators,stacks,modules", detail="events"), ("modules", "operators")
    ) == [
        "no modules were recorded (RANKMEM_DETAIL=events)",
        "no operators were recorded (RANKMEM_DETAIL=events)",
    ]
    for detail in ("full", "auto"):
        noted = not_recorded.notes(facts("stacks", detail=detail), ALL)
        assert noted == ["no stacks were recorded (RANKMEM_STACKS=off)"]


def test_ranks_that_differ_are_not_reported_as_alike() -> None:
    session = facts("", "modules")
    assert not_recorded.notes(session, ALL) == ["some ranks recorded no modules (RANKMEM_MODULES=off)"]
    assert not_recorded.placeholder(session, "modules") == "(outside of modules) or (not recorded)"


def test_a_name_that_is_absent_may_be_of_steps_in_which_none_was_recorded() -> None:
    session = dataclasses.replace(facts(""), was_reduced=True)
    assert not_recorded.notes(session, ALL) == [], "the steps are named with what is incomplete"
    assert not_recorded.placeholder(session, "operators") == "(outside of operators) or (not recorded)"
    assert not_recorded.with_placeholders(columns.ops(), session) != columns.ops()


def test_ranks_of_different_levels_are_noted_with_each_switch_but_full() -> None:
    session = facts("", "operators,stacks,modules", "stacks,modules", detail="events, full, operators")
    assert not_recorded.notes(session, ("operators",)) == [
        "some ranks recorded no operators (RANKMEM_DETAIL=events and operators)"
    ]


def test_brackets_around_a_line_are_explained_where_there_are_any() -> None:
    assert (
        not_recorded.bracket_notes(pa.table({"line": ["train.py:3", None], "operator": ["[x]", "y"]})) == []
    )
    assert not_recorded.bracket_notes(pa.table({"operator": ["[x]"]})) == []
    [note] = not_recorded.bracket_notes(pa.table({"line": ["train.py:3", "[torch/nn/functional.py:7]"]}))
    assert "no frame of the project" in note


@pytest.mark.parametrize("source", ["nsys", "nvprof"])
def test_an_answer_without_memory_points_to_the_kernels(source: str) -> None:
    session = SessionFacts(session_id="0SESSION0001", name=None, started_ns=0, source=source)
    first, second = not_recorded.kernel_hints(session)
    assert first.endswith("rankmem sql \"FROM kernel_total('0SESSION0001', of_group := 'operator')\"")
    assert "short_name" in second
    with pytest.raises(RankmemError) as caught, not_recorded.hinting_at_kernels(session):
        raise RankmemError(Code.NOT_FOUND, "no events", "rankmem ranks")
    assert caught.value.hint == first


@pytest.mark.parametrize(("source", "events"), [("live", 0), ("nsys", 3), ("kineto", 0)])
def test_other_sessions_have_no_kernels_to_point_to(source: str, events: int) -> None:
    session = SessionFacts(session_id="s", name=None, started_ns=0, source=source, events=events)
    assert not_recorded.kernel_hints(session) == []
    with pytest.raises(RankmemError) as caught, not_recorded.hinting_at_kernels(session):
        raise RankmemError(Code.NOT_FOUND, "no events", "rankmem ranks")
    assert caught.value.hint == "rankmem ranks"
