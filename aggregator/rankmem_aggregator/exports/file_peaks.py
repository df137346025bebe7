"""What of a device's peak a file carries: the highest bytes that its reader finds, beside the recording's.

Stage: export. In: the bytes as a kind writes them; out: a sentence for the remarks where the two differ, or
an error where a file would hold nothing of what the recording says. Each kind that is made of blocks, and
not of the recording's totals, asks here: no file is silently lower than the answers.
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
    """The highest that a reader of the file finds."""


class RunningBytes:
    """The bytes of one device while they are written."""

    def __init__(self, held_bytes: int = 0) -> None:
        self._now = self.highest = held_bytes

    def add(self, change_bytes: int) -> None:
        """Bytes that came, or went where negative."""
        self._now += change_bytes
        self.highest = max(self.highest, self._now)

    def reach(self, held_bytes: int) -> None:
        """What the file says by itself to be held at one instant."""
        self.highest = max(self.highest, held_bytes)


def check_file_peaks(kind: str, file_peaks: Iterable[FilePeak], result: ExportResult, why: str) -> None:
    """Says in the remarks which peaks the files do not reach.

    Args:
        kind: the export's name.
        carried: what each device of the files reaches.
        written: takes the remarks.
        why: ends the sentence: what such a file is made of.

    Raises:
        RankmemError: UNSUPPORTED where nothing of any peak is in the files.
    """
    found = [each for each in file_peaks if each.track.num_events]  # of the others no peak is known
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
