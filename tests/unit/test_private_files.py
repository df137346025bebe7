"""Who may read what is recorded: its user alone, whatever the umask."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.retention.compact import prune_file
from rankmem_aggregator.retention.limits import Limits
from rankmem_aggregator.store import private_files
from rankmem_aggregator.store.store import open_store
from rankmem_protos.errors import RankmemError
from sample_batches import RankSource

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def open_umask(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(private_files, "_held", 0)  # whatever another test of this process left open
    before = os.umask(0)
    yield
    assert os.umask(before) == 0


def modes(folder: Path) -> dict[str, int]:
    return {file.name: stat.S_IMODE(file.lstat().st_mode) for file in folder.iterdir()}


def write(path: Path) -> None:
    store = open_store(AggregatorConfig(database_path=path))
    store.write({"memory_event": RankSource().rows(10)["memory_event"]})
    assert store.disk.log_bytes()
    found = modes(path.parent)
    store.close()
    assert set(found) == {path.name, f"{path.name}.wal"}
    assert set(found.values()) == {0o600}


def test_a_database_and_its_log_are_their_users_alone_also_after_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "mem.duckdb"
    write(path)
    write(path)
    assert modes(tmp_path) == {"mem.duckdb": 0o600}


def test_a_database_that_is_there_keeps_its_mode_and_its_log_gets_that(tmp_path: Path) -> None:
    path = tmp_path / "mem.duckdb"
    write(path)
    path.chmod(0o640)
    store = open_store(AggregatorConfig(database_path=path))
    store.write({"memory_event": RankSource().rows(10)["memory_event"]})
    assert modes(tmp_path) == {"mem.duckdb": 0o640, "mem.duckdb.wal": 0o640}
    store.close()
    prune_file(path, Limits())
    assert modes(tmp_path) == {"mem.duckdb": 0o640}


def test_a_copy_of_a_database_is_its_users_alone(tmp_path: Path) -> None:
    write(tmp_path / "mem.duckdb")
    with connect(tmp_path / "mem.duckdb") as queries:
        queries.copy_to(tmp_path / "copy.duckdb")
    assert modes(tmp_path) == {"mem.duckdb": 0o600, "copy.duckdb": 0o600}


def test_a_database_that_cannot_be_opened_leaves_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "text.duckdb"
    path.write_text("no database")
    with pytest.raises(RankmemError):
        open_store(AggregatorConfig(database_path=path))
    assert os.umask(0) == 0


def test_two_databases_of_one_process_are_private_until_both_are_closed(tmp_path: Path) -> None:
    one, other = (open_store(AggregatorConfig(database_path=tmp_path / name)) for name in ("a.db", "b.db"))
    one.close()
    one.close()
    assert os.umask(0o077) == 0o077
    other.close()
