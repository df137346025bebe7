"""Parses a TIME as users write it.

Stage: arguments. In: the text after ``--at`` and the session's start. Out: nanoseconds since 1970 UTC. The
only place where a time is parsed. Runs in the command line's process.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from rankmem_protos.errors import Code, RankmemError

_OFFSET: Final = re.compile(r"\+?(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ns|us|µs|ms|s|min|m|h)", re.ASCII)
_CLOCK_OFFSET: Final = re.compile(r"\+?(?:(?P<hours>\d+):)?(?P<minutes>\d{1,2}):(?P<seconds>\d{2}(?:\.\d+)?)")
_UNIT_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SMALLEST_EPOCH_NS: Final = 10**17
"""March 1973. A smaller bare integer is far likelier an offset without its unit than an instant."""

HINT: Final = (
    "an offset from the session's start such as 12.5s or 2:03.5, a UTC time such as 2026-11-21T12:38:22.5, "
    "or nanoseconds"
)


def parse_time(text: str, *, session_started_ns: int) -> int:
    """The instant that ``text`` names, in ns since 1970 UTC.

    Args:
        text: an offset from the session's start with its unit (``12.5s``, ``350ms``, ``2min``) or as a
            clock (``2:03.456``, as in the tables, with or without ``+``), an ISO 8601 time (UTC
            unless it names a zone), or nanoseconds since 1970.
        session_started_ns: the session's start, in ns since 1970 UTC.

    Raises:
        RankmemError: INVALID if it is none of these.
    """
    text = text.strip()
    if match := _OFFSET.fullmatch(text):
        return session_started_ns + _decimal_ns(match["number"], _UNIT_NS[match["unit"]])
    if match := _CLOCK_OFFSET.fullmatch(text):
        whole = int(match["hours"] or 0) * _UNIT_NS["h"] + int(match["minutes"]) * _UNIT_NS["min"]
        return session_started_ns + whole + _decimal_ns(match["seconds"], _UNIT_NS["s"])
    if text.isascii() and text.isdigit():
        return _epoch_ns(text)
    return _iso_ns(text)


def _decimal_ns(number: str, unit_ns: int) -> int:
    """``number`` units in ns, exactly: a float would lose the nanoseconds of a long session."""
    whole, _, fraction = number.partition(".")
    return int(whole) * unit_ns + (int(fraction) * unit_ns // 10 ** len(fraction) if fraction else 0)


def _epoch_ns(text: str) -> int:
    value = int(text)
    if value < _SMALLEST_EPOCH_NS:
        raise RankmemError(Code.INVALID, f"the time {text} has no unit", f"{text}s for an offset; or {HINT}")
    return value


def _iso_ns(text: str) -> int:
    # fromisoformat keeps microseconds only; the fraction is taken apart so that all nine digits count.
    match = re.fullmatch(
        r"(?P<moment>\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2})(?:\.(?P<fraction>\d{1,9}))?(?P<zone>.*)", text
    )
    try:
        if match is None:
            moment, fraction = datetime.fromisoformat(text), ""
        else:
            moment, fraction = (
                datetime.fromisoformat(match["moment"] + match["zone"].strip()),
                match["fraction"] or "",
            )
    except ValueError as exc:
        raise RankmemError(Code.INVALID, f"{text!r} is not a time", HINT) from exc
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - _EPOCH
    whole_ns = (since.days * 86_400 + since.seconds) * _UNIT_NS["s"] + since.microseconds * 1_000
    return whole_ns + int(fraction.ljust(9, "0") if fraction else 0)
