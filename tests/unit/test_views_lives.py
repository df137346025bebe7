"""When ranks and sessions are over, and which steps were recorded in summary: views against plain Python."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from constructed import BASE_NS, SECOND_NS, store_rows
from rankmem_protos.tables import TABLES
from repetitions import seeds

Row = dict[str, Any]
KEY = ("session_id", "attempt", "rank")
DEVICES = ("cpu", "cuda:0", "cuda:1")


def ranks_of(chance: random.Random) -> list[Row]:
    """Ranks of two sessions, some of which never reported their end."""
    made = []
    for session in ("one", "two"):
        for attempt in range(chance.randint(1, 3)):
            for rank in range(chance.randint(0, 3)):
                started = BASE_NS + chance.randint(0, 9) * SECOND_NS
                made.append(
                    {
                        "session_id": session,
                        "attempt": attempt,
                        "rank": rank,
                        "host_uid": f"host-{rank % 2}",
                        "started_at_ns": started,
                        "ended_at_ns": chance.choice([None, started + SECOND_NS]),
                        "clock_offset_ns": chance.randint(-3, 3),
                        "events": chance.choice([None, 5]),
                        "not_recorded": chance.choice([None, "", "stacks"]),
                        "detail": chance.choice([None, "full", "auto"]),
                    }
                )
    return made


def changes_of(chance: random.Random, rank: Row) -> list[Row]:
    """Turns between full detail and summary, each of some steps."""
    step, made = 0, []
    for number in range(chance.randint(0, 4)):
        step += chance.randint(1, 3)
        made.append(
            {
                **{name: rank[name] for name in KEY},
                "order_id": number,
                "outcome": "applied",
                "detail": chance.choice(["full", "summary"]),
                "step": step,
                "seq": 10 * step,
                "time_ns": BASE_NS + step,
            }
        )
    return made


def buckets_of(chance: random.Random, rank: Row) -> list[Row]:
    """Steps of some devices; many are as high as others."""
    return [
        {
            **{name: rank[name] for name in KEY},
            "device": device,
            "step": step,
            "peak_bytes": 100 * chance.randint(1, 3),
        }
        for device in DEVICES
        if chance.random() < 0.7
        for step in range(chance.randint(0, 9))
    ]


def stored(connection: duckdb.DuckDBPyConnection, table: str, rows: list[Row]) -> None:
    """Stores rows, whose other columns are NULL, or where they may not be 0 or empty."""
    needed = {
        column.name: 0 if pa.types.is_integer(column.type) else ""
        for column in TABLES[table].columns
        if not column.nullable
    }
    store_rows(connection, table, [{**needed, **row} for row in rows])


def asked(connection: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return connection.execute(sql).fetchall()


def summary_steps(changes: list[Row]) -> set[int]:
    """The steps up to the hundredth that were recorded in summary."""
    found: set[int] = set()
    for change, later in zip(changes, [*changes[1:], None], strict=True):
        if change["detail"] == "summary":
            found |= set(range(change["step"], 100 if later is None else later["step"]))
    return found


@pytest.mark.parametrize("seed", seeds(60))
def test_a_rank_is_over_when_it_ended_or_a_later_attempt_began(
    database: duckdb.DuckDBPyConnection, seed: int
) -> None:
    ranks = ranks_of(random.Random(seed))
    stored(database, "rank_info", ranks)
    began: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in ranks:
        began[row["session_id"], row["attempt"]].append(row["started_at_ns"] + row["clock_offset_ns"])
    expected = {}
    for row in ranks:
        later = [
            at
            for (session, attempt), starts in began.items()
            if session == row["session_id"] and attempt > row["attempt"]
            for at in starts
        ]
        own = None if row["ended_at_ns"] is None else row["ended_at_ns"] + row["clock_offset_ns"]
        expected[tuple(row[name] for name in KEY)] = own if own is not None else min(later, default=None)
    spans = asked(database, "SELECT session_id, attempt, rank, ended_ns FROM rank_span")
    assert {(session, attempt, rank): ended for session, attempt, rank, ended in spans} == expected
    over = asked(database, "SELECT session_id, attempt, rank, is_over FROM rank_over")
    assert {(session, attempt, rank): is_over for session, attempt, rank, is_over in over} == {
        key: ended is not None for key, ended in expected.items()
    }


@pytest.mark.parametrize("seed", seeds(60))
def test_the_highest_step_of_a_host_s_devices_is_known_to_be_full_or_not(
    database: duckdb.DuckDBPyConnection, seed: int
) -> None:
    chance = random.Random(seed)
    ranks = ranks_of(chance)
    changes = {tuple(rank[name] for name in KEY): changes_of(chance, rank) for rank in ranks}
    buckets = [bucket for rank in ranks for bucket in buckets_of(chance, rank)]
    stored(database, "rank_info", ranks)
    stored(database, "control_change", [row for rows in changes.values() for row in rows])
    stored(database, "step_bucket", buckets)
    hosts: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for bucket in buckets:
        key = tuple(bucket[name] for name in KEY)
        if any(change["detail"] == "summary" for change in changes[key]):
            kind = bucket["device"].partition(":")[0]
            hosts[bucket["session_id"], bucket["attempt"], f"host-{bucket['rank'] % 2}", kind].append(bucket)
    expected = []
    for (session, attempt, host, _), steps in hosts.items():
        highest = max(steps, key=lambda b: (b["peak_bytes"], -b["rank"], _reversed(b["device"])))
        reduced = summary_steps(changes[session, attempt, highest["rank"]])
        own = [b for b in steps if (b["rank"], b["device"]) == (highest["rank"], highest["device"])]
        top = max(own, key=lambda b: (b["peak_bytes"], b["step"] not in reduced, -b["step"]))
        full = max(
            (b for b in own if b["step"] not in reduced),
            key=lambda b: (b["peak_bytes"], -b["step"]),
            default={"step": None, "peak_bytes": None},
        )
        of_top = (top["step"], top["peak_bytes"], top["step"] not in reduced)
        of_full = (full["step"], full["peak_bytes"])
        expected.append((session, attempt, host, highest["rank"], highest["device"], *of_top, *of_full))
    found = asked(
        database,
        "SELECT session_id, attempt, host_uid, rank, device, peak_step, peak_bytes, is_full, full_step, "
        "full_bytes FROM detail_peak",
    )
    assert sorted(found, key=repr) == sorted(expected, key=repr)


def _reversed(text: str) -> tuple[int, ...]:
    """Orders texts from the last to the first."""
    return tuple(-ord(letter) for letter in text)


@pytest.mark.parametrize("seed", seeds(30))
def test_the_facts_of_a_session_are_those_of_its_overview(
    database: duckdb.DuckDBPyConnection, seed: int
) -> None:
    chance = random.Random(seed)
    ranks = ranks_of(chance)
    sessions = [{"session_id": name, "name": name, "source": "live"} for name in ("one", "two", "empty")]
    stored(database, "session", sessions)
    stored(database, "rank_info", ranks)
    names = "session_id, state, started_ns, ended_ns, num_ranks, events, detail, not_recorded, was_reduced"
    facts = asked(database, f"SELECT {names} FROM session_facts ORDER BY session_id")
    assert facts == asked(database, f"SELECT {names} FROM session_overview ORDER BY session_id")
    for session, state, _, _, num_ranks, events, *_ in facts:
        own = [row for row in ranks if row["session_id"] == session]
        assert num_ranks == len({row["rank"] for row in own})
        assert events == sum(row["events"] or 0 for row in own)
        last = [row for row in own if row["attempt"] == max(each["attempt"] for each in own)]
        runs = not own or any(row["ended_at_ns"] is None for row in last)
        assert state == ("running" if runs else "ended")
