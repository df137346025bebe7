"""What is kept: whole sessions, oldest first, never one that may go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_aggregator.ingest.stack_ids import STACK_COLUMNS
from rankmem_aggregator.retention import delete as prune
from rankmem_aggregator.retention.limits import (
    NS_PER_DAY,
    NS_PER_S,
    RESTART_S,
    SILENT_S,
    Limits,
    StoredSession,
    sessions_due,
)
from rankmem_aggregator.sql import statement_text
from rankmem_aggregator.store.schema import ALL_TABLES

NOW_NS = 1_800_000_000 * NS_PER_S


def session(name: str, age_s: float, *, final: bool = True) -> StoredSession:
    return StoredSession(session_id=name, last_ns=NOW_NS - int(age_s * NS_PER_S), final=final)


def names(due: list[StoredSession]) -> list[str]:
    return [one.session_id for one in due]


def test_sessions_older_than_the_limit_go_oldest_first() -> None:
    stored = [session("a", 9 * 86_400), session("b", 8 * 86_400), session("c", 6 * 86_400)]
    assert names(sessions_due(stored, Limits(days=7), now_ns=NOW_NS, used_bytes=0)) == ["a", "b"]


def test_of_a_limit_in_bytes_one_session_goes_at_a_time() -> None:
    stored = [session("a", 9000), session("b", 8000)]
    limits = Limits(size_bytes=100)
    assert names(sessions_due(stored, limits, now_ns=NOW_NS, used_bytes=101)) == ["a"]
    assert names(sessions_due(stored, limits, now_ns=NOW_NS, used_bytes=100)) == []


def test_the_newest_sessions_stay_and_those_that_run_count_among_them() -> None:
    stored = [session("a", 9000), session("b", 8000), session("c", 1, final=False)]
    assert names(sessions_due(stored, Limits(sessions=2), now_ns=NOW_NS, used_bytes=0)) == ["a"]


@pytest.mark.parametrize(
    ("age_s", "final", "is_over"),
    [
        (RESTART_S - 1, True, False),
        (RESTART_S + 1, True, True),
        (RESTART_S + 1, False, False),
        (SILENT_S - 1, False, False),
        (SILENT_S + 1, False, True),
    ],
)
def test_a_session_is_over_some_time_after_its_last_word(age_s: float, final: bool, is_over: bool) -> None:
    assert session("a", age_s, final=final).is_over(NOW_NS) is is_over


@given(
    ages=st.lists(st.tuples(st.floats(0, 30 * 86_400), st.booleans()), max_size=12),
    days=st.sampled_from([0.0, 0.01, 1.0, 7.0]),
    keep=st.integers(0, 5),
    size_bytes=st.sampled_from([0, 100]),
    used_bytes=st.sampled_from([0, 100, 101]),
)
def test_what_goes_is_over_and_older_than_all_that_are_kept_for_the_same_reason(
    ages: list[tuple[float, bool]], days: float, keep: int, size_bytes: int, used_bytes: int
) -> None:
    ordered = sorted(ages, key=lambda one: -one[0])
    stored = [session(str(n), age, final=final) for n, (age, final) in enumerate(ordered)]
    limits = Limits(days=days, sessions=keep, size_bytes=size_bytes)
    due = sessions_due(stored, limits, now_ns=NOW_NS, used_bytes=used_bytes)
    assert all(one.is_over(NOW_NS) for one in due)
    assert [one for one in stored if one in due] == due
    kept = [one for one in stored if one not in due]
    if days:
        assert not [one for one in kept if one.is_over(NOW_NS) and NOW_NS - one.last_ns > days * NS_PER_DAY]
    if keep:
        assert len([one for one in kept if one.is_over(NOW_NS)]) <= keep
    if not limits.are_set:
        assert due == []
    if size_bytes and used_bytes > size_bytes and any(one.is_over(NOW_NS) for one in stored):
        assert due


def test_every_column_that_names_a_stack_keeps_it() -> None:
    """A stack that only another column names would lose its frames, and no shipper sends them again."""
    text = statement_text("prune", "unreferenced_stacks")
    for table, columns in STACK_COLUMNS.items():
        for column in columns:
            assert table == "stack_frame" or f"DISTINCT {column} FROM {table}\n" in text, (table, column)


def test_every_table_of_a_session_is_emptied() -> None:
    in_steps = {table.name for table in (*prune._AT_ONCE, *prune._IN_SLICES)}
    of_sessions = {name for name, table in ALL_TABLES.items() if "session_id" in table.column_names()}
    assert of_sessions - in_steps == {"pruned_spool"}
