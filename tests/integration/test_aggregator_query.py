"""The way out over gRPC: limits, errors with code and hint, a consistent copy, the state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import grpc
import pyarrow as pa
import pytest

from ingest_client import IngestClient
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_aggregator.server import services
from rankmem_aggregator.server.peers import PEER_SHARE
from rankmem_aggregator.server.services import CHUNK_BYTES_MAX
from rankmem_protos.query_pb2 import ExportRequest, SqlRequest, StatusRequest
from rankmem_protos.query_pb2_grpc import QueryStub
from sample_batches import RankSource
from waiting import until


@pytest.fixture(scope="module")
def aggregator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Aggregator]:
    path = tmp_path_factory.mktemp("query") / "mem.duckdb"
    with server.open(AggregatorConfig(database_path=path, listen="127.0.0.1:0")) as running:
        with IngestClient(running.address) as client:
            for rank in range(2):
                source = RankSource(rank=rank)
                client.open(source)
                client.send(batch=source.batch(2000))
            client.acks(2)
        yield running


@pytest.fixture
def stub(aggregator: server.Aggregator) -> Iterator[QueryStub]:
    with grpc.insecure_channel(aggregator.address) as channel:
        yield QueryStub(channel)


def test_a_large_result_comes_in_chunks_under_the_limit_and_whole(stub: QueryStub) -> None:
    sql = (
        "SELECT n.range AS n, string_agg(md5((n.range * 20 + m.range)::VARCHAR)) AS text "
        "FROM range(20000) n, range(20) m GROUP BY ALL ORDER BY ALL"
    )
    chunks = [chunk.arrow_ipc for chunk in stub.Sql(SqlRequest(sql=sql))]
    assert max(map(len, chunks)) <= CHUNK_BYTES_MAX
    assert len(chunks) > 4
    table = pa.concat_tables([pa.ipc.open_stream(chunk).read_all() for chunk in chunks])
    assert table.column("n").to_pylist() == list(range(20000))


def test_a_row_over_the_limit_is_an_error_that_says_so(stub: QueryStub) -> None:
    sql = "SELECT string_agg(md5(range::VARCHAR)) AS text FROM range(200000)"
    with pytest.raises(grpc.RpcError, match="one row of the result"):
        list(stub.Sql(SqlRequest(sql=sql)))


@pytest.mark.parametrize("letter", ["x", "😀"])
def test_an_error_that_quotes_a_long_value_is_cut_and_comes_through(stub: QueryStub, letter: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Sql(SqlRequest(sql=f"SELECT ('{letter * 20_000}')::INTEGER")))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Could not convert string" in caught.value.details()
    assert len(caught.value.details().encode()) < 2100


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (SqlRequest(sql="DROP TABLE session"), grpc.StatusCode.PERMISSION_DENIED, "denied"),
        (SqlRequest(sql="SELECT * FROM nothing"), grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
        (SqlRequest(sql="SELECT 1 +"), grpc.StatusCode.INVALID_ARGUMENT, "invalid"),
        (SqlRequest(sql="FROM range(9)", row_limit=5), grpc.StatusCode.RESOURCE_EXHAUSTED, "exhausted"),
        (
            SqlRequest(sql="SELECT count(*) FROM range(1000000000000)", timeout_s=0.1),
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "exhausted",
        ),
    ],
)
def test_an_error_has_status_code_and_hint(
    stub: QueryStub, request_: SqlRequest, status: grpc.StatusCode, code: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Sql(request_))
    assert caught.value.code() is status
    trailing = dict(caught.value.trailing_metadata())
    assert trailing["rankmem-code"] == code
    assert "rankmem-hint" in trailing


def test_a_copy_has_every_table_comment_and_view_and_opens_anywhere(
    stub: QueryStub, aggregator: server.Aggregator, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.duckdb"
    copy.write_bytes(b"".join(chunk.data for chunk in stub.ExportDatabase(ExportRequest())))
    shape = (
        "SELECT table_name, column_name, data_type, comment FROM duckdb_columns() "
        "WHERE schema_name = 'main' AND NOT internal ORDER BY ALL"
    )
    with duckdb.connect(copy, read_only=True) as connection, aggregator.store.cursor() as source:
        assert connection.execute(shape).fetchall() == source.execute(shape).fetchall()
        tables = source.execute("SELECT table_name FROM duckdb_tables() ORDER BY ALL").fetchall()
        for (name,) in tables:
            rows = [c.table(name).order("ALL").fetchall() for c in (connection, source)]
            assert rows[0] == rows[1], name
        assert connection.execute("SELECT count(*) FROM peak_by_rank").fetchall() == [(2,)]
    assert [
        entry.name for entry in aggregator.config.database_path.parent.iterdir() if "export" in entry.name
    ] == []


def test_what_a_copy_left_that_was_killed_goes_at_the_next_start(tmp_path: Path) -> None:
    """It may be as large as the database."""
    left = [f".{name}.export-abcdef_7" for name in ("mem.duckdb", "other.duckdb", "mem.duckdb.export-x")]
    for name in left:
        (tmp_path / name).mkdir()
        (tmp_path / name / "copy.duckdb").touch()
    with server.open(AggregatorConfig(database_path=tmp_path / "mem.duckdb", listen="127.0.0.1:0")):
        assert [(tmp_path / name).exists() for name in left] == [False, True, True]


def large(cursor: duckdb.DuckDBPyConnection, path: Path) -> None:
    """A copy that no window of a connection holds."""
    with path.open("wb") as file:
        file.truncate(256 << 20)


def test_copies_that_nobody_reads_are_few(
    stub: QueryStub, aggregator: server.Aggregator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stands on the disk of the database until it is read, and is as large as it."""
    monkeypatch.setattr(services, "export_duckdb", large)
    folder = aggregator.config.database_path.parent
    unread = [stub.ExportDatabase(ExportRequest()) for _ in range(services.EXPORTS_MAX // PEER_SHARE)]
    for copy in unread:
        next(copy)
    with pytest.raises(grpc.RpcError, match="too many copies of the database") as refused:
        next(stub.ExportDatabase(ExportRequest()))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for copy in unread:
        copy.cancel()
    until("their copies are gone", lambda: not any("export" in entry.name for entry in folder.iterdir()))
    monkeypatch.setattr(services, "EXPORT_READ_S", 0.05)
    slow = stub.ExportDatabase(ExportRequest())
    next(slow)
    until("its copy is gone", lambda: not any("export" in entry.name for entry in folder.iterdir()))
    with pytest.raises(grpc.RpcError):
        list(slow)


def test_status_says_which_database_and_how_far(stub: QueryStub, aggregator: server.Aggregator) -> None:
    status = stub.Status(StatusRequest())
    assert status.database_path == str(aggregator.config.database_path.absolute())
    assert status.database_id
    assert status.schema_version >= 1
    assert status.batches_committed == 2
    assert status.rows_committed > 4000
    assert status.batches_queued == 0
