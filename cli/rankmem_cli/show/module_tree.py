"""The rows of modules as an indented tree.

Stage: render. In: the rows of the named query ``modules``, in tree order. Out: fewer rows, or the same with a
column ``tree`` of indented names. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rankmem_cli.show.render import Format, note
from rankmem_cli.show.table import OUTSIDE_OF_MODULES

if TYPE_CHECKING:
    import pyarrow as pa

INDENT: Final = "  "
ROOT: Final = "(root)"
"""The model itself, a module inside no other, has an empty path."""


def no_deeper(rows: pa.Table, depth: int | None) -> pa.Table:
    """The modules at most ``depth`` levels below a root; all for None."""
    if depth is None:
        return rows
    import pyarrow.compute as pc

    return rows.filter(pc.fill_null(pc.less_equal(rows["depth"], depth), True))


def largest(rows: pa.Table, limit: int | None, *, output: Format, table_rows: int) -> pa.Table:
    """The largest modules, still in tree order, with a note if a table omits some.

    A module holds at least as much as any module inside it, so its ancestors are always shown too.

    Args:
        rows: in tree order.
        limit: the user's limit; 0 for all, None for the format's default.
        output: JSON and CSV have no default limit.
        table_rows: the default limit of a table.
    """
    rows_max = (table_rows if output is Format.TABLE else 0) if limit is None else limit
    if rows_max == 0 or rows.num_rows <= rows_max:
        return rows
    totals, depths = rows["total_bytes"].to_pylist(), rows["depth"].to_pylist()
    order = sorted(range(rows.num_rows), key=lambda place: (-totals[place], depths[place] or 0, place))
    if limit is None:
        note(f"the {rows_max} largest of {rows.num_rows} modules; --limit 0 shows all")
    return rows.take(sorted(order[:rows_max]))


def as_tree(rows: pa.Table, outside: str = OUTSIDE_OF_MODULES) -> pa.Table:
    """The rows with a column ``tree``: each module's own name, indented by its depth.

    Args:
        outside: the name for blocks without a module.
    """
    import pyarrow as pa

    pairs = zip(rows["module"].to_pylist(), rows["depth"].to_pylist(), strict=True)
    labels = [_label(module, depth or 0) if module is not None else outside for module, depth in pairs]
    return rows.append_column("tree", pa.array(labels, pa.string()))


def _label(module: str, depth: int) -> str:
    parts = module.split(".")
    # A path with more parts than its depth has no row for its parent: it keeps them.
    return INDENT * depth + (".".join(parts[min(depth, len(parts) - 1) :]) or ROOT)
