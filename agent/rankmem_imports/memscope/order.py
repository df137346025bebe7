"""Rows of msMemScope dumps in the order of time.

Stage: readers; the process of ``rankmem import``. Since it keeps a state for each block, msMemScope writes
a block's rows together, when it is freed or at the end: a file's order is that of the frees. In: rows; out:
the same rows by their time, those of one instant as they stood. They wait in a database without a name in
``TMPDIR``, which sorts on disk: memory does not grow with the dump.

Source: Ascend/msmemscope csrc/analysis/dump.cpp (DumpMemoryState).
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Final

from rankmem_imports.files.sqlite_recording import ROWS_FETCHED_MAX, statement_text
from rankmem_imports.memscope.rows import Row
from rankmem_protos.errors import Code, RankmemError

LATE_NS: Final = 1_000_000
"""A row that is older than one before it by more is not from a late thread: the file is by block."""
BY_BLOCK: Final = "allocation_id"
"""An attribute of the rows of versions that write by block."""


def by_time(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows in the order of their times.

    Raises:
        RankmemError: EXHAUSTED where the disk is full; what ``rows`` raises.
    """
    try:
        with closing(sqlite3.connect("")) as sorting:  # a file of its own, gone when it is closed
            sorting.executescript(statement_text("memscope/sorting"))
            sorting.executemany(statement_text("memscope/sorting_insert"), map(Row._asdict, rows))
            cursor = sorting.execute(statement_text("memscope/sorted"))
            while some := cursor.fetchmany(ROWS_FETCHED_MAX):
                yield from map(Row._make, some)
    except sqlite3.Error as exc:
        raise RankmemError(
            Code.EXHAUSTED,
            f"cannot sort a recording in {tempfile.gettempdir()}: {exc}",
            "set TMPDIR to a folder with as much room as the recording takes",
        ) from exc
