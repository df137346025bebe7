"""The elements of a report: tiles, tables and heat maps as HTML.

Stage: export. In: figures and names; out: HTML. Names come from outside: each goes through ``escape``, or
into the page as JSON that cannot end its element. Bytes stay integers until they are printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from rankmem_aggregator.quantity_text import bytes_text, instant_text

ROWS_SHOWN: Final = 15
"""Rows of a table before its button is pressed: half a screen."""
CELLS_WIDE_MAX: Final = 64
"""Up to so many ranks, cells have room for a figure."""
_FAINTEST: Final = 0.12
"""Opacity of a heat map's lowest value: still visible on paper."""


def tile(title: str, figure: str, note: str = "", *, warn: bool = False) -> str:
    """A figure with its title and a note."""
    return (
        f'<div class="tile{" warn" if warn else ""}"><span>{escape(title)}</span><b>{escape(figure)}</b>'
        f"<span>{escape(note)}</span></div>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownColumn:
    """A column of a table."""

    name: str
    """Key of the rows."""
    title: str
    is_bytes: bool = False
    is_number: bool = False
    wide: bool = False
    """Left out on a narrow screen."""


def table(
    key: str, columns: Sequence[ShownColumn], rows: Sequence[dict[str, Any]], share_of: str | None = None
) -> str:
    """A table that sorts at a click; a button unfolds a long one.

    Args:
        key: its id in the page.
        columns: the columns shown; the first names the row.
        rows: the values.
        share_of: the column shown as bars, relative to the sum of all rows.
    """
    whole = sum(row[share_of] or 0 for row in rows) if share_of else 0
    heads = "".join(
        f'<th scope="col"{_class(column)}><button type="button">{escape(column.title)}</button></th>'
        for column in columns
    )
    lines = []
    for number, row in enumerate(rows):
        cells = "".join(_cell(column, row[column.name]) for column in columns)
        if share_of:
            percent = 100 * (row[share_of] or 0) / whole if whole else 0
            cells += f'<td class="share" title="{percent:.1f} %"><i style="width:{percent:.1f}%"></i></td>'
        lines.append(f"<tr{' class=more' if number >= ROWS_SHOWN else ''}>{cells}</tr>")
    head_of_share = '<th scope="col" class="share">share</th>' if share_of else ""
    more = (
        f'<p><button type="button" class="more-button" aria-controls="{key}">'
        f"all {len(rows)} rows</button></p>"
        if len(rows) > ROWS_SHOWN
        else ""
    )
    return (
        f'<div class="scroll"><table class="report" id="{key}"><thead><tr>{heads}{head_of_share}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>{more}"
    )


def _class(column: ShownColumn) -> str:
    return ' class="wide"' if column.wide else ""


def _cell(column: ShownColumn, value: Any) -> str:
    if column.is_bytes:
        return f'<td{_class(column)} data-value="{value or 0}">{bytes_text(value)}</td>'
    if column.is_number:
        return f'<td{_class(column)} data-value="{value or 0}">{"-" if value is None else f"{value:,}"}</td>'
    return f"<td{_class(column)}>{escape('-' if value is None else str(value))}</td>"


def peaks_by_host(rows: Sequence[dict[str, Any]], start_ns: int) -> str:
    """The heat map of ranks: a line per host, a cell per rank, darker for a higher peak.

    Args:
        rows: host_name, rank, attempt, device, peak_requested_bytes, peak_time_ns.
        start_ns: the session's start.
    """
    peaks = [row["peak_requested_bytes"] for row in rows]
    least, most = min(peaks), max(peaks)
    hosts: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda one: (one["rank"], one["device"])):
        hosts.setdefault(row["host_name"] or "unknown", []).append(_peak_cell(row, least, most, start_ns))
    lines = "".join(
        f'<div class="host"><span>{escape(host)}</span><div class="cells">{"".join(cells)}</div></div>'
        for host, cells in hosts.items()
    )
    many = " many" if len(rows) > CELLS_WIDE_MAX else ""
    scale = f'<p class="hint">{bytes_text(least)}<span class="scale"></span>{bytes_text(most)}</p>'
    return f'<div class="hosts{many}">{lines}</div>{scale}'


def _peak_cell(row: dict[str, Any], least: int, most: int, start_ns: int) -> str:
    peak = row["peak_requested_bytes"]
    alpha = _FAINTEST + (1 - _FAINTEST) * ((peak - least) / (most - least) if most > least else 0.5)
    when = instant_text(row["peak_time_ns"], start_ns)
    where = f"rank {row['rank']}, {row['device']}: {bytes_text(peak)} at {when}"
    text = f"<b>{row['rank']}</b><small>{bytes_text(peak)}</small>"
    colour = f"background:rgba(213,94,0,{alpha:.2f})"
    return f'<div class="cell" style="{colour}" title="{escape(where)}">{text}</div>'
