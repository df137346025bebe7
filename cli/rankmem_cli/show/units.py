"""Formats bytes, times and counts for people.

Stage: render. In: plain integers (bytes, nanoseconds, counts) or None. Out: short text. Runs in the command
line's process; for tables only: JSON and CSV contain plain integers. GiB is 2^30 and printed as GiB.
"""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from typing import Final

from rankmem_aggregator.csv_cells import no_formula
from rankmem_aggregator.quantity_text import NOTHING as NOTHING
from rankmem_aggregator.quantity_text import bytes_text as bytes_text
from rankmem_aggregator.quantity_text import offset_text as offset_text
from rankmem_protos.clock import has_clock

NS_PER_S: Final = 1_000_000_000
_ESCAPED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that can move the cursor, reorder or hide text: controls, formats (bidi), separators."""


def growth_text(num_bytes: int | None) -> str:
    """A difference in bytes with its sign: ``+1.50 GiB``, ``-3 B``; ``0`` where nothing changed."""
    if num_bytes is None or num_bytes == 0:
        return NOTHING if num_bytes is None else "0"
    return ("+" if num_bytes > 0 else "") + bytes_text(num_bytes)


def percent_text(fraction: float | None) -> str:
    """A fraction of one as per cent: ``12.5%``."""
    return NOTHING if fraction is None else f"{fraction:.1%}"


def count_text(count: int | None) -> str:
    """The count with thousands separators: ``1,234,567``."""
    return NOTHING if count is None else f"{count:,}"


def age_text(age_ns: int | None) -> str:
    """A duration to about three digits: ``350 ns``, ``1.25 ms``, ``2 min 03 s``, ``3 h 20 min``."""
    if age_ns is None:
        return NOTHING
    if age_ns < 0:
        return "-" + age_text(-age_ns)
    for limit, divisor, unit in ((1_000, 1, "ns"), (1_000_000, 1_000, "µs"), (NS_PER_S, 1_000_000, "ms")):
        if age_ns < limit:
            return f"{age_ns / divisor:.3g} {unit}" if age_ns < limit * 0.9995 else f"1 {_next_unit(unit)}"
    seconds = age_ns / NS_PER_S
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def utc_text(time_ns: int | None) -> str:
    """The instant in UTC, to the millisecond: ``2026-11-21 12:38:22.123``; ``-`` without a clock."""
    if time_ns is None or not has_clock(time_ns):
        return NOTHING
    seconds, rest_ns = divmod(time_ns, NS_PER_S)
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, OSError, ValueError):  # a recording from outside may carry any integer
        return f"{time_ns} ns"
    return f"{moment:%Y-%m-%d %H:%M:%S}.{rest_ns // 1_000_000:03d}"


def utc_clock_text(time_ns: int | None) -> str:
    """The instant's time of day in UTC, for narrow tables: ``12:38:22.123``."""
    return utc_text(time_ns).rpartition(" ")[2]


def utc_minute_text(time_ns: int | None) -> str:
    """The instant in UTC to the minute, for narrow tables: ``2026-11-21 12:38``."""
    return utc_text(time_ns).rpartition(":")[0] or NOTHING


def flag_text(flag: bool | None) -> str:
    """``yes``, ``no`` or ``-``."""
    return NOTHING if flag is None else ("yes" if flag else "no")


def safe_text(text: str) -> str:
    """The text with everything that could control a terminal made visible.

    Operator names, host names and file paths are untrusted: an escape sequence in one must not
    colour, move, retitle or reorder the output. Such characters become ``\\x1b``, ``\\u202e``; all others, of
    any script, stay.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(char) if unicodedata.category(char) in _ESCAPED_CATEGORIES else char for char in text
    )


def csv_text(text: str) -> str:
    """The text as a cell of a CSV file.

    A name is untrusted, and ``=HYPERLINK(…)`` in a CSV is active when opened. A carriage return would start
    a new row, since Python 3.11 does not quote it. JSON is exact.
    """
    return no_formula(text).replace("\r", "\\r")


def _escaped(char: str) -> str:
    number = ord(char)
    short = {9: "\\t", 10: "\\n", 13: "\\r"}.get(number)
    if short is not None:
        return short
    if number < 0x100:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 0x1_0000 else f"\\U{number:08x}"


def _next_unit(unit: str) -> str:
    return {"ns": "µs", "µs": "ms", "ms": "s"}[unit]
