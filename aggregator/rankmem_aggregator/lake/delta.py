"""Commits to a lake's Delta tables, each made once whatever happens in between.

Stage: write. In: files that are written already; out: one commit in a table's log. A commit carries
``txn(writer of the session, sequence)``: a second one with the same or an older sequence is not made, and
one that is made at the same time by another process is refused by Delta (``Concurrent transaction failed``).
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.lake.files import LakeFiles, deltalake, said_by_store
from rankmem_aggregator.lake.layout import PARTITION, TABLES, DataFile, delta_schema
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import Table

ATTEMPTS_MAX: Final = 20
"""Of a commit: each fails only where another process has just made one to the same table."""
ATTEMPT_WAIT_S: Final = 0.05
"""Before the second; each further one waits longer, at random. A commit takes some 10 ms."""
LOG_SETTINGS: Final = {"delta.logRetentionDuration": "interval 2 days"}
"""Of a log: commits before a checkpoint of that age are deleted with the next one (every 100 commits). A
reader opens versions of the last day; with Delta's own 30 days an aggregator would leave 170,000 commits."""
_NO_TIME: Final = 0
"""Modification time of a file in the log: it is not needed, and a repeated import writes the same without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveFile:
    """A file in the newest version of a Delta table's log."""

    path: str
    """Below the lake."""
    size_bytes: int
    num_rows: int
    partition: tuple[str, int, int]
    """session_id, segment, hosts."""


@dataclass(frozen=True, slots=True)
class LogState:
    """What one version of a Delta table's log says to a writer: files and sequence belong together."""

    files: tuple[ActiveFile, ...]
    """Of one session."""
    last_sequence: int
    """Committed under the writer's name; 0 for none."""


class DeltaLog:
    """A table's log; made with its first commit.

    Args:
        files: the lake.
        table: which one.
    """

    def __init__(self, files: LakeFiles, table: Table) -> None:
        self._files, self._place = files, files.place(table.name)
        self._table = table
        self._delta = deltalake()

    def last_sequence(self, app: str) -> int:
        """The last sequence committed under a name; 0 for none."""
        return sequence_in(self._open(), app)

    def active(self, session_id: str | None = None) -> list[ActiveFile]:
        """The files of the newest version, of one session or of all."""
        return self._files_in(self._open(), session_id)

    def state(self, session_id: str, app: str) -> LogState:
        """The files of a session and the last sequence of a name, both of the version that is newest now."""
        opened = self._open()
        return LogState(tuple(self._files_in(opened, session_id)), sequence_in(opened, app))

    def commit(
        self, added: Sequence[DataFile], removed: Sequence[ActiveFile], *, app: str = "", sequence: int = 0
    ) -> None:
        """One commit that adds files and removes others.

        Args:
            added: present files.
            removed: files of the log.
            app: a name that makes each sequence once; empty: none.
            sequence: of the commit.

        Raises:
            RankmemError: CONFLICT where another process made this or a later commit of that name.
        """
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        actions: list[Any] = [
            AddAction(
                path=file.path.removeprefix(f"{self._table.name}/"),
                size=file.size_bytes,
                partition_values={name: str(getattr(file, name)) for name in PARTITION},
                modification_time=_NO_TIME,
                data_change=True,
                stats=json.dumps({"numRecords": file.num_rows}),
            )
            for file in added
        ]
        actions += [
            RemoveAction(
                file.path.removeprefix(f"{self._table.name}/"),
                True,
                time.time_ns() // 1_000_000,
                file.size_bytes,
                dict(zip(PARTITION, map(str, file.partition), strict=True)),
            )
            for file in removed
        ]

        def attempt() -> None:
            opened = self._made()
            if app and sequence_in(opened, app) >= sequence:
                raise made_elsewhere(self._place)
            transactions = [Transaction(app, sequence)] if app else None
            opened.create_write_transaction(
                actions,
                "append",
                opened.schema(),
                partition_by=list(PARTITION),
                commit_properties=CommitProperties(app_transactions=transactions),
            )

        def is_done() -> bool:
            return {file.path for file in added} <= {file.path for file in self.active()}

        commit_once(self._place, attempt, is_done)

    def set_up(self, settings: dict[str, str]) -> None:
        """Gives the table these settings if it has others, and deletes commits that they do not keep."""
        opened = self._open()
        if opened is None:
            return
        present = opened.metadata().configuration
        if any(present.get(name) != value for name, value in settings.items()):
            opened.alter.set_table_properties(settings)
        opened.cleanup_metadata()

    def _files_in(self, opened: Any, session_id: str | None) -> list[ActiveFile]:
        if opened is None:
            return []
        with self._files.reading_log(self._table.name):
            rows = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
        found = [
            ActiveFile(
                path=f"{self._table.name}/{row['path']}",
                size_bytes=row["size_bytes"],
                num_rows=row["num_records"],
                partition=tuple(row[f"partition.{name}"] for name in PARTITION),
            )
            for row in rows
        ]
        return [file for file in found if session_id in (None, file.partition[0])]

    def _open(self) -> Any:
        from deltalake.exceptions import TableNotFoundError

        with self._files.reading_log(self._table.name):
            try:
                return self._delta.DeltaTable(self._place)
            except TableNotFoundError:
                return None

    def _made(self) -> Any:
        """The log, with all columns that are declared."""
        opened = self._open()
        if opened is None:
            return self._delta.DeltaTable.create(
                self._place,
                delta_schema(self._table),
                mode="ignore",
                partition_by=list(PARTITION),
                name=self._table.name,
                description=self._table.doc,
                configuration=LOG_SETTINGS,
            )
        add_columns(opened, delta_schema(self._table))
        return opened


def sequence_in(opened: Any, app: str) -> int:
    """The last sequence committed under a name to an open Delta table; 0 for none, and for no table."""
    return 0 if opened is None else int(opened.transaction_version(app) or 0)


def exchange_in_logs(files: LakeFiles, old: Iterable[DataFile], new: Iterable[DataFile]) -> None:
    """Makes the same exchange in the tables' own logs, for other engines; ``vacuum`` does what is left."""
    added: dict[str, list[DataFile]] = {}
    removed: dict[str, set[str]] = {}
    for file in new:
        added.setdefault(file.table_name, []).append(file)
    for file in old:
        removed.setdefault(file.table_name, set()).add(file.path)
    for name in sorted({*added, *removed} & TABLES.keys()):
        log = DeltaLog(files, TABLES[name])
        gone = [file for file in log.active() if file.path in removed.get(name, ())]
        if gone or name in added:
            log.commit(added.get(name, ()), gone)


def add_columns(opened: Any, declared: pa.Schema) -> None:
    """Adds to a Delta table of an older version the declared columns that it lacks."""
    present = {field.name for field in opened.schema().fields}
    wanted = deltalake().Schema.from_arrow(declared).fields
    if lacking := [field for field in wanted if field.name not in present]:
        opened.alter.add_columns(lacking)


def commit_once(place: str, attempt: Callable[[], None], is_done: Callable[[], bool] = lambda: False) -> None:
    """Commits; again where commits of others came first.

    Args:
        place: of the table, for messages.
        attempt: opens the newest version, raises CONFLICT where it has the commit already, and commits.
        is_done: whether the commit that is there already is this one, by an attempt whose answer was lost.

    Raises:
        RankmemError: CONFLICT, as ``attempt`` or after :data:`ATTEMPTS_MAX`; EXHAUSTED where it cannot be
            written.
    """
    from deltalake.exceptions import CommitFailedError, DeltaError

    for number in range(ATTEMPTS_MAX):
        try:
            attempt()
            return
        except RankmemError as exc:
            if number and exc.code is Code.CONFLICT and is_done():
                return
            raise
        except CommitFailedError as exc:
            if number + 1 == ATTEMPTS_MAX:
                raise made_elsewhere(place) from exc
            time.sleep(random.uniform(0, ATTEMPT_WAIT_S * (number + 1)))
        except (DeltaError, OSError) as exc:
            raise RankmemError(
                Code.EXHAUSTED, f"cannot write {place}: {said_by_store(exc)}", "make room, or give access"
            ) from exc


def made_elsewhere(place: str) -> RankmemError:
    """The error of a commit that another process has made."""
    return RankmemError(
        Code.CONFLICT,
        f"another process writes the same to {place}",
        "let it finish, then give the command again: what is in the lake is left as it is",
    )
