"""Draws what a benchmark of load saw over time: memory and events stored, and each rank's delay.

Stage: outside the way of the data; matplotlib is imported here alone. In: what was looked at; out: a PNG.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

INCHES: Final = (7.0, 2.6)
DPI: Final = 90
INK: Final = "#2a78d6"
SECOND: Final = "#8a8a8a"


def draw(path: Path, looks: Sequence[Mapping[str, float]], told: Sequence[Mapping[str, Any]]) -> None:
    """Left the aggregator over time, right every rank by its mean delay."""
    figure, (left, right) = plt.subplots(1, 2, figsize=INCHES, width_ratios=(3, 2), layout="constrained")
    seconds = [look["s"] for look in looks]
    left.plot(seconds, [look["rss_bytes"] / 2**20 for look in looks], color=INK)
    left.set(xlabel="seconds", ylabel="resident MiB", ylim=(0, None))
    events = left.twinx()
    events.plot(seconds, [look["events"] / 1e6 for look in looks], color=SECOND, linestyle="--")
    events.set(ylabel="million events stored", ylim=(0, None))
    delays = sorted(sum(rank["delays_s"]) / len(rank["delays_s"]) for rank in told if rank["delays_s"])
    right.plot(range(1, len(delays) + 1), delays, color=INK)
    right.set(xlabel="ranks, quickest first", ylabel="sent to acknowledged, s", ylim=(0, None))
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
