"""Commits to ``lake_progress`` that hold only while numbers in it are what their maker believes.

Stage: write. In: files that are written already, and the numbers that guard them; out: one commit, or the
names of the numbers that others have moved. A number is Delta's ``txn`` of a name: it is in the log with the
rows, so both are stored or none, and of two commits at once that move one name Delta refuses the later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.lake.catalog import commit_progress
from rankmem_aggregator.lake.delta import sequence_in
from rankmem_aggregator.lake.files import LakeFiles, deltalake, said_by_store
from rankmem_aggregator.lake.layout import LAKE_PROGRESS, DataFile
from rankmem_protos.errors import Code, RankmemError

STORE_CHECK: Final = "store_check"
"""A folder beside the tables: each check has a table without rows in it, and deletes that."""
_CHECKS: Final = 4
"""Threads: of two that look up the next version at the same time, one has to be refused."""
_CHECK_ROUNDS: Final = 3
_SETTLED_COMMITS: Final = 4
"""Ours, and others' that came between it and here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Move:
    """A number, and what a commit makes of it."""

    before: int
    """If it is another, the commit is not made. 0: there is none."""
    after: int


class MovedElsewhereError(RankmemError):
    """Nothing was committed, as others have moved numbers."""

    def __init__(self, place: str, names: frozenset[str]) -> None:
        super().__init__(Code.CONFLICT, f"another process has moved in {place}: {', '.join(sorted(names))}")
        self.names = names


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """Names a commit: how many its maker has made with this one."""

    maker: str
    number: int

    def is_in(self, opened: Any) -> bool:
        """Whether the commit is in a Delta table."""
        return sequence_in(opened, self.maker) >= self.number


def add_and_move(files: LakeFiles, new: Iterable[DataFile], moves: Mapping[str, Move], mark: Mark) -> None:
    """Makes files count, and moves numbers, in one commit. May be repeated: it is done once.

    Args:
        files: the lake.
        new: the files, which are there.
        moves: by name.
        mark: by which the commit is known again, whatever others did to its files and numbers since.

    Raises:
        MovedElsewhereError: a number is not what it was.
        RankmemError: EXHAUSTED where the lake cannot be written, CONFLICT where others commit all the time:
            whether it was committed is not known then.
    """
    place, added = files.place(LAKE_PROGRESS.name), tuple(new)

    def check(opened: Any) -> None:
        if moved := moved_in(opened, moves):
            raise MovedElsewhereError(place, moved)

    numbers = {name: move.after for name, move in moves.items()}
    commit_progress(files, added, mark.maker, mark.number, numbers=numbers, check=check, mode="append")
    if files.is_local:
        _settle(Path(place), {Path(files.place(file.path)).parent for file in added})


def moved_in(opened: Any, moves: Mapping[str, Move]) -> frozenset[str]:
    """The names of the numbers that are not what a commit believes."""
    return frozenset(name for name, move in moves.items() if sequence_in(opened, name) != move.before)


def _settle(table: Path, folders: set[Path]) -> None:
    """Has a folder's newest commits on the disk, which deltalake leaves to the system.

    What is acknowledged as stored outlives a power cut.
    """
    logs = sorted((table / "_delta_log").glob("*.json"))[-_SETTLED_COMMITS:]
    actions = [json.loads(line) for log in logs for line in log.read_text().splitlines()]
    added = [table / action["add"]["path"] for action in actions if "add" in action]
    for path in (*filter(Path.exists, added), *logs, table, table / "_delta_log", *sorted(folders)):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def check_store(files: LakeFiles, mark: str) -> None:
    """Tries whether the store refuses to overwrite when asked to: all that is once in a lake rests on it.

    Several threads commit to a table of its own at the same time; where a commit is overwritten, its name is
    not in the log. Other aggregators' checks, of which many may begin at once, are not in its way.

    Args:
        files: the lake.
        mark: of this process, never used before.

    Raises:
        RankmemError: UNSUPPORTED for a store that overwrites; EXHAUSTED for one that cannot be written.
    """
    from deltalake.exceptions import DeltaError
    from deltalake.transaction import CommitProperties, Transaction

    folder, nothing = f"{STORE_CHECK}/{mark}", pa.table({"nothing": pa.array([], pa.int64())})
    place, names = files.place(folder), [str(number) for number in range(_CHECKS)]
    together = threading.Barrier(_CHECKS)

    def commit(name: str) -> None:
        try:
            for version in range(1, _CHECK_ROUNDS + 1):
                opened = deltalake().DeltaTable(place)
                together.wait()
                properties = CommitProperties(app_transactions=[Transaction(name, version)])
                deltalake().write_deltalake(opened, nothing, mode="append", commit_properties=properties)
        except BaseException:
            together.abort()  # the others wait for this one
            raise

    try:
        deltalake().DeltaTable.create(place, nothing.schema, name=STORE_CHECK)
        with ThreadPoolExecutor(_CHECKS, thread_name_prefix="rankmem-store-check") as threads:
            commits = [threads.submit(commit, name) for name in names]
            failed = [error for made in commits if (error := made.exception()) is not None]
            errors = sorted(failed, key=lambda error: isinstance(error, threading.BrokenBarrierError))
        opened = deltalake().DeltaTable(place)
        stored = {int(opened.transaction_version(name) or 0) for name in names}
    except (DeltaError, OSError) as exc:
        errors = [exc]
    finally:
        _delete(files, folder)
    if errors:
        said = said_by_store(errors[0])
        raise RankmemError(Code.EXHAUSTED, f"cannot write {files.root}: {said}", "make room, or give access")
    if stored != {_CHECK_ROUNDS}:
        raise RankmemError(
            Code.UNSUPPORTED,
            f"the store of {files.root} overwrites a file although it is asked not to (conditional PUT)",
            "give another store: two aggregators would overwrite each other's commits there",
        )


def _delete(files: LakeFiles, folder: str) -> None:
    """Deletes a folder and what is in it; what cannot be deleted is left to ``vacuum``."""
    if files.is_local:
        shutil.rmtree(files.place(folder), ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        for found in list(files.listing(folder)):
            files.delete(found.path)
