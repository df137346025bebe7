"""``docs/schema.md``, made from the declared tables and the heads of the views.

Stage: documentation; nothing at run time imports it. In: ``rankmem_protos.tables``, ``sql/views``. Out:
Markdown. ``python -m rankmem_aggregator.store.schema_doc`` writes it; with ``--check`` it fails where the
file is not current.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from rankmem_aggregator.sql import Head, head_of, mindstudio_names, mindstudio_text, view_names, view_text
from rankmem_aggregator.store.packing import PACKED
from rankmem_aggregator.store.schema import duckdb_type
from rankmem_protos.summary_tables import SUMMARY_TABLES
from rankmem_protos.tables import SCHEMA_VERSION, TABLES, Column, Table

PATH: Final = Path("docs/schema.md")
"""From the root of the source tree, where ``make docs`` runs."""

_INTRODUCTION: Final = f"""\
# The tables and views

Schema version {SCHEMA_VERSION}. Made by `python -m rankmem_aggregator.store.schema_doc`; change
`rankmem_protos/tables.py` or the heads in `rankmem_aggregator/sql/views` instead of this page.

Bytes are integers, times are nanoseconds since 1970-01-01 UTC. In **tables** times are those of the host
that wrote them; in **views and macros** they are on the session's common clock, the aggregator's, and a
column `…_utc` beside them is the same instant as TIMESTAMP in UTC. Nothing is renamed or removed between
versions. The rows of the largest ones ({", ".join(PACKED)}) stand in the schema `packed`, in a
smaller form; read them by their names here.
[sql.md](sql.md) shows how to ask.
"""

_MINDSTUDIO: Final = """\
## The schema mindstudio

MindStudio's own tables as views, for whoever has queries for them: its column names in its order, its
units. There one file is one rank; here columns sessionId, attempt and rankId stand before them where a row
belongs to a rank, so `SELECT * EXCLUDE (sessionId, attempt, rankId) FROM mindstudio.MEMORY_RECORD WHERE
rankId = 3` is its table. The macros overall_curve, stream_curve and component_curve are its group-bys
Overall, Stream and Component, component_peak is its component table, and static_curve its graph of a static
graph. As there, Stream shows the device's totals at each record
of a stream; a stream's own are in `allocator_curve(of_session, of_rank, 'stream')`.
"""


def render() -> str:
    """The whole page."""
    parts = [_INTRODUCTION, "## Tables\n"]
    parts += [_table(table) for table in (TABLES | SUMMARY_TABLES).values()]
    parts.append("## Views and macros\n")
    parts += [_view(name, view_text(name)) for name in sorted(view_names())]
    parts.append(_MINDSTUDIO)
    parts += [_view(f"mindstudio.{name}", mindstudio_text(name)) for name in sorted(mindstudio_names())]
    return "\n".join(parts)


def main(arguments: list[str] | None = None) -> int:
    """Writes the page, or with ``--check`` checks that it is current; returns the exit code."""
    parser = argparse.ArgumentParser(description="Writes docs/schema.md.")
    parser.add_argument("--check", action="store_true", help="fail where the page is not current")
    parser.add_argument("--path", type=Path, default=PATH, help="the page (default: %(default)s)")
    options = parser.parse_args(arguments)
    page = render()
    if not options.check:
        options.path.write_text(page, encoding="utf-8")
        return 0
    if options.path.is_file() and options.path.read_text(encoding="utf-8") == page:
        return 0
    print(
        f"{options.path} is not current; run: python -m rankmem_aggregator.store.schema_doc", file=sys.stderr
    )
    return 1


def _table(table: Table) -> str:
    key = f" A row replaces the one with the same {', '.join(table.key)}." if table.key else ""
    rows = [f"| {c.name} | {_type(c)} | {c.unit} | {_cell(c.doc)} |" for c in table.columns]
    lines = [f"### {table.name}\n", f"{table.doc}{key}\n"]
    lines += ["| column | type | unit | meaning |", "|---|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _type(column: Column) -> str:
    return duckdb_type(column.type) + ("" if column.nullable else " NOT NULL")


def _view(name: str, text: str) -> str:
    head = head_of(text)
    lines = [f"### {signature(name, head)}\n", f"{head.question}\n"]
    if head.parameters:
        lines += ["| parameter | meaning |", "|---|---|", *_rows(head.parameters), ""]
    lines += ["| column | meaning |", "|---|---|", *_rows(head.columns), ""]
    return "\n".join(lines)


def signature(name: str, head: Head) -> str:
    """``name`` of a view, ``name(parameter, …)`` of a macro."""
    if not head.parameters:
        return name
    return f"{name}({', '.join(line.split(' (')[0].split(':')[0] for line in head.parameters)})"


def _rows(lines: tuple[str, ...]) -> Iterator[str]:
    for line in lines:
        name, colon, meaning = line.partition(": ")
        yield f"| {_cell(name)} | {_cell(meaning)} |" if colon else f"| {_cell(line)} | |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    raise SystemExit(main())
