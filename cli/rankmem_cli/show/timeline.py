"""A timeline on the screen and in a file.

Stage: render. In: the rows of the named query ``timeline``, whose schema's metadata says whose they are. Out:
a curve of characters, the rows as JSON or CSV, or a file written by the aggregator package.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

from rankmem_aggregator.quantity_text import counted
from rankmem_cli.show.completeness import with_incomplete
from rankmem_cli.show.render import Format, begin, console_for, note
from rankmem_cli.show.session import SessionFacts
from rankmem_cli.show.units import age_text, bytes_text, count_text, offset_text, safe_text
from rankmem_protos.clock import distance_ns

if TYPE_CHECKING:
    import pyarrow as pa

    from rankmem_aggregator.plots.curves import Chart
    from rankmem_aggregator.query.timeline_facts import Timeline, TimelineFacts

PIPE_WIDTH: Final = 100
"""Cells of a curve that goes into a file or a pipe."""
OVERALL: Final = "overall"
ONE_FIGURE: Final = {
    "requested": "requested bytes alive",
    "allocated": "bytes allocated, until their free is requested",
    "active": "bytes active, until their free completes",
    "reserved": "bytes reserved from the device",
}
ALL_FIGURES: Final = {
    OVERALL: "requested: {exact}; allocated, active, reserved: the allocator's; app_reserved: the process's",
    "stream": "allocated until the free is requested, active until it completes, reserved by its segments",
    "component": "allocated until the free is requested, active until it completes, reserved by its "
    "segments; app_reserved: the whole process",
}
MORE: Final = {
    "category": ", by category at the time",
    "component": " of each allocator; app: memory of the process outside the allocators",
}
"""Added to the text of a single figure."""
EXACTNESS: Final = {
    True: "exact",
    False: "not exact, for events or ranks are missing",
    None: "exact for what the recording holds",
}
"""Of requested bytes, by whether the recording is complete."""


def show_timeline(rows: pa.Table, by: str, facts: SessionFacts, *, output: Format) -> None:
    """Writes the curve to stdout, fitted to the terminal; or the rows as JSON or CSV.

    Args:
        rows: columns time_ns, group, bytes.
        by: what a curve stands for.
        facts: of the session, whose start is zero on the axis.
        output: the format.
    """
    if output is not Format.TABLE:
        writer = begin(output)
        writer.write(rows)
        writer.end()
        return
    from rankmem_aggregator.query.timeline_facts import Timeline

    chart = _chart(rows, by, facts)
    note(facts.title())
    timeline = Timeline.of(rows)
    note(f"{chart.title}: {_meaning(by, timeline)}")
    if rows.num_rows == 0:
        note("no events in this range")
        return
    _print_curve(chart)
    note(_in_words(chart))
    if not timeline.facts.exact:
        note(facts.given.complete(_inexact(timeline.facts)))


def write_file(
    rows: pa.Table, by: str, facts: SessionFacts, missing: Sequence[dict[str, Any]], out_path: Path
) -> None:
    """Writes the picture or rows that the extension selects, with what they lack, and prints a note."""
    from rankmem_aggregator.plots.files import write_timeline

    write_timeline(_chart(rows, by, facts), with_incomplete(rows, missing, Format.CSV), out_path)
    note(f"wrote {out_path}")


def _chart(rows: pa.Table, by: str, facts: SessionFacts) -> Chart:
    from rankmem_aggregator.plots.curves import chart_of
    from rankmem_aggregator.query.missing import missing_of
    from rankmem_aggregator.query.timeline_facts import Timeline

    timeline = Timeline.of(rows)
    of_rows = timeline.facts
    first_ns = (facts.started_ns or 0) if of_rows.first_ns is None else of_rows.first_ns
    # A rank without a clock, among others that have one, counts from its own first event.
    since_ns = distance_ns(first_ns, facts.started_ns)
    start_ns = first_ns - (since_ns or 0)
    subtitle = f"{facts.title()} - {_meaning(by, timeline)}"
    if not of_rows.exact:
        subtitle += " - thinned, maxima kept"
    if lacks := missing_of(rows):
        subtitle += f" - not complete: {safe_text('; '.join(lacks))}"
    whose = _whose(of_rows)
    return chart_of(
        rows,
        start_ns=start_ns,
        stacked=by != OVERALL if of_rows.stacked is None else of_rows.stacked,
        title=whose if by in (OVERALL, "job") else f"{whose}, by {by}",
        subtitle=subtitle,
    )


def _whose(facts: TimelineFacts) -> str:
    """A rank with its device, or ranks together."""
    device = safe_text(facts.device)
    if facts.num_ranks is not None:
        ranks, hosts = counted(facts.num_ranks, "rank"), counted(facts.num_hosts or 0, "host")
        return f"{device}, sum of {ranks} on {hosts}"
    rank = "?" if facts.rank is None else facts.rank
    whose = f"rank {rank}, {device} on {safe_text(facts.host_name or '?')}"
    return f"{whose}, attempt {facts.attempt}" if facts.attempt else whose


def _print_curve(chart: Chart) -> None:
    from rankmem_aggregator.plots.palette import colours
    from rankmem_cli.show.curve import draw, glyphs_for

    console = console_for(sys.stdout)
    width = get_terminal_size((PIPE_WIDTH, 24)).columns
    console.width = max(width, console.width)
    has_colours = console.color_system is not None and not console.no_color
    hues = colours([one.name for one in chart.series]) if has_colours else None
    for line in draw(chart, width=width, glyphs=glyphs_for(sys.stdout.encoding), hues=hues):
        console.print(line, no_wrap=True, crop=False)


def _in_words(chart: Chart) -> str:
    """The exact highest point, which the curve shows only to the nearest cell."""
    top = chart.top()
    at = int(top.argmax())
    offset = offset_text(int(chart.times_ns[at]) - chart.start_ns)
    span = age_text(int(chart.times_ns[-1] - chart.times_ns[0]))
    name = "" if chart.stacked else f" {safe_text(chart.series[0].name)}"
    peak, instants = bytes_text(int(top[at])), count_text(len(chart.times_ns))
    return f"highest{name}: {peak} at {offset}; {instants} instants in {span}"


def _inexact(facts: TimelineFacts) -> str:
    if facts.num_ranks is not None:
        return (
            "many events: each rank's highest of each second, whose sum may lie above what was reached; "
            "--from and --until for a part, rankmem job-peak for the exact peak"
        )
    return "not every point is drawn: --from and --until for a part of it"


def _meaning(by: str, timeline: Timeline) -> str:
    """What the figures of the curves are."""
    figure = timeline.facts.figure or ("all" if by == OVERALL else "requested")
    if figure == "all":
        return ALL_FIGURES.get(by, "").replace("{exact}", EXACTNESS[timeline.complete])
    return ONE_FIGURE[figure] + MORE.get(by, "")
