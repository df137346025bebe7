"""Opening the one file: who else may hold it, what it is, what a close leaves; and its address file."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.store.address import address_path, read_address, remove_address, write_address
from rankmem_aggregator.store.store import open_store
from rankmem_protos.errors import Code, RankmemError
from sample_batches import RankSource

HOLDER = """
import duckdb, sys
connection = duckdb.connect(sys.argv[1])
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "mem.duckdb"


def hold(path: Path) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_file_that_another_process_holds_is_a_conflict(path: Path) -> None:
    holder = hold(path)
    try:
        with pytest.raises(RankmemError, match="held by another process") as caught:
            open_store(AggregatorConfig(database_path=path))
        assert caught.value.code is Code.CONFLICT
        # Its process left an address, as an aggregator does: the reader is led there.
        write_address(path, "127.0.0.1:7077")
        entry = json.loads(address_path(path).read_text())
        address_path(path).write_text(json.dumps(entry | {"pid": holder.pid, "process_start_ticks": 0}))
        with pytest.raises(RankmemError, match=r"aggregator at 127\.0\.0\.1:7077") as led:
            open_store(AggregatorConfig(database_path=path))
        assert "--aggregator 127.0.0.1:7077" in led.value.hint
    finally:
        holder.communicate()


def test_a_file_that_this_process_has_open_is_a_conflict(path: Path) -> None:
    store = open_store(AggregatorConfig(database_path=path))
    with pytest.raises(RankmemError, match="open in this process") as caught:
        open_store(AggregatorConfig(database_path=path))
    assert caught.value.code is Code.CONFLICT
    store.close()
    open_store(AggregatorConfig(database_path=path)).close()


def test_an_address_that_a_container_of_before_left_is_not_this_process_s(path: Path) -> None:
    """Each is process 1, and has a host name of its own."""
    write_address(path, "127.0.0.1:7077")
    entry = json.loads(address_path(path).read_text())
    address_path(path).write_text(json.dumps(entry | {"host_name": "pod-of-before"}))
    store = open_store(AggregatorConfig(database_path=path))
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM session").fetchall() == [(0,)]
    store.close()


def test_rows_of_more_than_a_row_group_are_in_the_file_and_not_in_the_log(path: Path) -> None:
    config = AggregatorConfig(database_path=path, row_group_rows=8192)
    store = open_store(config)
    rows = RankSource().rows(20_000)
    store.checkpoint(0)
    store.write({"memory_event": rows["memory_event"]})
    with store.cursor() as cursor:
        groups = cursor.execute(
            "SELECT max(count) FROM pragma_storage_info('packed.memory_event') WHERE column_name = 'seq'"
        ).fetchall()
    assert groups == [(8192,)]
    assert store.disk.log_bytes() < 100_000
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM memory_event").fetchall() == [(20_000,)]
    store.close()


def test_a_file_that_is_no_database_is_invalid_and_left_alone(path: Path) -> None:
    path.write_bytes(b"certainly not a database" * 1000)
    with pytest.raises(RankmemError) as caught:
        open_store(AggregatorConfig(database_path=path))
    assert caught.value.code is Code.INVALID
    assert path.read_bytes().startswith(b"certainly")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(RankmemError, match="no folder") as caught:
        open_store(AggregatorConfig(database_path=tmp_path / "no" / "mem.duckdb"))
    assert caught.value.code is Code.NOT_FOUND


def test_an_address_that_another_user_left_gets_no_token(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_address(path, "127.0.0.1:7077", token=True, tls=True)
    ours = read_address(path)
    assert ours is not None
    assert ours.token
    if os.geteuid() == 0:  # root's own is trusted whoever looks
        os.chown(address_path(path), 12345, -1)
    me = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: me)
    theirs = read_address(path)
    assert theirs == dataclasses.replace(ours, token=False)


def test_a_closed_store_leaves_one_plain_file_that_anyone_may_open(path: Path) -> None:
    store = open_store(AggregatorConfig(database_path=path))
    store.close()
    store.close()
    assert [entry.name for entry in path.parent.iterdir()] == ["mem.duckdb"]
    with duckdb.connect(path, read_only=True) as connection:
        assert connection.execute("SELECT count(*) FROM peak_by_rank").fetchone() == (0,)
    with pytest.raises(RankmemError, match="being closed"):
        store.cursor()


def test_the_settings_of_an_open_store_cannot_be_changed(path: Path) -> None:
    store = open_store(AggregatorConfig(database_path=path, threads=1))
    cursor = store.cursor()
    for statement in (
        "SET threads = 64",
        "SET lock_configuration = false",
        "SET enable_external_access = true",
    ):
        with pytest.raises(duckdb.Error):
            cursor.execute(statement)
    settings = dict(
        cursor.execute(
            "SELECT name, value FROM duckdb_settings() WHERE name IN "
            "('threads', 'enable_external_access', 'lock_configuration', 'python_enable_replacements')"
        ).fetchall()
    )
    cursor.close()
    store.close()
    assert {name: str(value).lower() for name, value in settings.items()} == {
        "threads": "1",
        "enable_external_access": "false",
        "lock_configuration": "true",
        "python_enable_replacements": "false",
    }


def test_an_address_is_read_back_and_removed_by_who_wrote_it(path: Path) -> None:
    assert read_address(path) is None
    write_address(path, "127.0.0.1:1234")
    entry = read_address(path)
    assert entry is not None
    assert (entry.address, entry.pid) == ("127.0.0.1:1234", os.getpid())
    remove_address(path)
    assert not address_path(path).exists()


@pytest.mark.parametrize("change", [{"pid": 2**22 - 3}, {"process_start_ticks": 1}])
def test_an_address_of_a_process_that_is_gone_is_stale(path: Path, change: dict[str, int]) -> None:
    write_address(path, "127.0.0.1:1234")
    entry = read_address(path)
    assert entry is not None
    address_path(path).write_text(json.dumps(dataclasses.asdict(entry) | change))
    assert read_address(path) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"address": "x"}', "null", "\x00" * 9000])
def test_an_address_file_that_is_not_ours_reads_as_absent(path: Path, text: str) -> None:
    address_path(path).write_text(text)
    assert read_address(path) is None
    remove_address(path)
    assert address_path(path).exists()
