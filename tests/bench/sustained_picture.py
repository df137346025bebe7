"""Draws a run of steady ingest: delays, memory, and the database with its log.

Stage: outside the way of the data; matplotlib is imported here alone. In: what was seen; out: a PNG.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
import numpy as np
import numpy.typing as npt

mpl.use("Agg")
from matplotlib import pyplot as plt

INCHES: Final = (9.0, 2.6)
DPI: Final = 90
INK: Final = "#2a78d6"
SECOND: Final = "#8a8a8a"
BINS: Final = 120


def draw(
    path: Path,
    looks: Sequence[Mapping[str, float]],
    when_s: npt.NDArray[np.float64],
    delays_s: npt.NDArray[np.float64],
) -> None:
    """Three panels over seconds: the median and the highest delay, resident memory, bytes on disk."""
    figure, (delay, memory, disk) = plt.subplots(1, 3, figsize=INCHES, layout="constrained")
    edges = np.linspace(0, when_s[-1], min(BINS, max(2, int(when_s[-1]))) + 1)
    parts = [delays_s[(when_s >= a) & (when_s < b)] for a, b in itertools.pairwise(edges)]
    middle = [part for part in zip(edges, parts, strict=False) if len(part[1])]
    delay.plot([a for a, _ in middle], [part.max() for _, part in middle], color=SECOND, label="highest")
    delay.plot([a for a, _ in middle], [np.median(part) for _, part in middle], color=INK, label="median")
    delay.set(xlabel="seconds", ylabel="event to visible, s", ylim=(0, None))
    delay.legend(frameon=False)
    seconds = [look["s"] for look in looks]
    memory.plot(seconds, [look["rss_bytes"] / 2**20 for look in looks], color=INK, label="aggregator")
    memory.plot(seconds, [look["shipper_bytes"] / 2**20 for look in looks], color=SECOND, label="shipper")
    memory.set(xlabel="seconds", ylabel="resident MiB", ylim=(0, None))
    memory.legend(frameon=False)
    disk.plot(seconds, [look["database_bytes"] / 2**20 for look in looks], color=INK, label="database")
    disk.plot(seconds, [look["log_bytes"] / 2**20 for look in looks], color=SECOND, label="log")
    disk.set(xlabel="seconds", ylabel="MiB on disk", ylim=(0, None))
    disk.legend(frameon=False)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
