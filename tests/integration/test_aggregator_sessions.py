"""A session's id that comes back, over real gRPC into a real DuckDB: two runs are two attempts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ingest_client import IngestClient
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_protos import collector_pb2 as pb
from sample_batches import RankSource

RANKS = 2
BY_ATTEMPT = "SELECT attempt, count(*) FROM memory_event GROUP BY attempt ORDER BY attempt"
DOUBLED = "SELECT seq FROM memory_event GROUP BY session_id, attempt, rank, device, seq HAVING count(*) > 1"


@dataclass(kw_only=True)
class Run(RankSource):
    """A rank of a run of the session."""

    run: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.spool_id += self.run

    def opening(self) -> pb.OpenSpool:
        start = f"{self.run}.{self.attempt}" if self.run else ""
        opened = self.open_spool().open_spool
        opened.MergeFrom(pb.OpenSpool(start=start, launch=self.run))
        return opened


@contextlib.contextmanager
def running(path: Path) -> Iterator[server.Aggregator]:
    config = AggregatorConfig(
        database_path=path, listen="127.0.0.1:0", group_wait_s=0.0, group_interval_s=0.0
    )
    with server.open(config) as aggregator:
        yield aggregator


def opened(client: IngestClient, source: Run) -> tuple[int, int]:
    """(attempt as which it is stored, last position stored)."""
    client.send(open_spool=source.opening())
    state = client.reply().spool_state
    return state.attempt, state.last_sequence


def sent(client: IngestClient, source: Run, *, final: bool = False) -> None:
    batch = source.batch(100, final=final)
    client.send(batch=batch)
    assert client.acks(1) == [batch.sequence_last]


def asked(aggregator: server.Aggregator, sql: str) -> list[tuple[object, ...]]:
    with connect(aggregator.address) as queries:
        return [tuple(row.values()) for row in queries.sql(sql).to_pylist()]


@pytest.mark.parametrize("names", [("71", "72"), ("", "")], ids=["told", "of older agents"])
def test_two_runs_one_after_the_other_are_two_attempts_also_over_a_restart(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    first, second = ([Run(rank=rank, run=name) for rank in range(RANKS)] for name in names)
    for source in second:
        source.spool_id += "9"
    for number, sources in enumerate((first, second)):
        with running(tmp_path / "mem.duckdb") as aggregator, IngestClient(aggregator.address) as client:
            for source in sources:
                assert opened(client, source) == (number, -1)
                sent(client, source, final=True)
    with running(tmp_path / "mem.duckdb") as aggregator, IngestClient(aggregator.address) as client:
        for number, sources in enumerate((first, second)):
            for source in sources:  # as a shipper opens it that lost its acknowledgement
                assert opened(client, source) == (number, source.next_sequence - 1)
        assert asked(aggregator, DOUBLED) == []
        assert [attempt for attempt, _ in asked(aggregator, BY_ATTEMPT)] == [0, 1]
        assert asked(aggregator, "SELECT count(*) FROM rank_info") == [(2 * RANKS,)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 3, 1, 2), (2, 1, 3, 0), (3, 2, 1, 0)])
def test_two_runs_that_are_live_at_once_keep_to_themselves(tmp_path: Path, order: tuple[int, ...]) -> None:
    """Spools 0 and 1 are the ranks of one run, 2 and 3 those of the other; each run has a stream."""
    sources = [Run(rank=number % RANKS, run=str(71 + number // RANKS)) for number in range(2 * RANKS)]
    with running(tmp_path / "mem.duckdb") as aggregator, contextlib.ExitStack() as streams:
        clients = [streams.enter_context(IngestClient(aggregator.address)) for _ in range(2)]
        found = {number: opened(clients[number // RANKS], sources[number])[0] for number in order}
        assert found[0] == found[1] != found[2] == found[3]
        assert set(found.values()) == {0, 1}
        for _ in range(2):
            for number in order:
                sent(clients[number // RANKS], sources[number])
        assert asked(aggregator, DOUBLED) == []
        ((_, one), (_, other)) = asked(aggregator, BY_ATTEMPT)
        assert one == other
        said = asked(
            aggregator, "SELECT DISTINCT attempt, declared_attempt FROM spool_start ORDER BY attempt"
        )
        assert said == [(0, 0), (1, 0)]
