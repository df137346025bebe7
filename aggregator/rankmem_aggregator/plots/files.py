"""A timeline in a file: a picture of it, or its points.

Stage: render, in the reader's process. In: a chart and the rows it was made from; out: one file, whole or
absent, of the kind that the end of its name gives. It replaces a file of that name, as ``-o`` does elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_aggregator.exports.names import is_database
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.plots.curves import Chart


def check_out_path(out_path: Path) -> None:
    """Checks the name of a file before anything is read or drawn.

    Raises:
        RankmemError: INVALID for an unknown extension, NOT_FOUND where the folder does not exist, CONFLICT
            for a database.
    """
    if out_path.suffix.lower() not in _WRITERS:
        raise RankmemError(
            Code.INVALID,
            f"{out_path} does not name a format",
            f"use a name that ends in {', '.join(_WRITERS)}",
        )
    if not out_path.parent.is_dir():
        raise RankmemError(
            Code.NOT_FOUND, f"there is no folder {out_path.parent}", "create it, or name another"
        )
    if is_database(out_path):
        raise RankmemError(Code.CONFLICT, f"{out_path} is a database", "give another name")


def write_timeline(chart: Chart, rows: pa.Table, out_path: Path) -> None:
    """Writes a page (.html), a picture (.png), or the rows (.csv, .parquet: the query's own columns).

    Raises:
        RankmemError: what :func:`check_out_path` raises; UNSUPPORTED for a PNG without matplotlib; INVALID
            where the file cannot be written.
    """
    check_out_path(out_path)
    content = _WRITERS[out_path.suffix.lower()](chart, rows)
    unfinished = out_path.with_name(f"{out_path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(content)
        unfinished.replace(out_path)
    except OSError as exc:
        raise RankmemError(Code.INVALID, f"cannot write {out_path}: {exc.strerror or exc}") from exc
    finally:
        unfinished.unlink(missing_ok=True)


def _html(chart: Chart, rows: pa.Table) -> bytes:
    from rankmem_aggregator.plots.html import html_page

    return html_page(chart).encode()


def _png(chart: Chart, rows: pa.Table) -> bytes:
    from rankmem_aggregator.plots.png import png_bytes

    return png_bytes(chart)


def _csv(chart: Chart, rows: pa.Table) -> bytes:
    import pyarrow as pa
    from pyarrow import csv

    from rankmem_aggregator.csv_cells import guarded

    out = pa.BufferOutputStream()
    out.write((",".join(rows.column_names) + "\n").encode())  # write_csv quotes every name
    csv.write_csv(guarded(rows), out, csv.WriteOptions(include_header=False, quoting_style="needed"))
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _parquet(chart: Chart, rows: pa.Table) -> bytes:
    import pyarrow as pa
    from pyarrow import parquet

    out = pa.BufferOutputStream()
    parquet.write_table(rows, out, compression="zstd")
    return out.getvalue().to_pybytes()  # type: ignore[no-any-return]


_WRITERS: Final[dict[str, Callable[[Chart, pa.Table], bytes]]] = {
    ".html": _html,
    ".png": _png,
    ".csv": _csv,
    ".parquet": _parquet,
}
