"""Writes results: a table for people, JSON or CSV for programs.

Stage: render, the last one. In: a pyarrow Table. Out: bytes on stdout (data) and stderr (notes). JSON and CSV
have the result's own column names, plain bytes and nanoseconds. Runs in the command line's process and main
thread.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import enum
import json
import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final, TextIO

from rankmem_aggregator.query.next_commands import COMMAND
from rankmem_cli.show import units
from rankmem_cli.show.progress import show_progress

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Console

    from rankmem_agent.tap.doctor import Check
    from rankmem_cli.show.table import Column

NOTE_CELLS_MIN: Final = 40
"""Notes are not wrapped narrower: the terminal then wraps them itself."""
_HELD_SPACE: Final = "\0"
"""Within a command; ``safe_text`` leaves none in a text."""
STACK_SEPARATOR: Final = " < "
"""Between the frames of a stack in CSV, nearest to the operator first."""


class Format(enum.StrEnum):
    """The output format of a result."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def show(
    rows: pa.Table, columns: Sequence[Column], *, output: Format, title: str = "", notes: Sequence[str] = ()
) -> None:
    """Writes a result to stdout.

    Args:
        rows: the result.
        columns: those of a table; JSON and CSV contain all.
        output: the format.
        title: printed above a table, on stderr.
        notes: lines below the title, also on stderr: what the figures of the table mean.
    """
    if output is Format.TABLE:
        for line in (title, *notes) if title else notes:
            note(line)
        show_table(rows, columns)
    else:
        start = begin(output)
        start.write(rows)
        start.end()


def show_table(
    rows: pa.Table, columns: Sequence[Column], *, title: str = "", file: TextIO | None = None
) -> None:
    """Writes a table for people, fitted to the terminal's width; to a pipe, at full width."""
    from rankmem_cli.show.table import lay_out

    console = console_for(file or sys.stdout)
    width = console.width if console.is_terminal else None
    drawn, left_out = lay_out(rows, columns, width)
    if title:
        note(title)
    if width is None:
        console.width = 10_000  # a pipe has no width; rich would cut at 80
    console.print(drawn)
    if rows.num_rows == 0:
        note("no rows")
    if left_out:
        note(f"columns left out: {', '.join(left_out)} (--format json has all)")


def console_for(file: TextIO) -> Console:
    """A console that writes plain text where the file is no terminal or NO_COLOR is set."""
    from rich.console import Console

    return Console(file=file, highlight=False, markup=False, emoji=False, soft_wrap=False)


def note(text: str) -> None:
    """Prints a line on stderr, after what stdout has so far; wrapped to fit a terminal.

    A command in it is not wrapped, so that it can be copied: where it is too long, the terminal does that.
    """
    sys.stdout.flush()
    text = units.safe_text(text)
    if sys.stderr.isatty():
        indent = " " * (len(text) - len(text.lstrip()))
        width = max(get_terminal_size().columns, NOTE_CELLS_MIN)
        held = COMMAND.sub(lambda found: found[0].replace(" ", _HELD_SPACE), text)
        lines = textwrap.wrap(
            held, width, subsequent_indent=f"{indent}  ", break_on_hyphens=False, break_long_words=False
        )
        text = "\n".join(lines).replace(_HELD_SPACE, " ")
    print(text, file=sys.stderr, flush=True)


class JsonRows:
    """A JSON array with one row per line, written batch by batch."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._count = 0

    def write(self, rows: pa.Table) -> None:
        """Appends the rows of one batch."""
        for row in rows.to_pylist():
            self._file.write(",\n " if self._count else "[")
            # ASCII only: an escape sequence or a bidi mark in a name stays harmless on a terminal.
            cells = {name: _plain_cell(name, value) for name, value in row.items()}
            json.dump(cells, self._file, allow_nan=False)
            self._count += 1

    def end(self) -> None:
        """Closes the array; no rows give ``[]``."""
        self._file.write("]\n" if self._count else "[]\n")
        self._file.flush()


class CsvRows:
    """Comma-separated values with a header line, written batch by batch."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._writer = csv.writer(file, lineterminator="\n")
        self._headed = False

    def write(self, rows: pa.Table) -> None:
        """Appends the rows of one batch, after the header if it is the first."""
        if not self._headed:
            self._writer.writerow(rows.column_names)
            self._headed = True
        guard = units.safe_text if self._file.isatty() else str
        for row in rows.to_pylist():
            self._writer.writerow([_csv_cell(_plain_cell(*cell), guard) for cell in row.items()])

    def end(self) -> None:
        """Flushes."""
        self._file.flush()


def begin(output: Format, file: TextIO | None = None) -> JsonRows | CsvRows:
    """The writer of a format that takes rows batch by batch."""
    return CsvRows(file or sys.stdout) if output is Format.CSV else JsonRows(file or sys.stdout)


def _plain_cell(name: str, value: Any) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None and name.endswith("_utc"):
        value = value.replace(tzinfo=datetime.UTC)  # UTC by the column's name; its type has no zone
    return plain(value)


def plain(value: Any) -> Any:
    """An Arrow value as JSON can carry it: whole decimals as integers, times in ISO 8601, bytes in hex."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, decimal.Decimal):  # DuckDB's sum() of BIGINT is a HUGEINT
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _csv_cell(value: Any, guard: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = STACK_SEPARATOR.join(value)
    elif isinstance(value, list | dict):
        value = json.dumps(value)
    return guard(units.csv_text(value)) if isinstance(value, str) else value


def head(rows: pa.Table, limit: int | None, *, output: Format, table_rows: int) -> pa.Table:
    """The first rows of a sorted result, with a note if a table omits some.

    Args:
        rows: the result, sorted.
        limit: the user's limit; 0 for all, None for the format's default.
        output: JSON and CSV have no default limit.
        table_rows: the default limit of a table.
    """
    rows_max = _rows_max(limit, output, table_rows)
    if rows_max is None or rows.num_rows <= rows_max:
        return rows
    if limit is None:
        note(f"the first {rows_max} of {rows.num_rows} rows; --limit 0 shows all")
    return rows.slice(0, rows_max)


def show_stream(
    batches: Iterator[pa.RecordBatch], limit: int | None, *, output: Format, table_rows: int
) -> None:
    """Writes a result batch by batch and reads no more than it shows.

    Args as in :func:`head`; values are not converted.
    """
    import pyarrow as pa

    from rankmem_cli.show.table import plain_columns

    rows_max = _rows_max(limit, output, table_rows)
    kept, more = _first(batches, rows_max)
    if output is not Format.TABLE:
        writer = begin(output)
        for batch in kept:
            writer.write(pa.Table.from_batches([batch]))
        writer.end()
        return
    with show_progress("querying"):
        rows = pa.Table.from_batches(list(kept))
    show_table(rows, plain_columns(rows))
    if more() and limit is None:
        note(f"the first {rows_max} rows; --limit 0 shows all")


def first_rows(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    """The batches up to the user's limit of rows; None and 0 for all."""
    kept, _ = _first(batches, limit or None)
    return kept


def _rows_max(limit: int | None, output: Format, table_rows: int) -> int | None:
    if limit is not None:
        return limit or None
    return table_rows if output is Format.TABLE else None


def _first(
    batches: Iterator[pa.RecordBatch], rows_max: int | None
) -> tuple[Iterator[pa.RecordBatch], Callable[[], bool]]:
    """The batches up to ``rows_max`` rows, and, once those are consumed, whether there were more."""
    cut = [False]

    def keep() -> Iterator[pa.RecordBatch]:
        left = rows_max
        for batch in batches:
            if left is not None and batch.num_rows > left:
                cut[0] = True
                yield batch.slice(0, left)
                return
            yield batch
            left = None if left is None else left - batch.num_rows

    return keep(), lambda: cut[0]


def show_checks(checks: Sequence[Check]) -> bool:
    """Writes the results of ``rankmem doctor``, one line per check; returns whether all passed."""
    from rich.text import Text

    console = console_for(sys.stdout)
    for check in checks:
        mark = ("ok    ", "green") if check.ok else ("FAILED", "red")
        console.print(
            Text.assemble(mark, "  ", units.safe_text(f"{check.name}: {check.detail}")), soft_wrap=True
        )
        if check.hint and not check.ok:
            console.print(Text(f"        Try: {units.safe_text(check.hint)}"), soft_wrap=True)
    return all(check.ok for check in checks)
