"""``rankmem sql``: SQL queries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from rankmem_cli.args import options
from rankmem_cli.show.render import Format
from rankmem_protos.errors import Code, RankmemError

TABLE_ROWS: Final = 1000
"""Default limit of a table: more is for a program, which uses JSON or CSV."""

Statement = Annotated[
    str, typer.Argument(metavar="SQL", help="One read-only statement; - reads it from stdin.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Write all rows to FILE.csv, FILE.json or FILE.parquet."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing --out file, but never a database.")]
Unsafe = Annotated[
    bool,
    typer.Option(
        "--unsafe",
        help="DuckDB without restrictions, read-only: the file's own views and macros, COPY, ATTACH, "
        "settings. Only for files that you trust.",
    ),
]


def sql(
    statement: Statement,
    db: options.ReadDb = None,
    lake: options.Lake = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    limit: options.Limit = None,
    output: options.Output = Format.TABLE,
    out: Out = None,
    force: Force = False,
    unsafe: Unsafe = False,
) -> None:
    """Run a read-only SQL query in DuckDB's dialect.

    Values are not converted: bytes and nanoseconds are plain integers. A database file is treated as
    untrusted: its tables are read through rankmem's own views, and no other file is read or written.
    """
    from rankmem_cli.show.answer_file import check_out, write_answer
    from rankmem_cli.show.completeness import note_incomplete_sessions, note_stale
    from rankmem_cli.show.render import first_rows, note, show_stream
    from rankmem_cli.show.session import open_queries

    source = options.source(db, lake, aggregator, tls_ca, tls_cert, tls_key, token_file)
    text = sys.stdin.read() if statement == "-" else statement
    if not text.strip():
        again = source.given.complete('rankmem sql "FROM peak_by_rank"')
        raise RankmemError(Code.INVALID, "the SQL is empty", again)
    if out is not None:
        check_out(out, output, force=force)
    with source.given.in_hints(), open_queries(source, unsafe=unsafe) as queries:
        if out is None:
            show_stream(queries.stream(text), limit, output=output, table_rows=TABLE_ROWS)
            note_stale(queries)
            note_incomplete_sessions(queries)
            return
        count = write_answer(first_rows(queries.stream(text), limit), out)
        note_stale(queries)
        note_incomplete_sessions(queries)
    note(f"wrote {out}: {count:,} rows")
