"""``rankmem sql``: anything else."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from rankmem_cli.options import Aggregator, Limit, Output, ReadDb
from rankmem_cli.render import Format
from rankmem_protos.errors import Code, RankmemError

TABLE_ROWS: Final = 1000
"""Rows of a table unless --limit says otherwise: more is for a program, which asks for JSON or CSV."""

Statement = Annotated[
    str, typer.Argument(metavar="SQL", help="One statement, read-only; - reads it from stdin.")
]


def sql(
    statement: Statement,
    db: ReadDb = None,
    aggregator: Aggregator = None,
    limit: Limit = None,
    output: Output = Format.TABLE,
) -> None:
    """Runs read-only SQL of DuckDB's dialect.

    Values are shown as they are: plain bytes and nanoseconds.
    """
    from rankmem_cli.render import show_stream
    from rankmem_cli.target import open_queries

    text = sys.stdin.read() if statement == "-" else statement
    if not text.strip():
        raise RankmemError(Code.INVALID, "no SQL was given", 'rankmem sql "FROM peak_by_rank"')
    with open_queries(db, aggregator) as queries:
        show_stream(queries.stream(text), limit, output=output, table_rows=TABLE_ROWS)
