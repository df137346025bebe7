"""A consistent copy of a database in use, as a plain DuckDB file.

Stage: export. In: a cursor in one read transaction, so all tables are of one instant; out: a file with
all tables, comments, views and macros. A confined instance may neither COPY nor ATTACH, so the rows are
read as Arrow and written by another instance. The file gets its name only when it is whole.
Runs in the caller's thread; holds one Arrow batch at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

import duckdb

from rankmem_aggregator.store import schema, templates
from rankmem_aggregator.store.instance import Settings
from rankmem_aggregator.store.private_files import PRIVATE_MODE
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION

BATCH_ROWS: Final = 122_880
"""DuckDB's row group: one batch fills one."""

_SETTINGS: Final[Settings] = {
    "memory_limit": "1GB",
    "threads": 1,
    "default_block_size": schema.BLOCK_BYTES,
}
"""The copying instance lives beside the one in use; one thread keeps rows in order and row groups full."""


def export_duckdb(
    source: duckdb.DuckDBPyConnection,
    out_path: Path,
    present: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Copies the source's database to a new file.

    Args:
        source: a connection in a transaction; all tables are read in it.
        out_path: must not exist; only this user may read the file.
        present: the columns that each table has; None: those in the source's catalog.

    Raises:
        RankmemError: CONFLICT if the file exists; EXHAUSTED where the disk is full.
    """
    if out_path.exists():
        raise RankmemError(Code.CONFLICT, f"{out_path} already exists", "give another name, or remove it")
    has = schema.columns_present(source) if present is None else present
    try:
        # A folder of mode 0700: no other user sees the file or its log before it has its own mode.
        with tempfile.TemporaryDirectory(prefix=".rankmem-copy-", dir=out_path.parent) as folder:
            unfinished = Path(folder) / "copy.duckdb"
            is_made = templates.place(unfinished)
            with duckdb.connect(unfinished, config=_SETTINGS) as target:
                if not is_made:
                    templates.make(target)
                _copy(source, target, has)
            unfinished.chmod(PRIVATE_MODE)
            unfinished.replace(out_path)
    except duckdb.Error as exc:
        if "No space left" not in str(exc):
            raise
        raise RankmemError(
            Code.EXHAUSTED,
            f"cannot write {out_path}: No space left on device",
            "give another path, or make room",
        ) from exc
    except OSError as exc:
        raise RankmemError(
            Code.EXHAUSTED, f"cannot write {out_path}: {exc.strerror or exc}", "give another path"
        ) from exc


def _copy(
    source: duckdb.DuckDBPyConnection,
    target: duckdb.DuckDBPyConnection,
    present: Mapping[str, Collection[str]],
) -> None:
    for table in schema.ALL_TABLES.values():
        if table.name not in present:  # a file of an older version
            continue
        statement = schema.select_statement(table, present[table.name])
        reader = source.sql(statement).to_arrow_reader(BATCH_ROWS)
        target.register(schema.INCOMING, reader)
        target.execute(schema.append_statement(table))
        target.unregister(schema.INCOMING)
    target.execute("UPDATE rankmem_meta SET schema_version = ?", [SCHEMA_VERSION])
    target.execute("CHECKPOINT")
