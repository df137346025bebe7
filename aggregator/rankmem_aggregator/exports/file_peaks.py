"""Compares the peak of each device in an exported file with the recording's.

Stage: export. In: the bytes as they are written; out: a remark where the two differ, or an error where a file
would hold nothing of the recorded peaks. Each kind of file that is made of blocks, not of recorded totals, is
checked here: no file is silently lower than the answers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from rankmem_aggregator.exports.contract import ExportResult
from rankmem_aggregator.exports.log import Track
from rankmem_protos.errors import Code, RankmemError


class FilePeak(NamedTuple):
    """A device's peak in a file."""

    track: Track
    peak_bytes: int
    """The highest total that a reader of the file finds."""


class RunningBytes:
    """The bytes that one device holds, and their highest value, while its file is written."""

    def __init__(self, held_bytes: int = 0) -> None:
        self._now = self.highest = held_bytes

    def add(self, change_bytes: int) -> None:
        """Adds allocated bytes; freed ones are negative."""
        self._now += change_bytes
        self.highest = max(self.highest, self._now)

    def reach(self, held_bytes: int) -> None:
        """Counts a total that the file itself states for one instant."""
        self.highest = max(self.highest, held_bytes)


def check_file_peaks(kind: str, file_peaks: Iterable[FilePeak], result: ExportResult, why: str) -> None:
    """Adds a remark for each peak that the files do not reach.

    Args:
        kind: the export's name.
        file_peaks: the peak of each device in the files.
        written: takes the remarks.
        why: ends the sentence: what such a file consists of.

    Raises:
        RankmemError: UNSUPPORTED where the files hold nothing of any peak.
    """
    found = [each for each in file_peaks if each.track.num_events]  # the others have no known peak
    highest = [each for each in found if each.track.peak_bytes]
    if highest and not any(each.peak_bytes for each in highest):
        best = max(highest, key=_peak)
        raise RankmemError(
            Code.UNSUPPORTED,
            f"a {kind} of {_whose(best)} would hold none of its {best.track.peak_bytes:,} bytes: {why}",
            "the exports chrome-trace, html, parquet, arrow and csv have the totals",
        )
    for each in found:
        peak_bytes = each.track.peak_bytes
        if peak_bytes is not None and each.peak_bytes != peak_bytes:
            result.remarks.append(
                f"{_whose(each)}: the file reaches {each.peak_bytes:,} bytes, "
                f"the recording {peak_bytes:,} bytes: {why}"
            )


def _whose(each: FilePeak) -> str:
    return f"rank {each.track.rank}, {each.track.device}"


def _peak(each: FilePeak) -> int:
    return each.track.peak_bytes or 0
