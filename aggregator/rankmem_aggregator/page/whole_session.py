"""What a question about the whole of a session means: its range of time, and the devices shown first.

Stage: page, in the thread of a request. As the page itself draws it, so that it may ask before it knows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rankmem_aggregator.page.reading import Reading
from rankmem_protos.devices import HOST_MEMORY

CELLS_MAX: Final = 1024
"""Intervals of time of a diagram of cells, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeSession:
    """A session's range of time, ns since its start."""

    first_ns: int
    last_ns: int
    facts: dict[str, Any]
    """Its row of ``sql/page/session_span.sql`` without times."""

    @classmethod
    def of(cls, reading: Reading) -> WholeSession:
        """That of the session of a request."""
        facts = reading.share("session_span").to_pylist()[0]
        first_ns, last_ns = facts.pop("first_ns"), facts.pop("last_ns")
        origin_ns = reading.session.origin_ns
        return cls(
            first_ns=0 if first_ns is None else first_ns - origin_ns,
            last_ns=1 if last_ns is None else max(last_ns - origin_ns, 1),
            facts=facts,
        )

    def drawn(self, bins: int) -> tuple[int, int, int]:
        """Begin and end of the range that diagrams of cells draw, and its cells: at most ``bins`` once it has
        ended, before that so that a cell stays the same until the time has doubled."""
        if self.facts["state"] != "running":
            return self.first_ns, self.last_ns, bins
        cell_ns = 1
        while self.last_ns - self.first_ns >= cell_ns * CELLS_MAX:
            cell_ns *= 2
        cells = (self.last_ns - self.first_ns) // cell_ns + 1
        return self.first_ns, self.first_ns + cells * cell_ns - 1, cells


def first_device_type(reading: Reading) -> str:
    """The type of device that is shown first: an accelerator where there is one."""
    types = {device.partition(":")[0] for device in reading.share("tracks")["device"].to_pylist()}
    return min(types, key=lambda each: (each in HOST_MEMORY, each), default="cpu")
