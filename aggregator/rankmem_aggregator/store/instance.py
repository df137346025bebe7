"""DuckDB's instance with the database attached, confined: it gives the store its write connection.

Stage: open, before the store. In: options; out: a connection whose database has this version's tables and
views. From then on the instance sees no files, extensions or settings but its own (see ``sandbox``).
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

import duckdb

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.sql import install_views
from rankmem_aggregator.store import schema, templates
from rankmem_aggregator.store.address import address_path, read_address
from rankmem_aggregator.store.disk import could_not_write
from rankmem_aggregator.store.stored_tables import check_nothing_runs, stored_tables
from rankmem_protos.errors import Code, RankmemError

SPILL_FACTOR: Final = 4
"""Times the memory limit: a client may ask for a sort or a join of that size."""
VACUUM_TASKS_MAX: Final = 4
"""Of a table in a checkpoint: each makes three full row groups of four, in a tenth of a second for which
commits wait. DuckDB's own is 100: a checkpoint took 0.65 CPU seconds a million events, with 4 0.33, for 0.6
bytes an event more."""
_CATALOG: Final = "rankmem"
"""Name of the database within the instance. No statement contains it: the file may have any name."""
USE: Final = f"USE {_CATALOG}"
"""The first statement of every cursor."""
TIME_ZONE: Final = "SET GLOBAL TimeZone = 'UTC'"
"""Promised by columns named _utc; the default is the machine's zone."""
CONFINEMENT: Final = ("SET enable_external_access = false", "SET lock_configuration = true")
"""After the file is attached: with external access off, DuckDB refuses even the temp_directory of its own
options."""

ISOLATED: Final = {
    # Otherwise a client's FROM name would find Python variables of this process.
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
"""Settings of every instance of ours."""
_INVALIDATED: Final = "has been invalidated"

Settings = dict[str, str | bool | int | float | list[str]]
"""Of DuckDB, by name."""


def open_instance(config: AggregatorConfig) -> tuple[duckdb.DuckDBPyConnection, schema.DatabaseFacts]:
    """Opens or makes the database, brings its schema to this version, installs the views, confines it.

    Raises:
        RankmemError: CONFLICT if another process holds the file, INVALID if it is not a DuckDB file or has
            code that would run on our writes, UNSUPPORTED for a newer schema.
    """
    path = config.database_path
    is_made = templates.place(path)
    connection = _attached(path, config)
    try:
        # Before anything is looked up: an existing file may have been made by a stranger.
        for setting in (TIME_ZONE, *CONFINEMENT):
            connection.execute(setting)
        facts = schema.write_meta(connection) if is_made else _bring_up(connection)
    except duckdb.Error as exc:
        connection.close()
        raise _cannot_open(path, exc) from exc
    except BaseException:
        connection.close()
        raise
    return connection, facts


def is_invalidating(exc: BaseException) -> bool:
    """Whether DuckDB refuses to use the database after this error, but a new instance can.

    A failed rollback invalidates the instance, a failed checkpoint the database in it (seen: DuckDB 2.0).
    """
    return isinstance(exc, duckdb.FatalException) or _INVALIDATED in str(exc)


def _attached(path: Path, config: AggregatorConfig) -> duckdb.DuckDBPyConnection:
    """A connection to the file, in an instance without other databases.

    Attached, not opened: only then does DuckDB 2.0 take the size of a row group, which is not in the file.
    """
    connection = duckdb.connect(":memory:", config=_settings(config))
    try:
        connection.execute(
            f"ATTACH {schema.literal(str(path))} AS {_CATALOG} "
            f"(TYPE duckdb, ROW_GROUP_SIZE {config.row_group_rows})"
        )
        connection.execute(USE)
        connection.execute("DETACH memory")
    except duckdb.Error as exc:
        connection.close()
        raise _cannot_open(path, exc) from exc
    return connection


def _settings(config: AggregatorConfig) -> Settings:
    return {
        "memory_limit": f"{config.duckdb_memory()}B",
        "threads": config.thread_count(),
        "temp_directory": str(config.temp_path()),
        "max_temp_directory_size": f"{_spill_bytes(config)}B",
        "max_vacuum_tasks": VACUUM_TASKS_MAX,
        "checkpoint_threshold": f"{config.checkpoint_threshold_bytes}B",
        "default_block_size": schema.BLOCK_BYTES,
        **ISOLATED,
    }


def _spill_bytes(config: AggregatorConfig) -> int:
    """Bytes that queries may spill: never so many that the database has no room to grow."""
    free = shutil.disk_usage(config.database_path.parent).free
    return min(SPILL_FACTOR * config.memory_limit(), free // 2)


def _bring_up(connection: duckdb.DuckDBPyConnection) -> schema.DatabaseFacts:
    """Has a file have this version's tables and views."""
    check_nothing_runs(connection, _CATALOG)
    has_views = templates.has_views(connection, _CATALOG)
    facts = schema.prepare(connection, has_views=has_views)
    stored_tables(connection, _CATALOG)
    if not has_views:
        connection.execute("BEGIN TRANSACTION")
        install_views(connection)
        connection.execute("COMMIT")
        templates.keep_views(connection, _CATALOG)
    return facts


def _cannot_open(path: Path, exc: duckdb.Error) -> RankmemError:
    text = str(exc)
    if "already attached" in text:
        return RankmemError(Code.CONFLICT, f"{path} is open in this process: {text}", "close it there first")
    if "could not set lock" in text.lower():
        served = read_address(path)
        if served is not None:
            return RankmemError(
                Code.CONFLICT,
                f"{path} is held by the aggregator at {served.address} (pid {served.pid}, "
                f"see {address_path(path)})",
                f"ask it with --aggregator {served.address}, or stop it",
            )
        return RankmemError(
            Code.CONFLICT, f"{path} is held by another process: {text}", "close the program that has it open"
        )
    if could_not_write(exc):
        return RankmemError(
            Code.EXHAUSTED,
            f"{path} cannot be opened, its disk is full: {text}",
            "free space there, or raise the quota or limit",
        )
    if isinstance(exc, duckdb.IOException | duckdb.SerializationException):
        return RankmemError(
            Code.INVALID,
            f"{path} cannot be opened as a DuckDB database: {text}",
            "give another file with --db",
        )
    return RankmemError(Code.INTERNAL, f"{path} could not be prepared: {text}")
