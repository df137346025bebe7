"""Lays out rows as a table that fits the terminal.

Stage: render. In: a pyarrow Table and the columns that a verb wants shown. Out: a rich table whose numbers
are never cut. On a narrow terminal times first get their short form, then texts are shortened with an
ellipsis, then the least important columns are dropped (and returned to the caller). Runs in the command
line's process. JSON and CSV do not pass through here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from rankmem_aggregator.insights.imbalance_text import parts_text
from rankmem_cli.show import units
from rankmem_protos.clock import distance_ns

if TYPE_CHECKING:
    import pyarrow as pa

GUTTER: Final = 2
"""Blank cells between columns."""
TEXT_CELLS_MIN: Final = 12
"""A text is not shortened below this, where it says little; a column is dropped instead."""
NAME_CELLS_MIN: Final = 26
"""The same for the name of a row: aten::convolution_backward is 26 cells."""
TEXT_CELLS_MAX: Final = 72
"""A text is shortened to this even if there is room: a mangled C++ name fills any screen."""
ELLIPSIS: Final = "…"
OUTSIDE: Final = "(outside of operators)"
"""An allocation made outside any operator, by a direct call of the allocator."""
OUTSIDE_OF_MODULES: Final = "(outside of modules)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """How to show one column of a result."""

    header: str
    name: str
    """The result's column."""
    forms: tuple[Callable[[Any], str], ...] = (str,)
    """Ways to write a value, from the widest to the narrowest."""
    numeric: bool = False
    """Numbers are right-aligned and never shortened."""
    keep_end: bool = False
    """For paths: shorten at the front, since the end matters more."""
    cells_min: int = TEXT_CELLS_MIN
    """A text is not shortened below this."""
    importance: int = 1
    """On a narrow terminal the least important column is dropped first, the rightmost of equals. 0: never."""


def _safe(value: object) -> str:
    return units.NOTHING if value is None else units.safe_text(str(value))


def _operator(value: object) -> str:
    return OUTSIDE if value is None else _safe(value)


def _module(value: object) -> str:
    return OUTSIDE_OF_MODULES if value is None else _safe(value)


def _words(value: list[object] | None) -> str:
    return units.safe_text(", ".join(map(str, value))) if value else units.NOTHING


def _parts(value: list[dict[str, Any]]) -> str:
    return units.safe_text(parts_text([(str(part["group_name"]), part["bytes"]) for part in value]))


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return units.safe_text(" < ".join(str(item) for item in value))
    return _safe(value)


class _Make(Protocol):
    def __call__(self, header: str, name: str, *, importance: int = ...) -> Column: ...


def _kind(
    *forms: Callable[[Any], str],
    numeric: bool = False,
    keep_end: bool = False,
    cells_min: int = TEXT_CELLS_MIN,
    importance: int = 1,
) -> _Make:
    """A function that makes columns of one kind; ``importance`` is its default."""
    default = importance

    def make(header: str, name: str, *, importance: int = default) -> Column:
        return Column(
            header=header,
            name=name,
            forms=forms,
            numeric=numeric,
            keep_end=keep_end,
            cells_min=cells_min,
            importance=importance,
        )

    return make


text = _kind(_safe)
"""Makes a column of text from outside, made safe for a terminal."""
operator = _kind(_operator, cells_min=NAME_CELLS_MIN)
"""Operators: text that stays long enough to be distinguishable."""
path = _kind(_safe, keep_end=True, cells_min=NAME_CELLS_MIN)
"""Paths or source lines, shortened at the front."""
module = _kind(_module, keep_end=True, cells_min=NAME_CELLS_MIN, importance=0)
"""Modules: paths shortened at the front."""
tree = _kind(_safe, cells_min=NAME_CELLS_MIN, importance=0)
"""Indented names; by default never dropped."""
words = _kind(_words)
"""Short lists of names."""
parts = _kind(_parts, cells_min=NAME_CELLS_MIN)
"""The largest parts of a difference, by name, with their signs."""
size = _kind(units.bytes_text, numeric=True)
"""Bytes, shown in KiB, MiB, GiB."""
signed_size = _kind(units.growth_text, numeric=True)
"""Differences in bytes, with their sign."""
percent = _kind(units.percent_text, numeric=True)
"""Fractions of one, shown as per cent."""
count = _kind(units.count_text, numeric=True)
"""Counts, with thousands separators."""
number = _kind(_plain, numeric=True, importance=0)
"""Identifying numbers, such as a rank: without separators; by default never dropped."""
utc = _kind(units.utc_text, units.utc_clock_text, numeric=True)
"""Instants (ns), shown in UTC; only the time of day if the table is narrow."""
utc_day = _kind(units.utc_text, units.utc_minute_text, numeric=True)
"""Instants (ns) of different days, in UTC; to the minute if the table is narrow."""
age = _kind(units.age_text, numeric=True)
"""Durations (ns)."""
flag = _kind(units.flag_text)
"""Booleans, shown as yes and no."""


def offset(header: str, name: str, session_started_ns: int | None, *, importance: int = 1) -> Column:
    """A column of instants (ns), shown as offset from the session's start."""

    def write(time_ns: int | None) -> str:
        return units.offset_text(distance_ns(time_ns, session_started_ns))

    return Column(header=header, name=name, forms=(write,), numeric=True, importance=importance)


def plain_columns(rows: pa.Table) -> list[Column]:
    """Every column of a result, unconverted, for the user's own SQL."""
    import pyarrow as pa

    def is_number(kind: pa.DataType) -> bool:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    return [
        Column(header=units.safe_text(f.name), name=f.name, forms=(_plain,), numeric=is_number(f.type))
        for f in rows.schema
    ]


@dataclass(slots=True)
class _Laid:
    """A column during layout: its texts and its width."""

    column: Column
    position: int
    values: list[Any]
    cells: list[str] = field(default_factory=list)
    width: int = 0

    def write(self, form: int) -> None:
        write = self.column.forms[min(form, len(self.column.forms) - 1)]
        self.cells = [write(value) for value in self.values]
        longest = max((cell_len(cell) for cell in self.cells), default=0)
        if not self.column.numeric:
            longest = min(longest, TEXT_CELLS_MAX)
        self.width = max(longest, cell_len(self.column.header))

    def has_values(self) -> bool:
        """False if no row has a value: such a column is dropped without notice."""
        return any(value is not None for value in self.values)

    def least(self) -> int:
        """The fewest cells this column can be shown in."""
        if self.column.numeric:
            return self.width
        return min(self.width, max(self.column.cells_min, cell_len(self.column.header)))


def lay_out(rows: pa.Table, columns: Sequence[Column], width: int | None) -> tuple[Table, list[str]]:
    """The table, and the headers of the columns that did not fit.

    Args:
        rows: the result.
        columns: those to show; those that the result lacks are skipped.
        width: cells of the terminal; None for no limit (a pipe).
    """
    present = [column for column in columns if column.name in rows.column_names]
    laid = [_Laid(c, i, rows.column(c.name).to_pylist()) for i, c in enumerate(present)]
    for each in laid:
        each.write(0)
    left_out = _fit(laid, width) if width is not None else []
    return _draw(laid), left_out


def _fit(laid: list[_Laid], width: int) -> list[str]:
    """Shortens, then drops columns until they fit; returns the dropped headers, left to right."""
    dropped: list[_Laid] = []
    if _total([each.width for each in laid]) > width:
        laid[:] = [each for each in laid if each.column.importance == 0 or each.has_values()] or laid
        for each in laid:
            each.write(1)
    while _total([each.least() for each in laid]) > width and len(laid) > 1:
        candidates = [each for each in laid if each.column.importance > 0] or laid[1:]
        goes = min(candidates, key=lambda each: (each.column.importance, -each.position))
        laid.remove(goes)
        dropped.append(goes)
    _shrink(laid, width)
    return [each.column.header for each in sorted(dropped, key=lambda each: each.position)]


def _shrink(laid: list[_Laid], width: int) -> None:
    """Narrows the widest text column one cell at a time until the table fits."""
    while _total([each.width for each in laid]) > width:
        shrinkable = [each for each in laid if each.width > each.least()]
        if not shrinkable:
            return
        max(shrinkable, key=lambda each: each.width).width -= 1


def _total(widths: list[int]) -> int:
    return sum(widths) + GUTTER * max(0, len(widths) - 1)


def _draw(laid: list[_Laid]) -> Table:
    drawn = Table(box=None, padding=(0, GUTTER, 0, 0), pad_edge=False, header_style="bold", show_edge=False)
    for each in laid:
        justify: Literal["left", "right"] = "right" if each.column.numeric else "left"
        drawn.add_column(Text(each.column.header), justify=justify, width=each.width, no_wrap=True)
    for row in zip(*(each.cells for each in laid), strict=True):
        pairs = zip(row, laid, strict=True)
        drawn.add_row(
            *(Text(shorten(cell, each.width, keep_end=each.column.keep_end)) for cell, each in pairs)
        )
    return drawn


def shorten(cell: str, width: int, *, keep_end: bool) -> str:
    """The text in at most ``width`` terminal cells, with an ellipsis if it was cut."""
    if cell_len(cell) <= width:
        return cell
    if not keep_end:
        return set_cell_size(cell, width - 1).rstrip() + ELLIPSIS
    tail = cell[-width:]
    while cell_len(tail) > width - 1:
        tail = tail[1:]
    folder_end = tail.rfind("/", 0, len(tail) // 2)  # a whole name reads better, if that costs little
    return ELLIPSIS + tail[max(0, folder_end) :]
