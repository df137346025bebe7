"""``rankmem sql``: anything else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from rankmem_cli.args.options import Aggregator, Limit, Output, ReadDb
from rankmem_cli.show.render import Format
from rankmem_protos.errors import Code, RankmemError

TABLE_ROWS: Final = 1000
"""Rows of a table unless --limit says otherwise: more is for a program, which asks for JSON or CSV."""

Statement = Annotated[
    str, typer.Argument(metavar="SQL", help="One statement, read-only; - reads it from stdin.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write all rows to FILE.csv, FILE.json or FILE.parquet."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace what has the name of --out; never a database.")]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe",
        help="DuckDB bare, read-only: the file's own views and macros, COPY, ATTACH, settings. For a file "
        "that you trust.",
    ),
]


def sql(
    statement: Statement,
    db: ReadDb = None,
    aggregator: Aggregator = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
    out: Out = None,
    force: Force = False,
    unsafe: Unsafe = False,
) -> None:
    """Runs read-only SQL of DuckDB's dialect.

    Values are shown as they are: plain bytes and nanoseconds. A file is opened as if a stranger had made it:
    its tables are read by rankmem's own views, and no other file is read or written.
    """
    from rankmem_cli.show.answer_file import check_out, write_answer
    from rankmem_cli.show.completeness import note_incomplete_sessions
    from rankmem_cli.show.render import first_rows, note, show_stream
    from rankmem_cli.show.session import open_queries

    text = sys.stdin.read() if statement == "-" else statement
    if not text.strip():
        raise RankmemError(Code.INVALID, "no SQL was given", 'rankmem sql "FROM peak_by_rank"')
    if out is not None:
        check_out(out, output, force=force)
    with open_queries(db, aggregator, unsafe=unsafe) as queries:
        if out is None:
            show_stream(queries.stream(text), limit, output=output, table_rows=TABLE_ROWS)
            note_incomplete_sessions(queries)
            return
        count = write_answer(first_rows(queries.stream(text), limit), out)
        note_incomplete_sessions(queries)
    note(f"wrote {out}: {count:,} rows")
