"""Reads the log of a rank for exports: events, blocks, ranges and stacks, in order and page by page.

Stage: export, in the reader's process. In: the selection; out: Arrow batches of the statements in
``sql/exports``, times on the common clock. A track is a device of a rank, between two positions of its log
that are fixed when the export begins: later records of a running job are not seen, and a block freed later
counts as alive. Each statement is bounded (see :data:`~rankmem_aggregator.exports.table_rows.PAGE_ROWS`);
only stacks are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.table_rows import pages
from rankmem_aggregator.query.types import Value
from rankmem_protos.clock import has_clock
from rankmem_protos.errors import Code, RankmemError

_LEAST_ID: Final = -(2**62)
"""Below any allocation id: blocks older than the recording have negative ones."""
STACKS_ASKED_MAX: Final = 2_000
"""Stacks read by one statement: some 20 KiB of text, 40,000 frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A device of a rank, and the range of its log that is exported."""

    session_id: str
    attempt: int
    rank: int
    device: str
    host_uid: str | None
    host_name: str
    pid: int | None
    offset_ns: int
    """Add to its host's times to get the common clock."""
    started_ns: int | None
    ended_ns: int | None
    """Of the process, on the common clock."""
    seq_first: int
    seq_last: int
    first_ns: int
    last_ns: int
    num_events: int
    peak_bytes: int | None
    num_streams: int
    num_components: int

    @property
    def device_type(self) -> str:
        """``cuda`` of ``cuda:0``."""
        return self.device.split(":")[0]

    def groups(self) -> dict[str, int]:
        """The number of streams and of components in its events."""
        return {"stream": self.num_streams, "component": self.num_components}

    def label(self) -> str:
        """For names of files: ``rank-3``, and the attempt where it is not the first."""
        return f"rank-{self.rank}" + (f"-attempt-{self.attempt}" if self.attempt else "")

    def whose(self) -> dict[str, Value]:
        """The parameters of statements that say which rank it is."""
        return {"session": self.session_id, "attempt": self.attempt, "rank": self.rank}

    def values(self) -> dict[str, Value]:
        """Those that say which device it is, and which range of its log."""
        return self.whose() | {
            "device": self.device,
            "offset_ns": self.offset_ns,
            "seq_first": self.seq_first,
            "seq_last": self.seq_last,
            "before": self.seq_first,
        }


class Frame(NamedTuple):
    """A frame of a stack."""

    file_path: str
    line_number: int
    function: str
    in_project: bool


def tracks(selection: Selection, *, include_idle: bool = False) -> list[Track]:
    """The selected devices that have events, by rank, attempt and device.

    Args:
        include_idle: also those without events that hold something from before the recording, as in a memory
            snapshot without history; for formats that can show live blocks without events.

    Raises:
        RankmemError: NOT_FOUND where there are none.
    """
    rows = selection.rows("tracks")
    rows = [row for row in rows if selection.ranks is None or row["rank"] in selection.ranks]
    found = [
        Track(session_id=selection.session_id, **row) for row in rows if include_idle or row["num_events"]
    ]
    if not found and rows:
        raise _no_history_error(selection)
    if not found:
        raise no_events_error(selection)
    return found


def _no_history_error(selection: Selection) -> RankmemError:
    """The error where a format of events gets a recording of live blocks alone."""
    return RankmemError(
        Code.NOT_FOUND,
        f"session {selection.session_id} has no events, only live blocks, which this format cannot hold",
        "the exports torch-snapshot, memory-timeline, chrome-trace and perfetto can",
    )


def on_one_clock(found: list[Track], result: ExportResult) -> list[Track]:
    """The tracks that fit on one time axis: those with a clock; if none has one, the first rank's."""
    timed = [track for track in found if has_clock(track.first_ns)]
    kept = timed or [track for track in found if track.whose() == found[0].whose()]
    left_out = sorted({track.rank for track in found if track not in kept})
    if left_out:
        ranks = ", ".join(map(str, left_out))
        result.remarks.append(
            f"left out: rank {ranks}, recorded without times; export it to a file of its own (--rank)"
        )
    return kept


def no_events_error(selection: Selection) -> RankmemError:
    """The error where the selection has no allocator events."""
    if (selection.ranks, selection.from_ns, selection.until_ns) != (None, None, None):
        return RankmemError(
            Code.NOT_FOUND,
            f"session {selection.session_id} has no events in that range or of that rank",
            "see rankmem ranks, or give another range",
        )
    return RankmemError(
        Code.NOT_FOUND,
        f"session {selection.session_id} has no memory events",
        f"its kernels' time: rankmem sql \"FROM kernel_total('{selection.session_id}')\"; its ranges "
        "and samples are in rankmem sql, too, and in the exports parquet, arrow and csv",
    )


def with_idle_devices(selection: Selection, found: list[Track]) -> list[Track]:
    """The tracks, with those devices of their ranks that hold something and have no event in the range."""
    ranks = by_rank(found)
    for row in selection.rows("devices"):
        of_rank = ranks.get((row["rank"], row["attempt"]), [])
        if of_rank and all(track.device != row["device"] for track in of_rank):
            idle = replace(
                of_rank[0],
                device=row["device"],
                seq_first=min(track.seq_first for track in of_rank),
                seq_last=max(track.seq_last for track in of_rank),
                num_events=0,
                peak_bytes=0,
            )
            of_rank.append(idle)
    return [track for of_rank in ranks.values() for track in of_rank]


def by_rank(found: Iterable[Track]) -> dict[tuple[int, int], list[Track]]:
    """The tracks of each rank and attempt."""
    ranks: dict[tuple[int, int], list[Track]] = {}
    for track in found:
        ranks.setdefault((track.rank, track.attempt), []).append(track)
    return ranks


def highest(found: Iterable[Track]) -> Track:
    """The track with the highest peak, for files that hold one."""
    return max(found, key=lambda track: (track.peak_bytes or 0, -track.rank, track.attempt))


class Log:
    """The records of one track, batch by batch or as rows; columns of the statement of the same name.

    Args:
        selection: where to read.
        track: the device.
        range_ns: first and last instant of what belongs to the rank as a whole; None: the track's own.
    """

    def __init__(self, selection: Selection, track: Track, range_ns: tuple[int, int] | None = None) -> None:
        self._selection = selection
        self._track = track
        from_ns, until_ns = range_ns or (track.first_ns, track.last_ns)
        self._values = track.values() | {"from_ns": from_ns, "until_ns": until_ns}

    def events(self) -> Iterator[pa.RecordBatch]:
        """Its events in order."""
        return self._in_pages("events", self._pages())

    def blocks(self, *, at_least_bytes: int = 0) -> Iterator[pa.RecordBatch]:
        """Blocks that lived in its range, by allocation id."""
        older = (_LEAST_ID, self._track.seq_first - 1)
        return self._in_pages("blocks", [older, *self._pages()], least_bytes=at_least_bytes)

    def held(self, at_seq: int) -> list[dict[str, Any]]:
        """Blocks alive right after an event, by address."""
        return self._selection.rows("held", **self._values, at_seq=at_seq)

    def has_meanings(self) -> bool:
        """Whether some block of the range has a category, and some event of it is no alloc."""
        (row,) = self._selection.rows("meanings", **self._values)
        return bool(row["knows"] and row["others"])

    def segment_events_before(self) -> list[dict[str, Any]]:
        """Segments from before the recording, then what the allocator got and gave back before the range."""
        older = self._selection.rows("older_segments", **self._values)
        return older + self._selection.rows("segment_events", **self._values)

    def markers(self) -> Iterator[pa.RecordBatch]:
        """Named ranges of its rank that touch the range."""
        return self._selection.stream("markers", **self._values)

    def calls(self) -> Iterator[pa.RecordBatch]:
        """Operator calls of its rank that touch the range."""
        return self._selection.stream("calls", **self._values)

    def timeline_before(self) -> Iterator[pa.RecordBatch]:
        """Blocks that were there before the range."""
        return self._selection.stream("timeline_before", **self._values)

    def timeline(self) -> Iterator[pa.RecordBatch]:
        """Bytes that came and went, with their categories."""
        return self._in_pages("timeline", self._pages())

    def steps(self) -> Iterator[pa.RecordBatch]:
        """Training steps of its rank that touch the range."""
        return self._selection.stream("steps", **self._values)

    def samples(self) -> Iterator[pa.RecordBatch]:
        """Samples of what the process held on the device."""
        return self._selection.stream("samples", **self._values)

    def _pages(self) -> Iterator[tuple[int, int]]:
        track = self._track
        return pages(track.seq_first, track.seq_last, track.num_events)

    def _in_pages(
        self, name: str, found: Iterable[tuple[int, int]], **values: Value
    ) -> Iterator[pa.RecordBatch]:
        for first, last in found:
            yield from self._selection.stream(name, **self._values, **values, first=first, last=last)


class Stacks:
    """The frames of stacks, read once and kept: a job has thousands, not millions."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._known: dict[int, tuple[Frame, ...]] = {}
        self._lines: dict[int, str | None] = {}

    def load(self, stack_ids: Iterable[int | None]) -> None:
        """Reads those stacks that are not known yet."""
        wanted = sorted({number for number in stack_ids if number is not None} - self._known.keys())
        for begin in range(0, len(wanted), STACKS_ASKED_MAX):
            part = wanted[begin : begin + STACKS_ASKED_MAX]
            frames: dict[int, list[Frame]] = {number: [] for number in part}
            for row in self._selection.rows("frames", stacks=",".join(map(str, part))):
                frame = Frame(row["file_path"], row["line_number"], row["function"], row["in_project"])
                frames[row["stack_id"]].append(frame)
                self._lines[row["stack_id"]] = row["line"]
            self._known |= {number: tuple(of_stack) for number, of_stack in frames.items()}

    def of(self, stack_id: int | None) -> tuple[Frame, ...]:
        """Its frames, innermost first; empty where there is none. It must be loaded."""
        return () if stack_id is None else self._known.get(stack_id, ())

    def line(self, stack_id: int | None) -> str | None:
        """Its line, as in the view ``stack``. It must be loaded."""
        return None if stack_id is None else self._lines.get(stack_id)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """The rows of batches as Python values, read batch by batch."""
    for batch in batches:
        yield from batch.to_pylist()
