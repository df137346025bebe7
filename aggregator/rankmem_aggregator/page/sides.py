"""A side of a comparison: which ranks of which session, and when. ``SESSION/RANKS/MOMENT`` in a link.

Stage: page, between parameters and statements; pure functions. SESSION may be empty: the route's own. RANKS
is ``all``, a rank, or a coordinate such as ``pp=3`` or ``host=node-1``. MOMENT is ``peak`` (each rank at
its own), ``job`` (the instant of the job's), ``time=NS`` (since the session's start), ``seq=N`` (after an
event, of one rank), ``step=N`` (each rank at its highest in that step), ``made=NS:NS`` or ``kept=NS:NS``
(allocated in a range; and not freed within it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rankmem_aggregator.page.parameters import RANK, SEQ, TIME, Read, integer
from rankmem_aggregator.query.types import Value

Moment = Literal["peak", "job", "time", "seq", "step", "made", "kept"]

COORDINATES: Final = ("host", "dp", "tp", "pp", "cp", "ep")
_STEP: Final = integer(0, 2**31 - 1)
_NUMBER_OF: Final[dict[str, Read]] = {"time": TIME, "seq": SEQ, "step": _STEP}
_RANGES: Final = ("made", "kept")
VALUE_MAX: Final = 256
"""Characters of a coordinate's value: a host's name has at most 253."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side."""

    session: str
    """Its id; empty: the route's."""
    kind: str
    """``all``, ``rank`` or a coordinate."""
    value: str
    """Which rank, or which value of the coordinate."""
    moment: Moment
    first: int = 0
    """The number of the moment, or the begin of its range."""
    last: int = 0

    @property
    def is_range(self) -> bool:
        """Whether it is what was allocated in a range, and not what was held at an instant."""
        return self.moment in _RANGES

    @property
    def parameters(self) -> dict[str, Value]:
        """The parameters that choose its ranks in a statement."""
        return {"kind": self.kind, "value": self.value}


def side(text: str) -> Side:
    """Reads a side.

    Raises:
        ValueError: it is none; its text says what is.
    """
    parts = text.split("/")
    if len(parts) != 3 or "\0" in text or len(text) > 2 * VALUE_MAX:
        raise ValueError("SESSION/RANKS/MOMENT, such as /417/peak or /pp=3/time=5000000000")
    session, ranks, moment = parts
    kind, value = ranks_of(ranks)
    name, first, last = _moment(moment)
    if name == "seq" and kind != "rank":
        raise ValueError("seq=N for one rank only: each rank counts its own events")
    return Side(session=session, kind=kind, value=value, moment=name, first=first, last=last)


def ranks_of(text: str) -> tuple[str, str]:
    """Reads RANKS of a side: its kind and value.

    Raises:
        ValueError: it is none; its text says what is.
    """
    if len(text) > VALUE_MAX or "\0" in text:
        raise ValueError(f"ranks of at most {VALUE_MAX} characters, without NUL")
    if text == "all":
        return "all", ""
    kind, equals, value = text.partition("=")
    if equals and kind in COORDINATES and value:
        return kind, value
    try:
        return "rank", str(RANK(text))
    except ValueError:
        raise ValueError(f"ranks as all, a rank, or one of {', '.join(COORDINATES)} with =VALUE") from None


def _moment(text: str) -> tuple[Moment, int, int]:
    name, equals, value = text.partition("=")
    if name in ("peak", "job") and not equals:
        return name, 0, 0  # type: ignore[return-value]  # one of two
    if name in _NUMBER_OF and equals:
        return name, _NUMBER_OF[name](value), 0  # type: ignore[return-value]  # a key of it
    begin, colon, end = value.partition(":")
    if name in _RANGES and colon and TIME(begin) < TIME(end):
        return name, TIME(begin), TIME(end)  # type: ignore[return-value]  # one of two
    raise ValueError("a moment as peak, job, time=NS, seq=N, step=N, made=NS:NS or kept=NS:NS")
