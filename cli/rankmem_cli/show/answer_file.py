"""``rankmem sql --out FILE``: an answer as a file, complete or absent.

Stage: render. In: batches of rows as they are read. Out: CSV, JSON or Parquet, by the name's extension.
Replaces COPY … TO, which cannot run: a database file is opened without access to any other file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from rankmem_aggregator.exports.names import is_database
from rankmem_cli.show.render import Format, begin
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa


class _Rows(Protocol):
    def write(self, rows: pa.Table) -> None:
        """Appends the rows of one batch."""

    def end(self) -> None:
        """Completes the file."""


def check_out(out: Path, output: Format, *, force: bool) -> None:
    """Refuses a bad file name before anything is asked.

    Raises:
        RankmemError: INVALID for an unknown extension or one that contradicts ``--format``; CONFLICT for a
            database, or an existing file without ``force``; NOT_FOUND without its folder.
    """
    if out.suffix.lower() not in _WRITERS:
        raise RankmemError(Code.INVALID, f"{out.name} has no known extension", f"use {', '.join(_WRITERS)}")
    if output is not Format.TABLE and out.suffix.lower() != f".{output}":
        raise RankmemError(
            Code.INVALID, f"--format {output} and --out {out} contradict each other", "leave out --format"
        )
    if not out.parent.is_dir():
        raise RankmemError(Code.NOT_FOUND, f"there is no folder {out.parent}", "create it, or choose another")
    if out.is_dir() or is_database(out):
        what = "folder" if out.is_dir() else "database"
        raise RankmemError(Code.CONFLICT, f"{out} is a {what}", "choose another name")
    if os.path.lexists(out) and not force:
        raise RankmemError(Code.CONFLICT, f"{out} already exists", "choose another name, or use --force")


def write_answer(batches: Iterator[pa.RecordBatch], out: Path) -> int:
    """Writes the rows and returns their number. Check the name with :func:`check_out` first.

    Raises:
        RankmemError: INVALID for a type that the format lacks, EXHAUSTED if the file cannot be written.
    """
    import pyarrow as pa

    unfinished = out.with_name(f".rankmem-{os.getpid()}-{out.name}")
    first = next(batches)  # an error in the SQL is raised before a file is created
    try:
        count = _write(first, batches, unfinished, _WRITERS[out.suffix.lower()])
        unfinished.replace(out)
    except pa.ArrowNotImplementedError as exc:
        raise RankmemError(
            Code.INVALID, f"cannot write {out}: {exc}", "cast the column, for example to VARCHAR"
        ) from exc
    except OSError as exc:
        raise RankmemError(
            Code.EXHAUSTED,
            f"cannot write {out}: {exc.strerror or exc}",
            "choose another path, or free some space",
        ) from exc
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _write(
    first: pa.RecordBatch,
    batches: Iterator[pa.RecordBatch],
    path: Path,
    writer_of: Callable[[Path, pa.Schema], _Rows],
) -> int:
    import pyarrow as pa

    writer, count = writer_of(path, first.schema), 0
    for batch in chain([first], batches):
        writer.write(pa.Table.from_batches([batch]))
        count += batch.num_rows
    writer.end()
    return count


class _Text:
    """CSV or JSON, the same as on stdout."""

    def __init__(self, path: Path, output: Format) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._rows = begin(output, self._file)

    def write(self, rows: pa.Table) -> None:
        self._rows.write(rows)

    def end(self) -> None:
        self._rows.end()
        self._file.close()


class _Parquet:
    def __init__(self, path: Path, schema: pa.Schema) -> None:
        from pyarrow import parquet

        self._writer = parquet.ParquetWriter(path, schema, compression="zstd")

    def write(self, rows: pa.Table) -> None:
        self._writer.write_table(rows)

    def end(self) -> None:
        self._writer.close()


_WRITERS: Final[dict[str, Callable[[Path, pa.Schema], _Rows]]] = {
    ".csv": lambda path, schema: _Text(path, Format.CSV),
    ".json": lambda path, schema: _Text(path, Format.JSON),
    ".parquet": _Parquet,
}
"""By file name extension."""
