"""The live view of ``rankmem top``: a screen redrawn to the size of the terminal.

Stage: render. In: the rows of the named query ``top`` every few seconds. Out: the terminal's alternate
screen, which closes on Ctrl-C. While an aggregator does not answer, the last answer stays, with a message.
Runs in the command line's process and main thread.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.text import Text

from rankmem_cli.show import columns
from rankmem_cli.show.render import console_for
from rankmem_cli.show.table import lay_out
from rankmem_cli.show.units import age_text, bytes_text, count_text, safe_text, utc_clock_text
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.query.queries import Queries
    from rankmem_cli.show.session import SessionFacts

HEAD_LINES: Final = 3
"""Title, sums, and the line for errors and omissions."""
TABLE_HEAD_LINES: Final = 1
_ORDERS: Final = {
    "used": [("used_bytes", "descending")],
    "headroom": [("headroom_share", "ascending"), ("used_bytes", "descending")],
    "peak": [("peak_requested_bytes", "descending")],
    "rank": [],
}
_TRANSIENT: Final = (Code.UNAVAILABLE, Code.EXHAUSTED)
"""Failures that may be gone at the next query."""


def sorted_rows(rows: pa.Table, sort: str) -> pa.Table:
    """The rows in the user's order; ties by rank and device."""
    return rows.sort_by([*_ORDERS[sort], ("rank", "ascending"), ("device", "ascending")])


class TopView:
    """Queries and draws until it is interrupted.

    Args:
        queries: where to ask.
        facts: the session.
        sort: a key of the orders: used, headroom, peak, rank.
        every_s: seconds between two queries.
        console: where it is drawn; default: stdout.
        wait: waits so many seconds between two queries; returns True to end.
        clock_ns: the wall clock, for the title.
    """

    def __init__(
        self,
        queries: Queries,
        facts: SessionFacts,
        *,
        sort: str,
        every_s: float,
        console: Console | None = None,
        wait: Callable[[float], bool] | None = None,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._queries = queries
        self._facts = facts
        self._sort = sort
        self._every_s = every_s
        self._console = console or console_for(sys.stdout)
        self._wait = wait or threading.Event().wait
        self._clock_ns = clock_ns
        self._rows: pa.Table | None = None
        self._answered_ns = 0
        self._trouble = ""
        self._missing: list[str] = []

    def run(self) -> None:
        """Draws until Ctrl-C."""
        from rich.live import Live

        self.ask()
        with Live(self.drawn(), console=self._console, screen=True, auto_refresh=False) as live:
            try:
                while not self._wait(self._every_s):
                    self.ask()
                    live.update(self.drawn(), refresh=True)
            except KeyboardInterrupt:
                return

    def ask(self) -> None:
        """Fetches the current rows; a transient failure keeps the previous ones.

        Raises:
            RankmemError: any other failure.
        """
        from rankmem_aggregator.query.missing import lines

        self._queries.stale = ""
        try:
            rows = self._queries.top(self._facts.session_id)
            self._missing = lines(self._queries.incompleteness(self._facts.session_id).to_pylist())
            self._missing += [self._queries.stale] if self._queries.stale else []
        except RankmemError as exc:
            if exc.code not in _TRANSIENT or self._rows is None:
                raise
            self._trouble = exc.message
            return
        self._rows, self._answered_ns, self._trouble = sorted_rows(rows, self._sort), self._clock_ns(), ""

    def drawn(self) -> RenderableType:
        """The screen."""
        if self._rows is None:
            return Text("")
        width, height = self._console.size
        room = max(height - HEAD_LINES - TABLE_HEAD_LINES, 1)
        shown = self._rows.slice(0, room)
        table, left_out = lay_out(shown, columns.top(), width)
        more = self._rows.num_rows - shown.num_rows
        notes = [*([f"{more} more"] if more else []), *self._missing]
        notes += [f"left out: {', '.join(left_out)}"] if left_out else []
        line = (
            Text(safe_text(self._trouble), style="red")
            if self._trouble
            else Text(safe_text("; ".join(notes)), style="red" if self._missing else "dim")
        )
        lines = (Text(self._title(), style="bold"), Text(self._sums()), line)
        for line in lines:
            line.truncate(width, overflow="ellipsis")
        return Group(*lines, table)

    def _title(self) -> str:
        name = f" ({safe_text(self._facts.name)})" if self._facts.name else ""
        return f"{self._facts.session_id}{name}  {utc_clock_text(self._answered_ns)} UTC  Ctrl-C to quit"

    def _sums(self) -> str:
        rows = self._rows.to_pylist() if self._rows is not None else []
        running = {row["rank"] for row in rows if row["ended_ns"] is None}
        used = sum(row["used_bytes"] or 0 for row in rows)
        heads = [
            row["headroom_bytes"]
            for row in rows
            if row["ended_ns"] is None and row["headroom_bytes"] is not None
        ]
        ages = [row["age_ns"] for row in rows if row["age_ns"] is not None]
        least = f", least headroom {bytes_text(min(heads))}" if heads else ""
        behind = f", oldest figure {age_text(max(ages))}" if ages else ""
        run = f"{count_text(len(running))} of {count_text(len({row['rank'] for row in rows}))} ranks running"
        return f"{run}, {bytes_text(used)} used{least}{behind}"
