"""Draws memory over time as characters: a curve that fits the terminal, and a row for each of its parts.

Stage: render. In: a chart of the aggregator package. Out: lines of text. A column of cells stands for a range
of time and shows the instant in it at which the total was highest, so no maximum is lost. Eighth blocks give
eight levels per cell; where the output's encoding lacks them, ASCII characters give four. Runs in the command
line's process.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
from rich.cells import cell_len
from rich.text import Text

from rankmem_aggregator.plots.curves import bucket_slices, columns
from rankmem_cli.show import units
from rankmem_cli.show.table import shorten

if TYPE_CHECKING:
    from rankmem_aggregator.plots.curves import Chart, Ints

HEIGHT: Final = 12
"""Rows of the curve: with its axis and ten parts it takes just over 24 lines."""
LEVELS: Final = 8
"""Levels per cell."""
GUTTER_MIN: Final = 12
"""Cells left of the curve: a label such as 1023.99 MiB."""
GUTTER_MAX: Final = 28
"""A longer name is shortened, to leave room for the curve."""
PLOT_MIN: Final = 16
"""Minimum width of the curve, however narrow the terminal."""
TICK_CELLS: Final = 10
"""Cells between two labels of the time axis, about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters of a curve."""

    levels: str
    """From nothing to a full cell: nine."""
    tick: str
    wall: str
    corner: str
    floor: str
    mark: str
    """Before the name of a part."""


BLOCKS: Final = Glyphs(levels=" ▁▂▃▄▅▆▇█", tick="┤", wall="│", corner="└", floor="─", mark="■")
ASCII: Final = Glyphs(levels=" ...::+##", tick="+", wall="|", corner="+", floor="-", mark="*")


def glyphs_for(encoding: str | None) -> Glyphs:
    """Blocks where the encoding has them, else ASCII."""
    try:
        (BLOCKS.levels + BLOCKS.mark + BLOCKS.corner).encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """The layout: cells of the gutter, of the curve, and of the figures to its right."""

    gutter: int
    plot: int
    right: int


def draw(chart: Chart, *, width: int, glyphs: Glyphs, hues: list[str] | None = None) -> list[Text]:
    """The lines of the chart, none wider than ``width`` cells unless the curve needs PLOT_MIN.

    Args:
        chart: at least one instant and one series.
        width: cells of the terminal.
        glyphs: see :func:`glyphs_for`.
        hues: a colour for each series, which fills the curve with its parts; None for none.
    """
    frame = _frame(chart, width)
    # If the curves measure one thing in several ways, the first is drawn large.
    main = chart if chart.stacked else replace(chart, series=chart.series[:1])
    lines = _curve(main, columns(main, frame.plot), frame, glyphs, hues[: len(main.series)] if hues else None)
    lines.append(Text(" " * (frame.gutter + 1) + glyphs.corner + glyphs.floor * frame.plot))
    lines.append(Text(_time_axis(chart, frame)))
    if len(chart.series) > 1:
        lines.append(Text(_heading(chart, frame), style="dim"))
        lines += [_part(chart, n, frame, glyphs, hues) for n in _order(chart)]
    return lines


def _order(chart: Chart) -> list[int]:
    """The parts from top to bottom, as they are stacked."""
    order = list(range(len(chart.series)))
    return order[::-1] if chart.stacked else order


def _frame(chart: Chart, width: int) -> _Frame:
    many = len(chart.series) > 1
    names = max((cell_len(units.safe_text(one.name)) for one in chart.series), default=0)
    gutter = min(max(names + 2 if many else 0, GUTTER_MIN), GUTTER_MAX)
    right = 24 if many else 0
    if width - gutter - right - 4 < PLOT_MIN:
        gutter, right = GUTTER_MIN, 12 if many else 0
    return _Frame(
        gutter=gutter, plot=max(PLOT_MIN, width - gutter - 2 - (right + 2 if many else 0)), right=right
    )


def _curve(chart: Chart, picked: Ints, frame: _Frame, glyphs: Glyphs, hues: list[str] | None) -> list[Text]:
    top = chart.total_bytes()
    most = max(1, int(top.max()))
    labels = {HEIGHT - 1: units.bytes_text(int(top.max())), HEIGHT // 2 - 1: units.bytes_text(most // 2)}
    bounds = _bounds(chart, picked, most)
    lines = []
    for row in reversed(range(HEIGHT)):
        label = labels.get(row, "")
        line = Text(f"{label:>{frame.gutter}} {glyphs.tick if label else glyphs.wall}")
        for column in range(frame.plot):
            line.append(*_cell(bounds[:, column], row, glyphs, hues))
        line.rstrip()
        lines.append(line)
    return lines


def _bounds(chart: Chart, picked: Ints, most: int) -> Ints:
    """Upper edge of each part in each column, in levels from the bottom; parts x columns."""
    values = np.stack([one.values_bytes[picked] for one in chart.series])
    summed = np.cumsum(values, axis=0)
    # Rounded up: a single byte is visible, and only the highest column reaches the top.
    edges: Ints = -(-summed.clip(min=0).astype(object) * HEIGHT * LEVELS // most)
    return edges.astype(np.int64)


def _cell(bounds: Ints, row: int, glyphs: Glyphs, hues: list[str] | None) -> tuple[str, str]:
    """The character of a cell and its style; the two largest parts at most share it."""
    inside = np.clip(bounds - row * LEVELS, 0, LEVELS)
    filled = int(inside[-1])
    if hues is None or filled == 0 or len(bounds) != len(hues):
        return glyphs.levels[filled], ""
    if len(hues) == 1:
        return glyphs.levels[filled], hues[0]
    shares = np.diff(inside, prepend=0)
    low, high = sorted(np.argsort(-shares, kind="stable")[:2].tolist())
    if shares[low] == 0 or shares[high] == 0 or filled < LEVELS:
        most = low if shares[low] >= shares[high] else high
        return glyphs.levels[filled], hues[most]
    level = max(1, min(LEVELS - 1, round(LEVELS * int(shares[low]) / int(shares[low] + shares[high]))))
    return glyphs.levels[level], f"{hues[low]} on {hues[high]}"


def _time_axis(chart: Chart, frame: _Frame) -> str:
    """Labels below the curve, each starting at its instant."""
    first, last = int(chart.times_ns[0]) - chart.start_ns, int(chart.times_ns[-1]) - chart.start_ns
    step = _nice_step(max(1, last - first) * TICK_CELLS // frame.plot)
    line = [" "] * (frame.gutter + 2 + frame.plot)
    taken = 0
    for time_ns in range(-(-first // step) * step, last + 1, step):
        label = _tick_text(time_ns, step)
        place = frame.gutter + 2 + (time_ns - first) * frame.plot // max(1, last - first)
        place = min(place, len(line) - len(label))
        if place >= taken:
            line[place : place + len(label)] = label
            taken = place + len(label) + 2
    return "".join(line).rstrip()


def _nice_step(least_ns: int) -> int:
    """The next larger round step: 1, 2 or 5 times a power of ten, or whole minutes or hours."""
    step = 1
    while step < 20 * units.NS_PER_S:
        for factor in (1, 2, 5):
            if step * factor >= least_ns:
                return step * factor
        step *= 10
    for seconds in (30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200):
        if seconds * units.NS_PER_S >= least_ns:
            return seconds * units.NS_PER_S
    return -(-least_ns // (86_400 * units.NS_PER_S)) * 86_400 * units.NS_PER_S


def _tick_text(time_ns: int, step_ns: int) -> str:
    """``+12.5 s``, ``+2:30``: with no more decimals than the step."""
    sign, rest = ("-", -time_ns) if time_ns < 0 else ("+", time_ns)
    seconds, fraction = divmod(rest, units.NS_PER_S)
    decimals = f"{step_ns % units.NS_PER_S:09d}".rstrip("0") if step_ns % units.NS_PER_S else ""
    tail = f".{fraction:09d}"[: 1 + len(decimals)] if decimals else ""
    if seconds < 60:
        return f"{sign}{seconds}{tail} s"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    clock = f"{hours}:{minutes:02d}" if hours else f"{minutes}"
    return f"{sign}{clock}:{seconds:02d}{tail}"


def _heading(chart: Chart, frame: _Frame) -> str:
    left = "each scaled to its own peak"[: frame.gutter + frame.plot]
    right = f"{'own peak':>{min(frame.right, 11)}}"
    if frame.right > 12:
        right += f"{'at the peak':>{frame.right - 11}}"
    return f"{left:<{frame.gutter + 2 + frame.plot}}  {right}"


def _part(chart: Chart, number: int, frame: _Frame, glyphs: Glyphs, hues: list[str] | None) -> Text:
    """A part: name, its own curve in a row of cells, its peak, and its bytes at the peak of the curve."""
    one = chart.series[number]
    most = max(1, one.peak_bytes())
    name = shorten(units.safe_text(one.name), frame.gutter - 2, keep_end=True)
    style = hues[number] if hues is not None else ""
    line = Text.assemble((glyphs.mark, style), f" {name}", " " * (frame.gutter - cell_len(name)))
    levels = -(-_highest(chart, one.values_bytes, frame.plot).astype(object) * LEVELS // most)
    line.append("".join(glyphs.levels[max(0, min(LEVELS, int(level)))] for level in levels), style)
    line.append(f"  {units.bytes_text(one.peak_bytes()):>{min(frame.right, 11)}}")
    if frame.right > 12:
        held = int(one.values_bytes[int(chart.top().argmax())])
        line.append(f"{units.bytes_text(held):>{frame.right - 11}}")
    return line


def _highest(chart: Chart, values: Ints, width: int) -> Ints:
    """The highest value in each column's range of time, including the value at its start."""
    begin, end = bucket_slices(chart, width)
    return np.array([values[b:e].max() for b, e in zip(begin, end, strict=True)], np.int64)
