"""``rankmem export html``: a report in one file, to mail to someone.

Stage: export. In: the selection; out: a page with the job's peak, every rank's peak as a heat map, curves
with values under the pointer and zoom, and tables of operators, lines, modules and ranks. It needs no network
and no library: styles, scripts and data are in it, and it forbids itself every connection. All figures are
those of the named queries, as the verbs show them.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.log import no_events_error, tracks
from rankmem_aggregator.exports.report_heat import heat_over_time
from rankmem_aggregator.exports.report_parts import ShownColumn, peaks_by_host, table, tile
from rankmem_aggregator.plots.curves import SERIES_MAX, chart_of
from rankmem_aggregator.plots.html import chart_fragment, filled, resource
from rankmem_aggregator.quantity_text import bytes_text, counted, instant_text
from rankmem_aggregator.query.timeline_facts import Timeline
from rankmem_aggregator.query.types import BlockBy, CurveBy
from rankmem_protos.clock import distance_ns, has_clock
from rankmem_protos.devices import by_weight

CURVES_MAX: Final = 4
"""Ranks whose categories are drawn: each some 400 KiB of the page."""
POINTS_MAX: Final = 8_000
"""Instants of a curve: half a MiB of the page with eight series, ten on each dot of a wide screen."""
POINTS_ASKED_MAX: Final = 1_000_000
"""Of a curve, before it is thinned: the series of a stack need the same instants."""
TABLE_ROWS_MAX: Final = 200
"""Rows of a table: the rest is small and is summed in one row; SQL has it."""
HEAT_RANKS_MAX: Final = 512
"""Ranks in a heat map, the highest: 80,000 cells, some 800 KiB of the page."""
_COARSE: Final = {
    False: "Of many events, the highest of each interval are drawn.",
    True: "Of many events, each rank's highest of each second are drawn, whose sum may exceed the real "
    "total; the job's peak above is that of all events.",
}
_FIRST_FAILED: Final = "The earliest first: later ones mostly follow from it."
_NOT_EXACT: Final = "Not exact: events or ranks are missing; see above."
_BLOCKS: Final[tuple[tuple[BlockBy, str], ...]] = (
    ("category", "Categories"),
    ("operator", "Operators"),
    ("line", "Lines"),
    ("module", "Modules"),
)

_BRACKETS: Final = (
    "<p>A line in [brackets]: the stack has no frame of the project; this is the nearest Python frame.</p>"
)


def write_html(selection: Selection, out: Path) -> ExportResult:
    """Writes the page."""
    if selection.from_ns is not None or selection.until_ns is not None:
        tracks(selection)  # NOT_FOUND for a range without events, as for the other kinds
    report = _Report(selection)
    body = "\n".join(report.sections())
    name = report.session["name"] or report.session["session_id"]
    parts = {
        "title": escape(f"{name}: memory of {counted(report.session['num_ranks'], 'rank')}"),
        "subtitle": escape(report.subtitle()),
        "style": resource("chart.css") + resource("report.css"),
        "body": body,
        "footer": escape(f"rankmem {version('rankmem')}. {'; '.join(report.result.remarks)}"),
        "script": resource("chart.js") + resource("report.js"),
    }
    page = filled(resource("report.html"), parts)
    out.write_text(page, encoding="utf-8")
    report.result.counts["bytes"] = len(page.encode())
    return report.result


class _Report:
    """Reads the answers and lays them out."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._queries = selection.queries
        self._id = selection.session_id
        self.result = ExportResult()
        rows = [row for row in self._queries.sessions().to_pylist() if row["session_id"] == self._id]
        self.session: dict[str, Any] = rows[0]
        self._start_ns = int(self.session["started_ns"] or 0)
        self._peaks = self._peaks_of_ranks()
        self._rank = selection.ranks[0] if selection.ranks and len(selection.ranks) == 1 else None
        if selection.ranks and self._rank is None:
            self.result.remarks.append("tables of operators, lines and modules cover all ranks")
        if selection.from_ns is not None or selection.until_ns is not None:
            self.result.remarks.append(
                "the range applies to the curves; peaks and tables cover the whole session"
            )

    def subtitle(self) -> str:
        """The session, its origin, times and hosts."""
        session = self.session
        started = f"started {session['started_utc']:%Y-%m-%d %H:%M:%S} UTC" if session["started_utc"] else ""
        lasted = f"{session['duration_ns'] / 1e9:,.1f} s" if session["duration_ns"] else ""
        hosts = f"{counted(session['num_ranks'], 'rank')} on {counted(session['num_hosts'], 'host')}"
        source = (
            "recorded by rankmem" if session["source"] == "live" else f"imported from {session['source']}"
        )
        facts = (f"session {self._id}", source, session["state"], started, lasted, hosts, session["command"])
        return " - ".join(str(fact) for fact in facts if fact)

    def sections(self) -> Iterator[str]:
        """The page's sections, from the top."""
        self._selection.progress("the job's peak")
        shares = self._queries.job_peak(self._id)
        bounds = self._queries.job_peak_bound(self._id, shares=shares).to_pylist()
        bounds.sort(key=lambda bound: by_weight(bound["device_type"], bound["job_peak_bytes"]))
        yield self._tiles(bounds)
        yield self._missing()
        for kind, bound, rows in self._kinds(bounds):
            yield f"<h2>Peak of each rank, {escape(kind)}</h2>{peaks_by_host(rows, self._start_ns)}"
            if bound is not None:
                yield self._heat(rows)
        self._selection.progress("curves")
        yield from self._curves()
        self._selection.progress("tables")
        yield from self._tables()

    def _peaks_of_ranks(self) -> list[dict[str, Any]]:
        rows = [row for row in self._queries.peak(self._id).to_pylist() if row["is_rank_peak"]]
        if self._selection.ranks is not None:
            rows = [row for row in rows if row["rank"] in self._selection.ranks]
        if not rows:
            raise no_events_error(self._selection)
        return rows

    def _kinds(
        self, bounds: list[dict[str, Any]]
    ) -> Iterator[tuple[str, dict[str, Any] | None, list[dict[str, Any]]]]:
        """Each type of device with the job's peak, None where no sum over ranks is known, and its ranks'
        peaks."""
        of_job = {bound["device_type"]: bound for bound in bounds}
        for kind in dict.fromkeys([*of_job, *(row["device_type"] for row in self._peaks)]):
            rows = [row for row in self._peaks if row["device_type"] == kind]
            if rows:
                yield kind, of_job.get(kind), rows

    def _tiles(self, bounds: list[dict[str, Any]]) -> str:
        tiles = []
        if not bounds and not self._timed({row["rank"] for row in self._peaks}):
            tiles.append(tile("Peak of the job", "-", "no ranks with times on one clock"))
        for kind, bound, rows in self._kinds(bounds):
            high = max(rows, key=lambda row: row["peak_requested_bytes"])
            low = min(rows, key=lambda row: row["peak_requested_bytes"])
            if bound is not None:
                tiles += [
                    tile(
                        f"Peak of the job, {kind}",
                        bytes_text(bound["job_peak_bytes"]),
                        f"at {instant_text(bound['job_peak_ns'], self._start_ns)}{_not_exact(bound)}",
                        warn=bool(_not_exact(bound)),
                    ),
                    tile(
                        "Sum of the ranks' own peaks",
                        bytes_text(bound["sum_of_peaks_bytes"]),
                        "at different instants",
                    ),
                ]
            tiles += [
                tile("Highest rank", bytes_text(high["peak_requested_bytes"]), _whose(high, self._start_ns)),
                tile("Lowest rank", bytes_text(low["peak_requested_bytes"]), _whose(low, self._start_ns)),
            ]
        most = self.session["events_lost"]  # records, events among them
        lost = "an unknown number" if most is None else f"{'at most ' if most else ''}{most:,}"
        note = "nothing is missing" if self.session["complete"] else "incomplete"
        tiles.append(tile("Events", f"{self.session['events']:,}", f"{lost} lost, {note}", warn=lost != "0"))
        return f'<div class="tiles">{"".join(tiles)}</div>'

    def _missing(self) -> str:
        """What the session lacks; empty if nothing."""
        shown = [f"<li>{escape(line)}</li>" for line in self._selection.missing]
        return f"<h2>What is missing</h2><ul>{''.join(shown)}</ul>" if shown else ""

    def _heat(self, rows: list[dict[str, Any]]) -> str:
        """The heat map of ranks over time, for one type of device."""
        shown = sorted(rows, key=lambda row: -row["peak_requested_bytes"])[:HEAT_RANKS_MAX]
        if len(shown) < len(rows):
            self.result.remarks.append(f"over time the {len(shown)} highest of {len(rows)} ranks are shown")
        ranks = sorted({row["rank"] for row in shown})
        if self.session["num_ranks"] > 1:
            ranks = sorted(self._timed(set(ranks)))
        if not ranks:
            return ""
        self._selection.progress("ranks over time")
        return heat_over_time(self._selection, shown[0]["device_type"], ranks, self._start_ns)

    def _curves(self) -> Iterator[str]:
        ranks = {row["rank"] for row in self._peaks}
        if len(ranks) > 1 and not self._timed(ranks):
            self.result.remarks.append("no curves across ranks: their recordings have no times")
        elif len(ranks) > 1:
            hosts = {row["host_name"] for row in self._peaks}
            by: CurveBy = "rank" if len(ranks) <= SERIES_MAX else "host" if len(hosts) > 1 else "job"
            rows = self._timeline(by, rank=sorted(self._timed(ranks)) if self._selection.ranks else "all")
            yield self._curve(rows, "The job over time" + ("" if by == "job" else f", by {by}"))
        by_peak = sorted(self._peaks, key=lambda row: -row["peak_requested_bytes"])
        for row in by_peak[:CURVES_MAX] if self._selection.ranks else by_peak[:1]:
            track = {name: row[name] for name in ("rank", "attempt", "device")}
            rows = self._timeline("category", **track)
            which = "" if self._selection.ranks else ", the highest"
            title = f"Rank {row['rank']}{which}: {row['device']} on {row['host_name']}, by category"
            yield self._curve(rows, title)

    def _timeline(self, by: CurveBy, **of: Any) -> pa.Table:
        """The rows of a curve in the selected range; ``of`` as in :meth:`Queries.timeline`."""
        from_ns, until_ns = self._selection.from_ns, self._selection.until_ns
        return self._queries.timeline(
            self._id, by=by, from_ns=from_ns, until_ns=until_ns, points=POINTS_ASKED_MAX, **of
        )

    def _curve(self, rows: pa.Table, title: str) -> str:
        timeline = Timeline.of(rows)
        facts = timeline.facts
        note = "" if facts.exact else f"<p>{_COARSE[facts.num_ranks is not None]}</p>"
        if timeline.complete is False:
            note += f"<p>{_NOT_EXACT}</p>"
        start_ns = self._start_of(self._start_ns if facts.first_ns is None else facts.first_ns)
        chart = chart_of(rows, start_ns=start_ns, stacked=bool(facts.stacked), title=title)
        return f"<h2>{escape(title)}</h2>{note}{chart_fragment(chart, POINTS_MAX)}"

    def _start_of(self, first_ns: int) -> int:
        """The zero of a curve: the session's start, or the rank's own for a rank without a clock."""
        return first_ns - (distance_ns(first_ns, self._start_ns) or 0)

    def _timed(self, ranks: set[int]) -> set[int]:
        """Those of the ranks that have a clock, so that they can be summed."""
        return {row["rank"] for row in self._peaks if row["rank"] in ranks and has_clock(row["peak_time_ns"])}

    def _tables(self) -> Iterator[str]:
        yield "<h2>What held the memory</h2><p>Alive at each rank's own peak, summed over the ranks.</p>"
        for by, title in _BLOCKS:
            yield f"<h3>{title}</h3>{self._blocks(by)}"
        yield f"<h2>Ranks</h2>{self._ranks()}"
        failed = self._queries.oom(self._id, rank=self._rank).to_pylist()
        if failed:
            note = "" if len(failed) == 1 else f"<p>{_FIRST_FAILED}</p>"
            yield f"<h2>Out of memory</h2>{note}{self._failed(failed)}"

    def _blocks(self, by: BlockBy) -> str:
        rows = self._queries.ops(self._id, by=by, rank=self._rank).to_pylist()
        types = {row["device_type"] for row in rows}
        columns = [
            ShownColumn(name=by, title=by),
            *([ShownColumn(name="device_type", title="device")] if len(types) > 1 else []),
            ShownColumn(name="live_bytes_at_peak", title="at peak", is_bytes=True),
            ShownColumn(name="live_allocations_at_peak", title="blocks", is_number=True),
            ShownColumn(name="allocated_bytes", title="total allocated", is_bytes=True, wide=True),
            ShownColumn(name="num_allocations", title="allocations", is_number=True, wide=True),
        ]
        shown = _with_others(rows, by)
        note = _BRACKETS if by == "line" and any((row[by] or "").startswith("[") for row in shown) else ""
        return note + table(f"by-{by}", columns, shown, share_of="live_bytes_at_peak")

    def _ranks(self) -> str:
        rows = [
            {
                **row,
                "when": instant_text(row["peak_time_ns"], self._start_ns),
                "whole": _complete(row["complete"]),
            }
            for row in sorted(self._peaks, key=lambda row: -row["peak_requested_bytes"])
        ]
        columns = [
            ShownColumn(name="rank", title="rank", is_number=True),
            ShownColumn(name="host_name", title="host"),
            ShownColumn(name="device", title="device"),
            ShownColumn(name="peak_requested_bytes", title="peak", is_bytes=True),
            ShownColumn(name="when", title="at"),
            ShownColumn(name="peak_reserved_bytes", title="reserved", is_bytes=True, wide=True),
            ShownColumn(name="events", title="events", is_number=True, wide=True),
            ShownColumn(name="whole", title="complete", wide=True),
        ]
        return table("ranks", columns, rows)

    def _failed(self, rows: list[dict[str, Any]]) -> str:
        shown = [
            {
                **row,
                "when": instant_text(row["time_ns"], self._start_ns),
                "whose": f"rank {row['rank']}, {row['device']}",
            }
            for row in rows[:TABLE_ROWS_MAX]
        ]
        columns = [
            ShownColumn(name="whose", title="rank"),
            ShownColumn(name="when", title="at"),
            ShownColumn(name="size_bytes", title="asked for", is_bytes=True),
            ShownColumn(name="requested_bytes", title="in blocks", is_bytes=True),
            ShownColumn(name="reserved_bytes", title="reserved", is_bytes=True, wide=True),
            ShownColumn(name="device_free_bytes", title="free on the device", is_bytes=True, wide=True),
            ShownColumn(name="operator", title="operator"),
            ShownColumn(name="line", title="line", wide=True),
        ]
        return table("failed", columns, shown)


def _with_others(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """The largest rows, and a row for the rest of each type of device: the rows add up to the peaks."""
    shown, rest = rows[:TABLE_ROWS_MAX], rows[TABLE_ROWS_MAX:]
    sums = ("live_bytes_at_peak", "live_allocations_at_peak", "allocated_bytes", "num_allocations")
    for device_type in sorted({row["device_type"] for row in rest}):
        own = [row for row in rest if row["device_type"] == device_type]
        others = {name: sum(row[name] for row in own) for name in sums}
        shown.append({by: f"({len(own):,} others)", "device_type": device_type, **others})
    return shown


def _not_exact(bound: dict[str, Any]) -> str:
    """How far off the job's peak may be where events are missing; an older aggregator does not report it."""
    if bound.get("is_exact") is not False:
        return ""
    least = bound["at_least_bytes"]
    return "; not exact" + (f", at least {bytes_text(least)}" if least else ", without a known lower bound")


def _whose(row: dict[str, Any], start_ns: int) -> str:
    when = instant_text(row["peak_time_ns"], start_ns)
    return f"rank {row['rank']}, {row['device']} on {row['host_name']}, at {when}"


def _complete(value: bool | None) -> str:
    return "not known" if value is None else "yes" if value else "no"
