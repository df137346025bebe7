"""A chart as one HTML file that needs no network and no library.

Stage: render. In: a chart; out: the text of a page: its data as JSON, a style and a script of ours
(``chart.css``, ``chart.js`` in this folder), together about 12 KB. The page forbids itself every
connection (Content-Security-Policy). Names are data from outside: they reach the page only as JSON and
the screen only as text. A plotting library would weigh 3 to 5 MB in each file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Final

from rankmem_aggregator.plots.curves import Chart, reduced
from rankmem_aggregator.plots.palette import colours

POINTS_MAX: Final = 20_000
"""Instants in a page: with eight series 1 to 2 MB, drawn in some 10 ms. A shorter curve is complete."""


def html_page(chart: Chart) -> str:
    """The page: the curves with values under the pointer, zoom by dragging, and series to switch off."""
    parts = {
        "title": escape(chart.title),
        "subtitle": escape(chart.subtitle),
        "style": resource("chart.css"),
        "script": resource("chart.js"),
        "chart": chart_fragment(chart),
    }
    return filled(resource("page.html"), parts)


def chart_fragment(chart: Chart, points_max: int = POINTS_MAX) -> str:
    """The part of a page that ``chart.js`` draws into, with its data; a page may have several."""
    return filled(
        resource("chart.html"), {"data": _embedded(reduced(chart, points_max), len(chart.times_ns))}
    )


def filled(template: str, parts: Mapping[str, str]) -> str:
    """The template with its ``{{names}}`` replaced; the inserted text is not searched again."""
    head, *rest = template.split("{{")
    return head + "".join(parts[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def resource(name: str) -> str:
    """The text of a file in this folder."""
    return (files("rankmem_aggregator.plots") / name).read_text(encoding="utf-8")


def _embedded(chart: Chart, instants: int) -> str:
    """The chart as JSON that cannot end its script element."""
    names = [one.name for one in chart.series]
    data = {
        "stacked": chart.stacked,
        "instants": instants,
        "times_ns": (chart.times_ns - chart.start_ns).tolist(),  # offsets: 104 days stay exact in a double
        "series": [
            {"name": one.name, "colour": colour, "bytes": one.values_bytes.tolist()}
            for one, colour in zip(chart.series, colours(names), strict=True)
        ],
    }
    text = json.dumps(data, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
