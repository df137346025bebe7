"""The answer of ``rankmem.peak()``: a recording's peak, what held it, and its curve, for a notebook's cell.

Stage: render, in the user's process. In: a recording that is over. Out: text, and HTML with an inline SVG
where the frontend asks for ``_repr_html_``. All is read once, as the view is made; text and picture are made
of plain Python values. Names are data from outside and are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Final

from rankmem_aggregator import connect
from rankmem_aggregator.quantity_text import bytes_text, offset_text
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

LINES_SHOWN: Final = 8
POINTS_MAX: Final = 600
"""Of the curve: a picture of 640 pixels shows no more."""
OLDER_NOT_SEEN: Final = "memory that was allocated before the recording is not in these figures"
_WIDTH: Final = 640
_HEIGHT: Final = 150
_TOP: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakView:
    """The peak of the one rank of a recording, on the device where it stood highest."""

    device: str
    peak_bytes: int
    peak_ns: int
    """On the common clock, as ``first_ns``."""
    first_ns: int
    last_ns: int
    by_category: Sequence[tuple[str, int]]
    """What held the peak: name and bytes, the largest first."""
    by_line: Sequence[tuple[str, int]]
    curve: Sequence[tuple[int, int]]
    """Nanoseconds since 1970 and requested bytes, each until the next point."""
    missing: Sequence[str]
    """What the recording lacks, a sentence each; empty: the figures are exact."""
    notes: Sequence[str]

    @classmethod
    def of(cls, target: str, session_id: str, *, sees_all: bool) -> PeakView:
        """Asks a database, or an aggregator.

        Args:
            sees_all: no memory of tensors is older than the recording.

        Raises:
            RankmemError: NOT_FOUND where nothing of it is stored.
        """
        from rankmem_aggregator.query.missing import missing_of

        with connect(target) as queries:
            peaks = queries.peak(session_id)
            if not peaks.num_rows:
                raise RankmemError(
                    Code.NOT_FOUND, "the recording has no memory of tensors", "use tensors within the block"
                )
            top = peaks.slice(0, 1).to_pylist()[0]
            place: dict[str, Any] = {"rank": top["rank"], "device": top["device"]}
            held = {key: _held(queries.ops(session_id, by=key, **place), key) for key in ("category", "line")}
            curve = queries.timeline(session_id, by="overall", figure="requested", points=POINTS_MAX, **place)
        facts = curve.schema.metadata or {}
        older = top["device"] == "cpu" and not sees_all
        return cls(
            device=top["device"],
            peak_bytes=top["peak_requested_bytes"],
            peak_ns=top["peak_time_ns"],
            first_ns=int(facts[b"first_ns"]),
            last_ns=int(facts[b"last_ns"]),
            by_category=held["category"],
            by_line=held["line"][:LINES_SHOWN],
            curve=list(zip(curve["time_ns"].to_pylist(), curve["bytes"].to_pylist(), strict=True)),
            missing=missing_of(peaks) or (),
            notes=(OLDER_NOT_SEEN,) if older else (),
        )

    def __repr__(self) -> str:
        tables = (("category", self.by_category), ("line", self.by_line))
        width = max((len(name) for _, rows in tables for name, _ in rows), default=0)
        lines = [self._title()]
        for key, rows in tables:
            lines += ["", f"by {key}:"]
            lines += [
                f"  {name:<{width}}  {bytes_text(size):>12}  {self._share(size):>6}" for name, size in rows
            ]
        return "\n".join([*lines, *([""] if self.missing or self.notes else []), *self.missing, *self.notes])

    def _repr_html_(self) -> str:
        parts = [f"<p><b>{escape(self._title())}</b></p>", self._svg()]
        for key, rows in (("category", self.by_category), ("line", self.by_line)):
            parts.append(f"<table><tr><th>{key}</th><th>at the peak</th><th>share</th></tr>")
            parts += [
                f"<tr><td style='text-align:left'>{escape(name)}</td><td>{bytes_text(size)}</td>"
                f"<td>{self._share(size)}</td></tr>"
                for name, size in rows
            ]
            parts.append("</table>")
        parts += [f"<p>{escape(line)}</p>" for line in (*self.missing, *self.notes)]
        return "<div>" + "".join(parts) + "</div>"

    def _title(self) -> str:
        at = offset_text(self.peak_ns - self.first_ns)
        bound = "at least " if self.missing else ""
        return f"peak {bound}{bytes_text(self.peak_bytes)} on {self.device}, {at} after the recording's start"

    def _share(self, size_bytes: int) -> str:
        return f"{size_bytes / self.peak_bytes:.1%}" if self.peak_bytes else ""

    def _svg(self) -> str:
        """Requested bytes over time, and the peak as a dot."""
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in self._corners())
        x, y = self._x(self.peak_ns), self._y(self.peak_bytes)
        label = f"requested bytes on {self.device} over {offset_text(self.last_ns - self.first_ns)[1:]}"
        return (
            f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT + 20}' width='{_WIDTH}' role='img' "
            f"aria-label='{escape(label, quote=True)}'>"
            f"<polyline points='{drawn}' fill='none' stroke='#0072b2' stroke-width='1.5'/>"
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='#d55e00'/>"
            f"<line x1='0' y1='{_HEIGHT}' x2='{_WIDTH}' y2='{_HEIGHT}' stroke='#8c8c8c'/>"
            f"<text x='0' y='{_HEIGHT + 15}' font-size='12' fill='currentColor'>{escape(label)}</text></svg>"
        )

    def _corners(self) -> Iterator[tuple[float, float]]:
        """A value holds until the next point."""
        level = 0
        for time_ns, size in self.curve:
            yield self._x(time_ns), self._y(level)
            yield self._x(time_ns), self._y(size)
            level = size
        yield float(_WIDTH), self._y(level)

    def _x(self, time_ns: int) -> float:
        return _WIDTH * (time_ns - self.first_ns) / max(1, self.last_ns - self.first_ns)

    def _y(self, size_bytes: int) -> float:
        return _HEIGHT - (_HEIGHT - _TOP) * size_bytes / max(1, self.peak_bytes)


def _held(rows: pa.Table, key: str) -> list[tuple[str, int]]:
    """Name and bytes at the peak of the groups that held any, the largest first."""
    found = ((row[key] or "unknown", row["live_bytes_at_peak"]) for row in rows.to_pylist())
    return sorted(((name, size) for name, size in found if size), key=lambda each: -each[1])
