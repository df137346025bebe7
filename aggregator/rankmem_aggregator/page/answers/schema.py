"""What a statement can read: the tables, views and macros, with their columns.

Stage: page, in the thread of a request. From the house's own schema, not from the file: a file's own names
are never shown as ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import Final

import pyarrow as pa

from rankmem_aggregator.page.reading import of_database
from rankmem_aggregator.page.routes import DatabaseRoute, NoParameters
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.sql import Head, head_of, mindstudio_names, mindstudio_text, view_names, view_text
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import TABLES

SCHEMA: Final = pa.schema(
    [(name, pa.string()) for name in ("kind", "name", "call", "meaning", "column", "type", "column_meaning")]
)
_UNIT: Final = re.compile(r" ?\([^)]*\)")
"""After a column's name in the head of a view."""
Row = tuple[str, str, str, str, str, str, str]


def schema(queries: Queries, asked: NoParameters) -> pa.Table:
    """A row for each column of each table, view and macro: views and macros first, each kind by name.

    Columns: kind (view, macro, table), name, call (how it is written in SQL), meaning, column, type (Arrow's,
    of tables alone), column_meaning.
    """
    return of_database(_whole(), source="", sql="")


@cache
def _whole() -> pa.Table:
    rows = [*_views(), *_tables()]
    return pa.Table.from_arrays(
        [pa.array(column, pa.string()) for column in zip(*rows, strict=True)], schema=SCHEMA
    )


def _views() -> Iterator[Row]:
    named = [(name, head_of(view_text(name))) for name in sorted(view_names())]
    named += [(f"mindstudio.{name}", head_of(mindstudio_text(name))) for name in sorted(mindstudio_names())]
    for name, head in named:
        kind = "macro" if head.parameters else "view"
        for line in head.columns:
            columns, _, meaning = line.partition(": ")
            for column in _UNIT.sub("", columns).split(","):
                yield (kind, name, _call(name, head), head.question, column.strip(), "", meaning)


def _tables() -> Iterator[Row]:
    for table in sorted((TABLES | SUMMARY_TABLES).values(), key=lambda each: each.name):
        for column in table.columns:
            kind = getattr(column.type, "value_type", column.type)
            unit = f" ({column.unit})" if column.unit else ""
            yield ("table", table.name, table.name, table.doc, column.name, str(kind), f"{column.doc}{unit}")


def _call(name: str, head: Head) -> str:
    if not head.parameters:
        return name
    return f"{name}({', '.join(line.split(' (')[0].split(':')[0] for line in head.parameters)})"


ROUTES: Final = (DatabaseRoute(path="/schema", parameters=NoParameters, answer=schema),)
