"""What exports read of a rank: its events, blocks, ranges and stacks, in order and piece by piece.

Stage: export, in the reader's process. In: what was chosen; out: Arrow batches of the statements in
``sql/exports``, times on the common clock. A track is a device of a rank, between two positions of its log
that are set when the export begins: what a running job adds meanwhile is not seen, and what ended later
counts as alive. Each statement is bounded (see :data:`~rankmem_aggregator.exports.table_rows.PAGE_ROWS`);
nothing is kept but stacks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.table_rows import pages
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import export_text
from rankmem_protos.clock import has_clock
from rankmem_protos.errors import Code, RankmemError

_LEAST_ID: Final = -(2**62)
"""Below any allocation id: blocks older than the recording have negative ones."""
STACKS_ASKED_MAX: Final = 2_000
"""Stacks of one statement: some 20 KiB of text, 40,000 frames."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A device of a rank, and the stretch of its log that is exported."""

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
        """How many streams and components its events have."""
        return {"stream": self.num_streams, "component": self.num_components}

    def label(self) -> str:
        """For names of files: ``rank-3``, and the attempt where it is not the first."""
        return f"rank-{self.rank}" + (f"-attempt-{self.attempt}" if self.attempt else "")

    def whose(self) -> dict[str, Value]:
        """The parameters that say which rank it is."""
        return {"session": self.session_id, "attempt": self.attempt, "rank": self.rank}


class Frame(NamedTuple):
    """A frame of a stack."""

    file_path: str
    line_number: int
    function: str
    in_project: bool


def tracks(selection: Selection, *, include_idle: bool = False) -> list[Track]:
    """The devices that have events in what was chosen, by rank, attempt and device.

    Args:
        and_quiet: also those without any that hold something from before the recording, as in a memory
            snapshot without history; for formats that can have what is alive and nothing that happened.

    Raises:
        RankmemError: NOT_FOUND where there are none.
    """
    asked = {"session": selection.session_id, "from_ns": selection.from_ns, "until_ns": selection.until_ns}
    rows = selection.queries.sql(export_text("tracks"), asked).to_pylist()
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
    """What a format of events says of a recording that has only what was alive."""
    return RankmemError(
        Code.NOT_FOUND,
        f"session {selection.session_id} has no events, only what was alive, which this format cannot hold",
        "the exports torch-snapshot, memory-timeline, chrome-trace and perfetto can",
    )


def on_one_clock(found: list[Track], result: ExportResult) -> list[Track]:
    """The tracks that one axis of time can have: those with a clock; where none has one the first rank's."""
    timed = [track for track in found if has_clock(track.first_ns)]
    kept = timed or [track for track in found if track.whose() == found[0].whose()]
    left_out = sorted({track.rank for track in found if track not in kept})
    if left_out:
        ranks = ", ".join(map(str, left_out))
        result.remarks.append(
            f"left out: rank {ranks}, recorded without times: a file of its own has it (--rank)"
        )
    return kept


def no_events_error(selection: Selection) -> RankmemError:
    """What is said where nothing of an allocator's log was chosen."""
    if (selection.ranks, selection.from_ns, selection.until_ns) != (None, None, None):
        return RankmemError(
            Code.NOT_FOUND,
            f"session {selection.session_id} has no events of that range or rank",
            "rankmem ranks, and give another range",
        )
    return RankmemError(
        Code.NOT_FOUND,
        f"session {selection.session_id} has no memory events",
        f"its kernels' time: rankmem sql \"FROM kernel_total('{selection.session_id}')\"; its ranges "
        "and samples are in rankmem sql, too, and in the exports parquet, arrow and csv",
    )


def with_idle_devices(selection: Selection, found: list[Track]) -> list[Track]:
    """The tracks, and for each of their ranks the devices that hold something and have no event there."""
    ranks: dict[tuple[int, int], list[Track]] = {}
    for track in found:
        ranks.setdefault((track.rank, track.attempt), []).append(track)
    for row in selection.queries.sql(export_text("devices"), {"session": selection.session_id}).to_pylist():
        of_rank = ranks.get((row["rank"], row["attempt"]), [])
        if of_rank and all(track.device != row["device"] for track in of_rank):
            quiet = replace(
                of_rank[0],
                device=row["device"],
                seq_first=min(track.seq_first for track in of_rank),
                seq_last=max(track.seq_last for track in of_rank),
                num_events=0,
                peak_bytes=0,
            )
            of_rank.append(quiet)
    return [track for of_rank in ranks.values() for track in of_rank]


def highest(found: Iterable[Track]) -> Track:
    """The track that stood highest, for files that hold one."""
    return max(found, key=lambda track: (track.peak_bytes or 0, -track.rank, track.attempt))


class Log:
    """What was recorded of one track.

    Args:
        chosen: where to ask.
        track: whose.
        range_ns: first and last instant of what is said of the rank as a whole; None: the track's own.
    """

    def __init__(self, selection: Selection, track: Track, range_ns: tuple[int, int] | None = None) -> None:
        self._queries = selection.queries
        self._track = track
        self._range_ns = range_ns or (track.first_ns, track.last_ns)
        self._of_device = {**track.whose(), "device": track.device}

    def events(self) -> Iterator[pa.RecordBatch]:
        """Its events in order; columns of ``events.sql``."""
        track = self._track
        asked = {**self._of_device, "offset_ns": track.offset_ns}
        for first, last in pages(track.seq_first, track.seq_last, track.num_events):
            yield from self._queries.stream(export_text("events"), {**asked, "first": first, "last": last})

    def blocks(self, *, at_least_bytes: int = 0) -> Iterator[pa.RecordBatch]:
        """Blocks that lived in the stretch, by allocation id; columns of ``blocks.sql``."""
        track = self._track
        asked = {**self._of_device, "offset_ns": track.offset_ns}
        asked |= {"seq_first": track.seq_first, "seq_last": track.seq_last, "least_bytes": at_least_bytes}
        stretches = [(_LEAST_ID, track.seq_first - 1)]
        stretches += pages(track.seq_first, track.seq_last, track.num_events)
        for first, last in stretches:
            yield from self._queries.stream(export_text("blocks"), {**asked, "first": first, "last": last})

    def held(self, at_seq: int) -> pa.Table:
        """Blocks alive right after an event, by address; columns of ``held.sql``."""
        return self._queries.sql(export_text("held"), {**self._of_device, "at_seq": at_seq})

    def has_meanings(self) -> bool:
        """Whether some block of the stretch has a category, and some event of it is no alloc."""
        track = self._track
        asked = {**self._of_device, "seq_first": track.seq_first, "seq_last": track.seq_last}
        row = self._queries.sql(export_text("meanings"), asked).to_pylist()[0]
        return bool(row["knows"] and row["others"])

    def older_segments(self) -> pa.Table:
        """Segments from before the recording, as :meth:`segment_events` has those that came later."""
        return self._queries.sql(export_text("older_segments"), self._of_device)

    def segment_events(self) -> pa.Table:
        """What the allocator got and gave back before the stretch; columns of ``segment_events.sql``."""
        asked = {**self._of_device, "before": self._track.seq_first}
        return self._queries.sql(export_text("segment_events"), asked)

    def markers(self) -> Iterator[pa.RecordBatch]:
        """Named ranges of its rank that touch the stretch; columns of ``markers.sql``."""
        return self._of_rank("markers")

    def calls(self) -> Iterator[pa.RecordBatch]:
        """Operator calls of its rank that touch the stretch; columns of ``calls.sql``."""
        return self._of_rank("calls")

    def timeline_before(self) -> Iterator[pa.RecordBatch]:
        """Blocks that were there before the stretch; columns of ``timeline_before.sql``."""
        asked = {**self._of_device, "before": self._track.seq_first}
        return self._queries.stream(export_text("timeline_before"), asked)

    def timeline(self) -> Iterator[pa.RecordBatch]:
        """Bytes that came and went, with what they meant; columns of ``timeline.sql``."""
        track = self._track
        asked = {**self._of_device, "offset_ns": track.offset_ns}
        for first, last in pages(track.seq_first, track.seq_last, track.num_events):
            yield from self._queries.stream(export_text("timeline"), {**asked, "first": first, "last": last})

    def steps(self) -> Iterator[pa.RecordBatch]:
        """Training steps of its rank that touch the stretch; columns of ``steps.sql``."""
        return self._of_rank("steps")

    def samples(self) -> Iterator[pa.RecordBatch]:
        """What the process held on the device, now and then; columns of ``samples.sql``."""
        return self._of_rank("samples", device=self._track.device)

    def _of_rank(self, name: str, **more: Value) -> Iterator[pa.RecordBatch]:
        track = self._track
        asked = {**track.whose(), **more, "offset_ns": track.offset_ns}
        asked |= {"from_ns": self._range_ns[0], "until_ns": self._range_ns[1]}
        return self._queries.stream(export_text(name), asked)


class Stacks:
    """The frames of stacks, asked for once and kept: a job has thousands, not millions."""

    def __init__(self, selection: Selection) -> None:
        self._queries = selection.queries
        self._known: dict[int, tuple[Frame, ...]] = {}
        self._lines: dict[int, str | None] = {}

    def load(self, stack_ids: Iterable[int | None]) -> None:
        """Asks for those of these that are not known yet."""
        wanted = sorted({number for number in stack_ids if number is not None} - self._known.keys())
        for begin in range(0, len(wanted), STACKS_ASKED_MAX):
            part = wanted[begin : begin + STACKS_ASKED_MAX]
            frames: dict[int, list[Frame]] = {number: [] for number in part}
            asked = {"stacks": ",".join(map(str, part))}
            for row in self._queries.sql(export_text("frames"), asked).to_pylist():
                frame = Frame(row["file_path"], row["line_number"], row["function"], row["in_project"])
                frames[row["stack_id"]].append(frame)
                self._lines[row["stack_id"]] = row["line"]
            self._known |= {number: tuple(of_stack) for number, of_stack in frames.items()}

    def of(self, stack_id: int | None) -> tuple[Frame, ...]:
        """Innermost first; empty where there is none. It was loaded before."""
        return () if stack_id is None else self._known.get(stack_id, ())

    def line(self, stack_id: int | None) -> str | None:
        """Its line, as the view ``stack`` has it. It was loaded before."""
        return None if stack_id is None else self._lines.get(stack_id)


def rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    """The rows of batches, a batch at a time as Python values."""
    for batch in batches:
        yield from batch.to_pylist()
