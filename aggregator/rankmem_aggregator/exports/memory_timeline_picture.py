"""The picture of a memory timeline, in a page like that of ``torch.profiler``.

Stage: export. In: totals by category at each µs; out: the text of a page that holds one PNG, with the size,
colours and words of torch's own, drawn by matplotlib, an optional dependency. The curves are thinned to
:data:`POINTS_MAX` instants with every maximum kept; torch's ``max_memory_*`` are here the log's own.

Source: torch/profiler/_memory_profiler.py (2.13), export_memory_timeline_html.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from rankmem_aggregator.exports.log import Track
from rankmem_aggregator.plots.curves import Chart, Series, reduced
from rankmem_aggregator.plots.png import encoded, new_figure
from rankmem_protos.categories import CATEGORIES, TIMELINE_INDEX

POINTS_MAX: Final = 20_000
"""Instants drawn: twelve for each dot of the picture."""
_PAGE: Final = """<html>
<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>
<body>
  <img src='data:image/png;base64,{picture}'>
</body>
</html>"""


def page(track: Track, rows: Iterator[tuple[int, list[int]]], missing: Sequence[str] = ()) -> str:
    """The page; the title states what the session lacks.

    Raises:
        RankmemError: UNSUPPORTED if matplotlib is not installed.
    """
    figure = new_figure("this picture", "rankmem export html report.html", figsize=(20, 12), dpi=80)
    chart = _chart(track, rows)
    axes = figure.gca()
    times_ms = (chart.times_ns - chart.start_ns) / 1e6
    below = np.zeros(len(times_ms))
    for one in chart.series:
        above = below + one.values_bytes / 2**30
        axes.fill_between(times_ms, below, above, color=CATEGORIES[one.name].timeline_colour, alpha=0.7)
        below = above
    figure.legend([name.upper() if name != "unknown" else "Unknown" for name in TIMELINE_INDEX])
    axes.set_xlabel("Time (ms)")
    axes.set_ylabel("Memory (GB)")
    axes.set_title(
        f"rank {track.rank}, {track.device} of {track.host_name}\n\n"
        f"Max memory requested: {int(chart.total_bytes().max(initial=0)) / 2**30:.2f} GiB"
        + "".join(f"\nincomplete: {line}".replace("$", r"\$") for line in missing)
    )
    return _PAGE.format(picture=b64encode(encoded(figure)).decode("ascii"))


def _chart(track: Track, rows: Iterator[tuple[int, list[int]]]) -> Chart:
    times, totals = [], []
    for time_us, row in rows:
        times.append(track.first_ns if time_us == -1 else time_us * 1000)
        totals.append(np.array(row[1:], np.int64))
    values = np.stack(totals) if totals else np.zeros((0, len(TIMELINE_INDEX)), np.int64)
    series = [Series(name=name, values_bytes=values[:, number]) for number, name in enumerate(TIMELINE_INDEX)]
    chart = Chart(
        title="",
        times_ns=np.array(times, np.int64),
        start_ns=track.first_ns,
        series=tuple(series),
        stacked=True,
    )
    return reduced(chart, POINTS_MAX)
