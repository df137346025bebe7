"""The ranks shown in metrics: those that hold most, never more than asked for, and nothing of who is gone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_aggregator.ingest.liveness import ALIVE_S
from rankmem_aggregator.ingest.rank_memory import CHOSEN_FOR_S, DeviceOfRank, RankMemory
from rankmem_protos.errors import RankmemError
from rankmem_protos.tables import TABLES

MIB = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def batch(
    rank: int,
    *held: int,
    attempt: int = 0,
    final: bool = False,
    reserved: int | None = None,
    device: str = "cuda:0",
) -> IncomingBatch:
    """A batch whose buckets end at these sizes, one after another; without any it has no events."""
    rows = [
        {
            "session_id": "S", "attempt": attempt, "rank": rank, "device": device, "bucket_ns": 0,
            "seq_first": seq, "seq_last": seq, "first_ns": 0, "last_ns": 0, "events": 1,
            "requested_peak_bytes": size + 1, "requested_peak_ns": 0, "requested_peak_seq": seq,
            "requested_last_bytes": size,
            "allocated_peak_bytes": None if reserved is None else size + 512,
            "allocated_last_bytes": None if reserved is None else size + 256, "reserved_last_bytes": reserved,
        }
        for seq, size in enumerate(held)
    ]  # fmt: skip
    buckets = pa.Table.from_pylist(rows, schema=TABLES["memory_bucket"].arrow_schema())
    return IncomingBatch(
        spool=Spool(spool_id=f"S-{attempt}-{rank}", session_id="S", attempt=attempt, rank=rank),
        batch_number=1, sequence_first=0, sequence_last=9, final=final,
        rows={"memory_bucket": buckets} if rows else {}, num_rows=len(rows), tallest_rows=1, size_bytes=1,
    )  # fmt: skip


def shown(memory: RankMemory) -> dict[int, int]:
    return {device.rank: held.used_bytes for device, held in memory.shown().held.items()}


def test_the_last_figures_and_the_highest_of_a_rank_are_shown() -> None:
    memory = RankMemory(4)
    memory.stored([batch(0, 9 * MIB, 2 * MIB), batch(1, 5, reserved=2 * MIB)])
    memory.stored([batch(0, 3 * MIB), batch(0), batch(0, 7, device="cuda:1")])
    found = memory.shown().held
    first = found[DeviceOfRank("S", 0, "cuda:0")]
    assert (first.used_bytes, first.peak_bytes, first.reserved_bytes) == (3 * MIB, 9 * MIB + 1, None)
    second = found[DeviceOfRank("S", 1, "cuda:0")]
    assert (second.used_bytes, second.peak_bytes, second.reserved_bytes) == (261, 517, 2 * MIB)
    assert found[DeviceOfRank("S", 0, "cuda:1")].used_bytes == 7


def test_of_a_thousand_ranks_those_that_hold_most_are_shown_and_all_are_counted() -> None:
    memory = RankMemory(3)
    memory.stored(batch(rank, rank) for rank in range(1_000))
    assert shown(memory) == {997: 997, 998: 998, 999: 999}
    found = memory.shown()
    assert (found.num_alive, found.used_bytes) == (1_000, sum(range(1_000)))


def test_however_the_highest_change_no_more_than_asked_for_are_shown_until_the_choice_is_over() -> None:
    clock = Clock()
    memory = RankMemory(3, clock)
    seen: set[int] = set()
    while clock.now_s < 1000.0 + CHOSEN_FOR_S:
        moment = int(clock.now_s)
        memory.stored(batch(rank, 1 + (rank * 37 + moment) % 101) for rank in range(50))
        memory.stored([batch(moment % 50, final=True)])
        seen |= set(shown(memory))
        clock.now_s += ALIVE_S / 2
    assert len(seen) == 3
    memory.stored([batch(77, 1000)])
    assert 77 in shown(memory)


def test_a_free_place_is_taken_at_once() -> None:
    memory = RankMemory(2)
    memory.stored([batch(0, 5)])
    assert shown(memory) == {0: 5}
    memory.stored([batch(1, 3), batch(2, 4)])
    assert shown(memory) == {0: 5, 2: 4}


def test_a_rank_that_ended_or_is_silent_is_not_shown_and_one_without_events_is() -> None:
    clock = Clock()
    memory = RankMemory(4, clock)
    memory.stored([batch(rank, 10 + rank) for rank in range(3)])
    memory.stored([batch(0, final=True)])
    clock.now_s += ALIVE_S
    memory.stored([batch(1)])
    assert shown(memory) == {1: 11, 2: 12}
    clock.now_s += 1
    assert shown(memory) == {1: 11}


def test_a_later_attempt_replaces_an_earlier_one_and_what_is_still_delivered_of_that_is_left_out() -> None:
    memory = RankMemory(4)
    memory.stored([batch(0, 100), batch(0, 5, attempt=1), batch(0, 100), batch(0, final=True)])
    (held,) = memory.shown().held.values()
    assert (held.used_bytes, held.peak_bytes) == (5, 6)


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path: Path) -> None:
    memory = RankMemory(0)
    memory.stored([batch(0, 5)])
    assert memory.shown().num_alive == 0
    with pytest.raises(RankmemError, match="--metrics-ranks is 1001, must be at most 1000"):
        AggregatorConfig(database_path=tmp_path / "x", metrics_ranks=1001)
