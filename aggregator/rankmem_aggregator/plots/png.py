"""A chart as a PNG, drawn by matplotlib, which is an extra: ``pip install 'rankmem[plots]'``.

Stage: render. In: a chart; out: the bytes of a picture. matplotlib is imported here alone, when it is needed,
and without pyplot: no window, no global state, a user's notebook is unaffected. :func:`new_figure` gives an
empty figure for other pictures.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rankmem_aggregator.extras import require_extra
from rankmem_aggregator.plots.curves import Chart, columns, reduced
from rankmem_aggregator.plots.palette import colours
from rankmem_aggregator.quantity_text import BYTE_UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH_INCHES: Final = 12.0
HEIGHT_INCHES: Final = 5.6
DOTS_PER_INCH: Final = 150
COLUMNS: Final = 600
"""Half the dots of the time axis: a stacked chart has one instant, the highest, in each. More would be
thinner than a dot and fade or vanish, and with them a peak of a few microseconds."""
POINTS_MAX: Final = 16_000
"""Instants of lines, which do not fade: more than eight a dot, which looks the same as all."""
NAME_CHARACTERS_MAX: Final = 32
"""Characters of a name in the legend, which stands beside the picture."""


def png_bytes(chart: Chart) -> bytes:
    """The picture.

    Raises:
        RankmemError: UNSUPPORTED if matplotlib is not installed.
    """
    figure = new_figure(
        "a PNG",
        "--out x.html",
        figsize=(WIDTH_INCHES, HEIGHT_INCHES),
        dpi=DOTS_PER_INCH,
        layout="constrained",
    )
    axes = figure.add_subplot()
    _draw(axes, chart)
    return encoded(figure)


def new_figure(what: str, otherwise: str, **options: Any) -> Figure:
    """An empty figure of matplotlib's, to be drawn in memory.

    Args:
        what: the picture that needs it, and ``otherwise`` the alternative that does not; for the error.
        options: of ``matplotlib.figure.Figure``.

    Raises:
        RankmemError: UNSUPPORTED if matplotlib is not installed.
    """
    require_extra("plots", what, f"or {otherwise}, which needs nothing")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(**options)
    FigureCanvasAgg(figure)
    return figure


def encoded(figure: Figure) -> bytes:
    """The figure as a PNG."""
    out = io.BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()


def _draw(axes: Axes, chart: Chart) -> None:
    power = _power(int(chart.total_bytes().max(initial=0)))
    hues = colours([one.name for one in chart.series])
    labels = [
        _plain(f"{_short(one.name)}  (peak {one.peak_bytes() / 1024**power:.2f})") for one in chart.series
    ]
    if chart.stacked and chart.series and len(chart.times_ns):
        _draw_areas(axes, chart, power, hues, labels)
    else:
        _draw_lines(axes, chart, power, hues, labels)
    axes.set_title(_plain("\n".join(filter(None, (chart.title, chart.subtitle)))), loc="left", fontsize=10)
    axes.set_xlabel("seconds since the session's start")
    axes.set_ylabel(BYTE_UNITS[power])
    axes.set_ylim(bottom=0)
    axes.margins(x=0)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    if chart.series:
        handles, names = axes.get_legend_handles_labels()
        order = -1 if chart.stacked else 1  # as they lie above one another
        axes.legend(
            handles[::order], names[::order], loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False
        )


def _draw_areas(axes: Axes, chart: Chart, power: int, hues: list[str], labels: list[str]) -> None:
    first, last = int(chart.times_ns[0]), int(chart.times_ns[-1])
    picked = columns(chart, COLUMNS)
    picked = np.append(picked, picked[-1])  # the last bucket needs an end too
    offsets_s = (first - chart.start_ns + np.arange(COLUMNS + 1) * (last - first) / COLUMNS) / 1e9
    below = np.zeros(COLUMNS + 1, np.int64)
    for one, hue, label in zip(chart.series, hues, labels, strict=True):
        above = below + one.values_bytes[picked]
        lower, upper = below / 1024**power, above / 1024**power
        axes.fill_between(
            offsets_s, lower, upper, step="post", color=hue, label=label, linewidth=0, antialiased=False
        )
        below = above


def _draw_lines(axes: Axes, chart: Chart, power: int, hues: list[str], labels: list[str]) -> None:
    shown = reduced(chart, POINTS_MAX)
    offsets_s = (shown.times_ns - shown.start_ns) / 1e9
    for one, hue, label in zip(shown.series, hues, labels, strict=True):
        values = one.values_bytes / 1024**power
        axes.plot(offsets_s, values, label=label, color=hue, drawstyle="steps-post", linewidth=1.3)


def _power(most_bytes: int) -> int:
    return min(max(most_bytes.bit_length() - 1, 0) // 10, len(BYTE_UNITS) - 1)


def _short(name: str) -> str:
    """The name cut to leave room for the curves; the end of a path says more."""
    return name if len(name) <= NAME_CHARACTERS_MAX else "…" + name[-NAME_CHARACTERS_MAX:]


def _plain(text: str) -> str:
    """Text that matplotlib does not read as a formula; ``?`` for unprintable characters."""
    shown = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    return shown.replace("$", "\\$")
