"""Types of the arguments of questions: values of parameters, groupings, instants."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Value = int | float | str | bool | None
"""A value of a named parameter."""

Parameters = Mapping[str, Value]


class SessionId(str):
    """The full id of a session, as its database has it: questions take it without looking it up again."""

    __slots__ = ()


# The keys of ``rankmem_protos.groupings`` again, for editors and type checkers; a test holds them to it.
BlockBy = Literal[
    "category", "operator", "module", "line", "stream", "component", "phase", "step", "annotation"
]
"""Groupings of blocks."""
By = Literal[BlockBy, "rank"]
"""``rank``: operators of each rank."""
PeakBy = Literal[BlockBy, "rank", "host", "device", "dp", "tp", "pp", "cp", "ep"]
"""Groupings of the blocks of a rank, and of ranks."""
CurveBy = Literal[PeakBy, "overall", "job"]
"""Groupings of curves: a rank's totals, groups of its blocks, or ranks together."""
Figure = Literal["requested", "allocated", "active", "reserved", "all"]
"""Which bytes: requested, from the events and exact; or the allocator's own."""
At = Literal["peak", "total"] | int
"""The rank's own peak, the whole recording, or an instant (ns, common clock)."""
