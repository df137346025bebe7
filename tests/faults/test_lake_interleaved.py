"""Imports of one database at once, step by step: another runs, or dies, at each place where one looks.

An import sees the lake only where it opens the log of a table; what another does between two of these places
it meets at the second. So the other one is run at each of them, in this process, instead of by chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest

from constructed import RankLog, store_logs
from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.check import check_lake
from rankmem_aggregator.lake.delta import DeltaLog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.layout import TABLES, DataFile
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but, some_of
from two_sessions import NEW, two_sessions

PLACES = 120
"""More than the logs that an import of the two sessions opens."""
OF_EVENTS, OF_PROGRESS = 6, 16
"""So often it opens the log of memory_event, and lake_progress."""


class _DiedError(BaseException):
    """An import's process is killed; nothing catches it."""


class _Places:
    """Calls something after the log of a table, or of this one, was opened for the ``at``-th time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._step: Callable[[str], None] = lambda table_name: None
        opening = deltalake.DeltaTable.__init__

        def opened(table: deltalake.DeltaTable, *arguments: Any, **options: Any) -> None:
            opening(table, *arguments, **options)
            self._step(Path(table.table_uri).name)

        monkeypatch.setattr(deltalake.DeltaTable, "__init__", opened)

    @contextmanager
    def then(self, at: int, do: Callable[[], None], of: str = "") -> Iterator[None]:
        numbers, before = itertools.count(), self._step

        def step(table_name: str) -> None:
            if of in ("", table_name) and next(numbers) == at:
                self._step = lambda table_name: None
                do()
                self._step = step

        self._step = step
        try:
            yield
        finally:
            self._step = before


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> _Places:
    return _Places(monkeypatch)


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A database, and the same when it had recorded more; beside each the lake that its import makes."""
    folder = tmp_path_factory.mktemp("databases")
    early, late = two_sessions(folder / "early.duckdb"), two_sessions(folder / "late.duckdb")
    for database in (early, late):
        with duckdb.connect(database) as connection:
            connection.execute("UPDATE rankmem_meta SET database_id = 'abc123'")
    third = RankLog(session_id=NEW, rank=2, started=100, ended=200)
    third.alloc("weights", 30, at=140, operator="aten::mm")
    with duckdb.connect(late) as connection:
        store_logs(connection, [third])
    for database in (early, late):
        import_database(database, str(_whole(database)))
    assert _parts(_whole(early)) != _parts(_whole(late))
    return early, late


def _whole(database: Path) -> Path:
    return database.with_suffix("")


def _import(database: Path, lake: Path) -> None:
    """Imports, or is refused as another has done it."""
    try:
        import_database(database, str(lake))
    except RankmemError as exc:
        if exc.code is not Code.CONFLICT:
            raise


def _dies(database: Path, lake: Path, places: _Places, at: int, of: str = "") -> None:
    def die() -> None:
        raise _DiedError

    try:
        with places.then(at, die, of):
            _import(database, lake)
    except _DiedError:
        pass


def _parts(lake: Path) -> list[DataFile]:
    return [replace(file, path="", sequence=0) for file in read_catalog(LakeFiles(str(lake))).files]


def _check(lake: Path, database: Path) -> None:
    assert _parts(lake) == _parts(_whole(database))
    assert check_lake(str(lake)).faults == ()
    files = LakeFiles(str(lake))
    catalog = read_catalog(files)
    for name, table in TABLES.items():
        logged = sorted(file.path for file in DeltaLog(files, table).active())
        assert logged == sorted(file.path for file in catalog.of_table(name)), name


@pytest.mark.parametrize("at", some_of(range(PLACES), 32))
def test_another_import_runs_in_between(
    at: int, places: _Places, databases: tuple[Path, Path], tmp_path: Path
) -> None:
    _, database = databases
    with places.then(at, lambda: _import(database, tmp_path)):
        _import(database, tmp_path)
    _check(tmp_path, database)


@pytest.mark.parametrize("dies", some_of(range(OF_PROGRESS), 4))
@pytest.mark.parametrize("at", long_but(range(OF_EVENTS), 1))
def test_another_has_committed_events_and_dies_before_they_count(
    at: int, dies: int, places: _Places, databases: tuple[Path, Path], tmp_path: Path
) -> None:
    _, database = databases
    other = partial(_dies, database, tmp_path, places, dies, "lake_progress")
    with places.then(at, other, "memory_event"):
        _import(database, tmp_path)
    import_database(database, str(tmp_path))
    _check(tmp_path, database)


@pytest.mark.parametrize("at", some_of(range(PLACES), 32))
def test_one_that_died_is_gone_on_with_after_more_was_recorded(
    at: int, places: _Places, databases: tuple[Path, Path], tmp_path: Path
) -> None:
    early, late = databases
    _dies(early, tmp_path, places, at)
    for again in (at, at - 1, PLACES - at):
        _dies(late, tmp_path, places, again)
    import_database(late, str(tmp_path))
    _check(tmp_path, late)
