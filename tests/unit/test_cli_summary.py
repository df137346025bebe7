"""The summary at the end of a run."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_cli.show.summary import print_summary

START_NS = 1_795_264_702_000_000_000
GIB = 1 << 30
GIVEN = GivenOptions(source=(("--db", "x.duckdb"),), session="s")


class Stored:
    """The answers of a session of ``num_ranks`` ranks, of which rank r peaks at (r + 1) GiB."""

    stale = ""
    given_options = GivenOptions()

    def __init__(
        self,
        num_ranks: int,
        *,
        device_types: tuple[str, ...] = ("cuda",),
        incomplete: int = -1,
        absent: int = -1,
    ) -> None:
        self.num_ranks = num_ranks
        self.absent = absent
        self.device_types = device_types
        self.incomplete = incomplete
        self.failed: list[dict[str, Any]] = []
        self.missing: list[dict[str, Any]] = []
        self.steady: dict[int, dict[str, int]] = {}

    def session_facts(self, session: str) -> dict[str, Any]:
        return {"session_id": session, "name": "gpt", "started_ns": START_NS}

    def ranks(self, session: str) -> pa.Table:
        rows = [
            {
                "rank": r,
                "events": 1000,
                "events_lost": 5 * (r == self.incomplete),
                "complete": r != self.incomplete,
                "state": "never reported" if r == self.absent else "exit",
                **self.steady.get(r, {}),
            }
            for r in range(self.num_ranks)
        ]
        return pa.Table.from_pylist(rows, schema=RANKS if self.steady else RANKS_OF_OLDER_VERSION)

    def peak(self, session: str) -> pa.Table:
        rows = [
            {
                "rank": rank,
                "host_name": f"node{rank // 8}",
                "device": f"{kind}:0",
                "device_type": kind,
                "peak_requested_bytes": (rank + 1) * GIB,
                "peak_time_ns": START_NS + 10**9,
                "complete": True,
                "is_rank_peak": attempt == 1,
            }
            for attempt in (1, 0)
            for kind in self.device_types
            for rank in reversed(range(self.num_ranks))
        ]
        return pa.Table.from_pylist(rows) if rows else pa.table({"is_rank_peak": pa.array([], pa.bool_())})

    def job_peak(self, session: str) -> pa.Table:
        rows = [
            {"device_type": kind, "job_peak_bytes": 42 * GIB, "job_peak_ns": START_NS + 2 * 10**9}
            for kind in self.device_types
        ]
        return pa.Table.from_pylist(rows)

    def oom(self, session: str) -> pa.Table:
        return pa.Table.from_pylist(self.failed)

    def incompleteness(self, session: str) -> pa.Table:
        return pa.Table.from_pylist(self.missing)

    def ops(self, session: str, **options: Any) -> pa.Table:
        return pa.table({"operator": ["aten::mm\x1b[2J", None], "live_bytes_at_peak": [3 * GIB, GIB]})


RANKS_OF_OLDER_VERSION = pa.schema(
    [
        ("rank", pa.int32()),
        ("events", pa.int64()),
        ("events_lost", pa.int64()),
        ("complete", pa.bool_()),
        ("state", pa.string()),
    ]
)
STEADY = (
    "num_steps", "steady_steps", "template_blocks", "prefix_blocks", "evidence_blocks", "steady_misses",
    "audit_differences",
)  # fmt: skip
RANKS = pa.schema([*RANKS_OF_OLDER_VERSION, *((name, pa.int64()) for name in STEADY)])


def summary_of(stored: Stored, capsys: pytest.CaptureFixture[str]) -> str:
    print_summary(stored, "s", GIVEN)  # type: ignore[arg-type]
    out, err = capsys.readouterr()
    assert out == "", "stdout belongs to the training"
    return err


def test_hundreds_of_ranks_fit_on_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    text = summary_of(Stored(256), capsys)
    assert "256 ranks, 256,000 events, 0 lost, all complete" in text
    assert "… and 248 more: rankmem peak --db x.duckdb --session s\n" in text
    assert "spread over 256: 255.00 GiB between rank 255 and rank 0 (99.6% of the highest)" in text
    assert "job's peak (cuda, all ranks at one instant): 42.00 GiB at +2.000 s" in text
    assert "--db x.duckdb" in text
    assert len(text.splitlines()) < 20


def test_nothing_is_called_complete_while_some_is_not_stored(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(Stored(4), "s", GIVEN, is_delivered=False)  # type: ignore[arg-type]
    err = capsys.readouterr().err
    assert "4,000 events, 0 lost so far, not everything is stored yet" in err
    assert "complete" not in err


def test_one_rank_has_no_spread(capsys: pytest.CaptureFixture[str]) -> None:
    text = summary_of(Stored(1), capsys)
    assert "1 rank, 1,000 events" in text
    assert "spread" not in text


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "5 lost, incomplete: rank 2" in summary_of(Stored(4, incomplete=2), capsys)


def test_a_rank_that_never_reported_is_named_and_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    text = summary_of(Stored(4, absent=3), capsys)
    assert "3 ranks, 3,000 events, 0 lost, never reported: rank 3" in text


def test_operators_are_made_safe(capsys: pytest.CaptureFixture[str]) -> None:
    text = summary_of(Stored(2), capsys)
    assert "\x1b" not in text
    assert "held at the peak of rank 1: aten::mm\\x1b[2J 3.00 GiB, (outside of operators) 1.00 GiB" in text


def test_each_kind_of_device_is_summed_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    text = summary_of(Stored(2, device_types=("cuda", "cpu")), capsys)
    assert text.count("spread over 2") == 2
    assert "job's peak (cuda" in text
    assert "job's peak (cpu" in text


def test_a_session_without_events_is_reported_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no allocator events were recorded" in summary_of(Stored(0), capsys)


def steady(*figures: int) -> dict[str, int]:
    return dict(zip(STEADY, figures, strict=True))


def test_steps_that_were_not_observed_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    stored = Stored(1)
    stored.steady = {0: steady(400, 391, 45_162, 12, 140, 2, 0)}
    assert (
        "rank 0: calls were not observed in 391 of 400 steps, known from earlier ones (RANKMEM_STEADY): "
        "45,162 blocks are known by template, 12 by the beginning of one, 140 by evidence; 2 misses, audits "
        "found no difference\n"
    ) in summary_of(stored, capsys)


def test_of_many_ranks_their_blocks_are_added_up(capsys: pytest.CaptureFixture[str]) -> None:
    stored = Stored(4)
    stored.steady = {rank: steady(400, 390 + rank, 1000, 0, 0, int(rank == 1), rank) for rank in (0, 1, 2)}
    assert (
        "ranks 0 to 2: calls were not observed in 390 to 392 of 400 steps, known from earlier ones "
        "(RANKMEM_STEADY): 3,000 blocks are known by template; 1 miss, audits found 3 differences\n"
    ) in summary_of(stored, capsys)


def test_nothing_is_said_where_every_step_was_observed(capsys: pytest.CaptureFixture[str]) -> None:
    assert "RANKMEM_STEADY" not in summary_of(Stored(2), capsys)
