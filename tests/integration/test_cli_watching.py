"""``rankmem status``, ``top`` and ``prune`` as a user calls them, on a file and on who holds it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

from ingest_client import IngestClient
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query.remote import RemoteQueries
from rankmem_aggregator.retention import limits as retention
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.store.disk import Disk
from rankmem_cli.main import app
from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import TableRows
from rankmem_protos.tables import TABLES
from sample_batches import RankSource

SESSION = "01WATCHEDJOB"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANKMEM_DB", "RANKMEM_AGGREGATOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RANKMEM_SPOOL_DIR", str(tmp_path / "spools"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def aggregator(tmp_path: Path) -> Iterator[server.Aggregator]:
    config = AggregatorConfig.from_environment({}, database_path=tmp_path / "w.duckdb", listen="127.0.0.1:0")
    with server.open(config) as opened:
        fill(opened.address)
        yield opened


def fill(address: str) -> None:
    """Two ranks, of which one has ended."""
    row = {"session_id": SESSION, "name": "watched", "source": "live"}
    session = pa.Table.from_pylist([row], schema=TABLES["session"].arrow_schema())
    with IngestClient(address) as client:
        for rank in range(2):
            source = RankSource(session_id=SESSION, rank=rank)
            client.open(source)
            message = source.batch(200, final=rank == 1)
            message.tables.append(TableRows(table="session", arrow_ipc=encode_rows(session)))
            client.send(batch=message)
            client.acks(1)


def states(*place: str) -> list[tuple[int, str]]:
    done = call("status", *place, "--format", "json")
    assert done.exit_code == 0, done.output
    return [(row["rank"], row["state"]) for row in json.loads(done.stdout)]


def test_status_says_the_same_of_a_file_and_of_who_holds_it(
    aggregator: server.Aggregator, tmp_path: Path
) -> None:
    expected = [(0, "running"), (1, "ended")]
    assert states("--aggregator", aggregator.address) == expected
    assert states("--db", str(tmp_path / "w.duckdb")) == expected
    aggregator.close()
    assert states("--db", str(tmp_path / "w.duckdb")) == expected


def test_status_says_why_an_aggregator_cannot_store(
    aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = call("status", "--aggregator", aggregator.address).stderr
    assert "aggregator serving" in said
    assert "1 ranks alive" in said
    monkeypatch.setattr(Disk, "free_bytes", lambda disk: 0)
    aggregator._watch.look()
    assert "NOT SERVING: the disk is full" in call("status", "--aggregator", aggregator.address).stderr


def test_status_says_what_the_shipper_of_this_host_does(
    aggregator: server.Aggregator, tmp_path: Path
) -> None:
    folder = tmp_path / "spools" / SESSION
    folder.mkdir(parents=True)
    told = {"pid": 7, "state": "waiting", "pending_records": 1234, "error": "away\x1b[2J"}
    (folder / "shipper.json").write_text(json.dumps(told))
    said = call("status", "--aggregator", aggregator.address).stderr
    assert "shipper on this host (pid 7) waiting, 1,234 records pending: away" in said
    assert "\x1b" not in said
    (folder / "shipper.json").write_text("{")
    assert "shipper on this host" not in call("status", "--aggregator", aggregator.address).stderr


def test_an_aggregators_figures_travel(aggregator: server.Aggregator) -> None:
    with RemoteQueries(aggregator.address) as queries:
        state = queries.aggregator_state()
    counters = aggregator.counters
    assert (state.events, state.batches_refused, state.ranks_alive) == (counters.events, 0, 1)
    assert state.events > 0
    assert state.now_ns > state.started_ns > 0
    assert state.rss_bytes > 1 << 20
    assert (state.not_serving_reason, state.queue_batches) == ("", 0)


def test_top_in_a_pipe_looks_once(aggregator: server.Aggregator) -> None:
    done = call("top", "--aggregator", aggregator.address, "--sort", "rank")
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["rank", "0", "1"]
    rows = json.loads(call("top", "--aggregator", aggregator.address, "--format", "json").stdout)
    assert {row["rank"] for row in rows} == {0, 1}
    assert rows[0]["used_bytes"] >= rows[1]["used_bytes"] > 0


def test_prune_names_what_it_deleted_and_leaves_what_may_go_on(
    aggregator: server.Aggregator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "w.duckdb")
    held = call_failing("prune", "--db", path, "--keep-days", "1")
    assert "let it delete sessions" in held
    aggregator.close()
    kept = call("prune", "--db", path, "--keep-days", "0.0000001")
    assert (kept.exit_code, kept.stdout) == (0, "")
    assert "0 deleted, 1 kept, of which 1 may still be running" in kept.stderr
    assert "may still be running" in call_failing("prune", "--db", path, "--session", SESSION)
    monkeypatch.setattr(retention, "SILENT_S", -1.0)
    gone = call("prune", "--db", path, "--session", SESSION)
    assert (gone.exit_code, gone.stdout) == (0, f"{SESSION}\n")
    assert "no session" in call_failing("status", "--db", path)
    assert [name for name in os.listdir(tmp_path) if name.startswith("w.duckdb")] == ["w.duckdb"]


def call_failing(*arguments: str) -> str:
    """The message; the error boundary, which would print it, is not called here."""
    done = CliRunner().invoke(app, list(arguments))
    assert done.exit_code != 0
    assert done.exception is not None
    return str(done.exception)
