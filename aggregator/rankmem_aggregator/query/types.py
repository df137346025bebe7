"""What a question takes: the values of its parameters, and what answers can be grouped by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Value = int | float | str | bool | None
"""What a named parameter may be."""

Parameters = Mapping[str, Value]


class SessionId(str):
    """The full id of a session, as its database has it: questions take it without looking it up again."""

    __slots__ = ()


BlockBy = Literal[
    "operator", "module", "line", "category", "phase", "step", "annotation", "stream", "component"
]
"""What blocks can be grouped by."""
By = Literal[BlockBy, "rank"]
"""``rank``: operators of each rank."""
PeakBy = Literal[
    "rank", "host", "device", "dp", "tp", "pp", "cp", "ep",
    "stream", "component", "category", "phase", "operator", "module", "step", "annotation",
]  # fmt: skip
CurveBy = Literal[
    "overall", "stream", "component", "category", "phase", "operator", "module", "step", "annotation",
    "job", "rank", "host", "device", "dp", "tp", "pp", "cp", "ep",
]  # fmt: skip
"""What a curve stands for: a rank's totals, a group of its blocks, or ranks together."""
Figure = Literal["requested", "allocated", "active", "reserved", "all"]
"""Which bytes of it: from the events, exact; or the allocator's own."""
At = Literal["peak", "total"] | int
"""The rank's own peak, the whole recording, or an instant (ns, common clock)."""
