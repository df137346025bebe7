"""The SQLite database of an Ascend profiler folder, table by table.

Stage: readers; the process of ``rankmem import``. In: ``ascend_pytorch_profiler_N.db`` (MindSpore's and
msprof's have the same tables); out: the arrays of ``rows``. Times are ns and sizes bytes already. Holds a
piece of a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from rankmem_imports.ascend.recognition import MEMORY_TABLES
from rankmem_imports.ascend.rows import (
    CHUNK_ROWS,
    MODULE,
    OPERATOR,
    QUOTED_CHARS,
    RECORD,
    SAMPLE,
    UNKNOWN,
    Step,
    Vocabulary,
    as_rows,
    checked,
    device_of,
)
from rankmem_imports.files.sqlite_recording import SqliteRecording
from rankmem_imports.recording import NothingHereError, RankFacts
from rankmem_protos.bounds import NUMBER_MAX
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship.pairing.state import Array

ENUM_MODULE_UNKNOWN: Final = "module {}"
"""A component that has a number and no name."""


class DbSource:
    """A rank's database."""

    def __init__(self, path: Path, facts: RankFacts, device_id: int | None = None) -> None:
        """Args: device_id: the rank's own, where the database holds several ranks."""
        self.path = path
        self.names = Vocabulary()
        self.facts = facts
        self._device_id = device_id

    def records(self) -> Iterator[Array]:
        """RECORD; the graph engine's actions where there is neither MEMORY_RECORD nor OP_MEMORY."""
        with SqliteRecording(self.path) as database:
            if database.has("MEMORY_RECORD"):
                statement = _form(database, "MEMORY_RECORD", "totalAllocated", "ascend/records")
                yield from self._records(database, statement, "ascend/record_components", "MEMORY_RECORD")
            elif database.has("NPU_OP_MEM") and not self._has_operators(database):
                yield from self._records(database, "ascend/ge_records", "ascend/ge_components", "NPU_OP_MEM")

    def operators(self) -> Iterator[Array]:
        """OPERATOR."""
        with SqliteRecording(self.path) as database:
            if not database.has("OP_MEMORY"):
                return
            statement = _form(database, "OP_MEMORY", "allocationTime", "ascend/operators")
            names = {
                key: self.names.texts.number(str(text))
                for key, text in database.rows("ascend/operator_names")
                if text is not None
            }
            for rows in self._chunks(database, statement):
                numbers = self._numbers(rows, 11, "OP_MEMORY")
                columns = {
                    "allocated_ns": numbers[:, 0],
                    "released_ns": numbers[:, 1],
                    "active_released_ns": numbers[:, 2],
                    "size": numbers[:, 3],
                    "at_alloc": numbers[:, 4:7],
                    "at_release": numbers[:, 7:10],
                    "stream": numbers[:, 10],
                    "name": np.array([names.get(row[11], -1) for row in rows], np.int32),
                    "device": self._devices(rows),
                }
                if (numbers[:, 3] == UNKNOWN).any():
                    raise self._empty("OP_MEMORY", "size")
                yield self._own(as_rows(OPERATOR, columns, len(rows)), rows)

    def samples(self) -> Iterator[Array]:
        """SAMPLE."""
        with SqliteRecording(self.path) as database:
            if not database.has("NPU_MEM", "type", "hbm", "ddr"):
                return
            for rows in self._chunks(database, "ascend/samples"):
                numbers = self._numbers(rows, 3, "NPU_MEM")
                columns = {"time_ns": numbers[:, 0], "app": numbers[:, 1], "used": numbers[:, 2]}
                samples = as_rows(SAMPLE, columns | {"device": self._devices(rows)}, len(rows))
                yield self._own(self._timed(samples, "NPU_MEM"), rows)

    def modules(self) -> Iterator[Array]:
        """MODULE."""
        with SqliteRecording(self.path) as database:
            if not database.has("NPU_MODULE_MEM"):
                return
            rows_of_names = database.rows("ascend/module_names") if database.has("ENUM_MODULE") else iter(())
            names = {key: str(name) for key, name in rows_of_names}
            for rows in self._chunks(database, "ascend/modules"):
                numbers = self._numbers(rows, 2, "NPU_MODULE_MEM")
                texts = (names.get(row[2], ENUM_MODULE_UNKNOWN.format(row[2])) for row in rows)
                columns = {
                    "time_ns": numbers[:, 0],
                    "reserved": numbers[:, 1],
                    "component": self.names.components.numbers(texts),
                    "device": self._devices(rows),
                }
                yield self._own(self._timed(as_rows(MODULE, columns, len(rows)), "NPU_MODULE_MEM"), rows)

    def static_blocks(self) -> Iterator[Array]:
        """None: databases have no static graphs."""
        return iter(())

    def steps(self) -> Iterator[Step]:
        """STEP_TIME."""
        with SqliteRecording(self.path) as database:
            if database.has("STEP_TIME", "id", "startNs", "endNs"):
                for rows in self._chunks(database, "ascend/steps"):
                    for number, start, end in self._numbers(rows, 3, "STEP_TIME").tolist():
                        if UNKNOWN not in (number, start, end):
                            yield Step(number=number, started_ns=start, ended_ns=end)

    def device_titles(self) -> dict[str, str]:
        """NPU_INFO."""
        with SqliteRecording(self.path) as database:
            if not database.has("NPU_INFO", "id", "name"):
                return {}
            titles = list(database.rows("ascend/titles"))
            with self._refusing("NPU_INFO"):
                return {device_of(number): str(name) for number, name in titles}

    def _records(
        self, database: SqliteRecording, statement: str, names_statement: str, table: str
    ) -> Iterator[Array]:
        names = {
            key: self.names.components.number(str(text))
            for key, text in database.rows(names_statement)
            if text is not None
        }
        for rows in self._chunks(database, statement):
            numbers = self._numbers(rows, 5, table)
            columns = dict(
                zip(("time_ns", "allocated", "reserved", "active", "stream"), numbers.T, strict=True)
            )
            columns["component"] = np.array([names.get(row[5], -1) for row in rows], np.int32)
            columns["device"] = self._devices(rows)
            yield self._own(self._timed(as_rows(RECORD, columns, len(rows)), table), rows)

    def _has_operators(self, database: SqliteRecording) -> bool:
        if not database.has("OP_MEMORY"):
            return False
        return database.row(_form(database, "OP_MEMORY", "allocationTime", "ascend/operators")) is not None

    def _timed(self, rows: Array, table: str) -> Array:
        if (rows["time_ns"] == UNKNOWN).any():
            raise self._empty(table, "time")
        return rows

    def _empty(self, table: str, what: str) -> RankmemError:
        return RankmemError(
            Code.INVALID,
            f"{self.path}, table {table}: the {what} of a row is empty",
            "the database is damaged: export or copy it again",
        )

    def _chunks(self, database: SqliteRecording, statement: str) -> Iterator[list[tuple[Any, ...]]]:
        some: list[tuple[Any, ...]] = []
        for row in database.rows(statement):
            some.append(row)
            if len(some) == CHUNK_ROWS:
                yield some
                some = []
        if some:
            yield some

    def _numbers(self, rows: list[tuple[Any, ...]], count: int, table: str) -> Array:
        with self._refusing(table):
            filled = [[UNKNOWN if value is None else _number(value) for value in row[:count]] for row in rows]
            return checked(np.array(filled, np.int64), self.path, table)

    def _devices(self, rows: list[tuple[Any, ...]]) -> Array:
        with self._refusing("deviceId"):
            return self.names.devices.numbers(device_of(row[-1]) for row in rows)

    @contextmanager
    def _refusing(self, table: str) -> Iterator[None]:
        """Turns a ValueError into a refusal of the table."""
        try:
            yield
        except ValueError as error:
            raise RankmemError(
                Code.INVALID,
                f"{self.path}: {table} {error}",
                "the database is damaged: export or copy it again",
            ) from error

    def _own(self, values: Array, rows: list[tuple[Any, ...]]) -> Array:
        """The rows of the rank's own devices."""
        if self._device_id is None:
            return values
        kept: Array = values[np.array([row[-1] == self._device_id for row in rows], np.bool_)]
        return kept


def _form(database: SqliteRecording, table: str, column: str, statement: str) -> str:
    """The statement for the spelling of the database's columns."""
    return statement if database.has(table, column) else f"{statement}_snake"


def rank_devices(path: Path, facts: RankFacts) -> list[tuple[RankFacts, int | None]]:
    """The ranks in a database, each with its known facts, and its device where there are several.

    Raises:
        RankmemError: INVALID if it has no tables of memory.
    """
    with SqliteRecording(path) as database:
        if not any(database.has(table) for table in MEMORY_TABLES):
            raise NothingHereError(
                f"{path} has none of the tables {', '.join(sorted(MEMORY_TABLES))}",
                "record with profile_memory=True (torch_npu.profiler) and export_type Db",
            )
        found: dict[str, Any] = {}
        if database.has("HOST_INFO", "hostUid", "hostName"):
            uid, name = database.row("ascend/host") or (None, None)
            found |= {
                "host_uid": None if uid is None else str(uid),
                "host_name": None if name is None else str(name),
            }
        if database.has("SESSION_TIME_INFO", "startTimeNs", "endTimeNs"):
            started, ended = database.row("ascend/span") or (None, None)
            found |= {"started_ns": _whole(started), "ended_ns": _whole(ended)}
        ranks = (
            list(database.rows("ascend/ranks"))
            if database.has("RANK_DEVICE_MAP", "rankId", "deviceId")
            else []
        )
    known = [(int(rank), device) for rank, device in ranks if isinstance(rank, int) and rank >= 0]
    if len({rank for rank, _ in known}) > 1:
        return [(_with(facts, found | {"rank": rank}), device) for rank, device in known]
    return [(_with(facts, found | ({"rank": known[0][0]} if known else {})), None)]


def _with(facts: RankFacts, found: Mapping[str, Any]) -> RankFacts:
    return replace(facts, **{name: value for name, value in found.items() if value is not None})


def _whole(value: object) -> int | None:
    """A plausible time; without one the times of the rows count."""
    if not isinstance(value, (int, float)) or not 0 < value <= NUMBER_MAX:
        return None
    return int(value)


def _number(value: object) -> int:
    """A whole number: SQLite does not enforce the types of columns.

    Raises:
        ValueError: it is not one, or absurd.
    """
    if isinstance(value, int):
        number = value
    else:
        try:
            number = int(value)  # type: ignore[call-overload]
        except (ValueError, TypeError, OverflowError):
            raise ValueError(f"holds {str(value)[:QUOTED_CHARS]!r}, not a whole number") from None
    if not UNKNOWN <= number <= -UNKNOWN - 1:
        raise ValueError(f"holds a number of {len(str(abs(number)))} digits")
    return number
