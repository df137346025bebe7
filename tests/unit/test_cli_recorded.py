"""Notes and cells of what a session was told not to record."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rankmem_cli import columns, recorded
from rankmem_cli.target import SessionFacts

ALL = ("operators", "stacks", "modules")


def facts(*not_recorded: str, detail: str | None = "full") -> SessionFacts:
    """A session whose ranks had these switched off, each different list once."""
    sets = tuple(frozenset(filter(None, off.split(","))) for off in not_recorded)
    return SessionFacts(session_id="s", name=None, started_ns=0, detail=detail, not_recorded=sets)


@pytest.mark.parametrize("session", [facts(), facts(""), facts(detail=None)])
def test_a_session_with_everything_or_from_before_says_nothing(session: SessionFacts) -> None:
    assert recorded.notes(session, ALL) == []
    assert recorded.outside(session, "operators") == "(outside of operators)"
    assert recorded.shown(columns.ops(), session) == columns.ops()


def test_what_was_switched_off_is_named_with_its_switch() -> None:
    assert recorded.notes(facts("operators,stacks,modules", detail="events"), ("modules", "operators")) == [
        "no modules were recorded (RANKMEM_DETAIL=events)",
        "no operators were recorded (RANKMEM_DETAIL=events)",
    ]
    assert recorded.notes(facts("stacks"), ALL) == ["no stacks were recorded (RANKMEM_STACKS=off)"]


def test_ranks_that_differ_are_not_said_to_be_alike() -> None:
    session = facts("", "modules")
    assert recorded.notes(session, ALL) == ["some ranks recorded no modules (RANKMEM_MODULES=off)"]
    assert recorded.outside(session, "modules") == "(outside of modules) or (not recorded)"


def test_ranks_of_different_levels_are_told_with_each_switch_but_full() -> None:
    session = facts("", "operators,stacks,modules", "stacks,modules", detail="events, full, operators")
    assert recorded.notes(session, ("operators",)) == [
        "some ranks recorded no operators (RANKMEM_DETAIL=events and operators)"
    ]


def test_brackets_around_a_line_are_explained_where_there_are_any() -> None:
    assert recorded.of_lines(pa.table({"line": ["train.py:3", None], "operator": ["[x]", "y"]})) == []
    assert recorded.of_lines(pa.table({"operator": ["[x]"]})) == []
    [note] = recorded.of_lines(pa.table({"line": ["train.py:3", "[torch/nn/functional.py:7]"]}))
    assert "no frame of the project" in note
