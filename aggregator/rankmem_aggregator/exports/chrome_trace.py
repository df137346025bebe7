"""``rankmem export chrome-trace`` (and ``perfetto``): all ranks in one trace of Chrome's JSON format.

Stage: export. In: the selection; out: one file, gzip where its name ends in ``.gz``, for Perfetto and
chrome://tracing. Each rank is a process, named after rank and host; each thread a thread, with operator calls
as slices; named ranges and steps have rows of their own; each device, stream and component has counters; a
block's life is an async slice; arrows lead from forward to backward, and from the call that allocated a block
to the one that freed it. Times are µs from ``baseTimeNanoseconds``, to the nanosecond, as in PyTorch's
profiler. Written as a stream; over :data:`ROWS_MAX` rows it is thinned, and the file states how.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rankmem_aggregator.exports.contract import ExportResult, Selection
from rankmem_aggregator.exports.log import Log, Stacks, Track, by_rank, on_one_clock, rows_of, tracks
from rankmem_aggregator.exports.output_files import open_text
from rankmem_aggregator.exports.trace_budget import Budget, budget_of
from rankmem_aggregator.exports.trace_counters import Counters
from rankmem_aggregator.exports.trace_file import Span, TraceFile
from rankmem_aggregator.exports.trace_lanes import Lanes

ROWS_MAX: Final = 1_000_000
"""Rows of a trace: some 150 MiB of JSON. Perfetto's page opens that in half a minute and 2 GiB of memory."""

_LANE_TIDS: Final = 1_000_000
"""Row numbers of a thread's second lane begin here."""
_RANGES_TID: Final = 100_000
"""Row of a thread's named ranges: this plus the thread's number."""
_STEPS_TID: Final = 99_999
_CALL_ARGS: Final = ("call_id", "module", "phase", "step", "annotation", "allocated_bytes", "freed_bytes")
_BLOCK_ARGS: Final = ("category", "module", "phase", "step", "annotation", "stream", "pool", "component")
_U64: Final = 2**64 - 1


def write_chrome_trace(selection: Selection, out: Path) -> ExportResult:
    """Writes the trace."""
    result = ExportResult()
    found = on_one_clock(tracks(selection, include_idle=True), result)
    budget = budget_of(selection, found, ROWS_MAX)
    result.remarks += budget.remarks
    base_ns = _base_of(selection, found)
    with open_text(out) as file:
        trace = TraceFile(file, base_ns)
        for pid, of_rank in enumerate(by_rank(found).values(), start=1):
            selection.progress(f"writing {of_rank[0].label()}")
            _Rank(selection, of_rank, pid, trace, budget).write()
        facts = {
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": base_ns,
            "otherData": {
                "session_id": selection.session_id,
                "thinned": "; ".join(budget.remarks) or "no",
                "missing": "; ".join(selection.missing) or "nothing",
            },
        }
        trace.end(facts)
    result.counts |= trace.counts
    return result


write_perfetto = write_chrome_trace


def _base_of(selection: Selection, found: list[Track]) -> int:
    """The zero of the times: nothing lies before it, as Perfetto drops slices with a negative time. Calls and
    ranges may begin before the first event; where the selection has a start, they are cut there."""
    first_ns = min(track.first_ns for track in found)
    if selection.from_ns is not None:
        return first_ns
    begun_ns = selection.rows("trace_begin", from_ns=first_ns)[0]["begun_ns"]
    return first_ns if begun_ns is None else min(first_ns, int(begun_ns))


class _Rows:
    """The rows of a process with the slices of its threads; each is named when it is first used."""

    def __init__(self, trace: TraceFile, pid: int, name: str, first_tid: int) -> None:
        self._trace = trace
        self._pid = pid
        self._name = name
        self._first_tid = first_tid
        self._lanes: dict[int, Lanes] = {}
        self._named: set[int] = set()

    def place(self, thread: int, started_ns: int, ended_ns: int) -> Span:
        """The span of a slice of a thread; a thread's slices come by their start."""
        lane = self._lanes.setdefault(thread, Lanes()).place(started_ns, ended_ns)
        tid = self._first_tid + lane * _LANE_TIDS + thread
        if tid not in self._named:
            self._named.add(tid)
            order = 4 * thread + (1 if self._first_tid else 3)
            name = f"{self._name} {thread}" + (f" ({lane + 1})" if lane else "")
            self._trace.thread(self._pid, tid, name, order + (1 if lane else 0))
        return Span(tid, started_ns, ended_ns)


class _Rank:
    """Writes one rank of an attempt: a process of the trace."""

    def __init__(
        self, selection: Selection, of_rank: list[Track], pid: int, trace: TraceFile, budget: Budget
    ) -> None:
        self._selection = selection
        self._of_rank = of_rank
        self._pid = pid
        self._trace = trace
        self._budget = budget
        self._stacks = Stacks(selection)
        self._places: dict[int, Span] = {}
        self._last_ns = max(track.last_ns for track in of_rank)
        self._first_ns = min(track.first_ns for track in of_rank)

    def write(self) -> None:
        """Writes all its rows."""
        first = self._of_rank[0]
        attempt = f", attempt {first.attempt}" if first.attempt else ""
        devices = ", ".join(track.device for track in self._of_rank)
        self._trace.process(self._pid, f"rank {first.rank} on {first.host_name}{attempt}", devices, self._pid)
        log = Log(self._selection, first, (self._first_ns, self._last_ns))
        self._steps(log)
        self._ranges(log)
        self._calls(log)
        for track in self._of_rank:
            self._device(track)

    def _steps(self, log: Log) -> None:
        rows = list(rows_of(log.steps()))
        if rows:
            self._trace.thread(self._pid, _STEPS_TID, "steps", 0)
        for row in rows:
            place = Span(_STEPS_TID, self._start_of(row), self._end_of(row))
            self._trace.slice(self._pid, place, "step", f"step {row['step']}", {})

    def _ranges(self, log: Log) -> None:
        rows = _Rows(self._trace, self._pid, "ranges of thread", _RANGES_TID)
        for row in rows_of(log.markers()):
            place = rows.place(row["thread"] or 0, self._start_of(row), self._end_of(row))
            self._trace.slice(self._pid, place, "range", row["name"], {"kind": row["kind"]})

    def _calls(self, log: Log) -> None:
        rows = _Rows(self._trace, self._pid, "thread", 0)
        for batch in log.calls():
            self._stacks.load(batch["stack_id"].to_pylist())
            for row in batch.to_pylist():
                if (row["allocated_bytes"] or 0) < self._budget.call_bytes:
                    continue
                self._call(row, rows.place(row["thread"] or 0, self._start_of(row), self._end_of(row)))

    def _start_of(self, row: dict[str, Any]) -> int:
        return max(int(row["started_ns"]), self._trace.base_ns)

    def _end_of(self, row: dict[str, Any]) -> int:
        ended_ns = self._last_ns if row["ended_ns"] is None else row["ended_ns"]
        return max(int(ended_ns), self._start_of(row) + 1)

    def _call(self, row: dict[str, Any], place: Span) -> None:
        self._places[row["call_id"]] = place
        args = {name: row[name] for name in _CALL_ARGS} | {"line": self._stacks.line(row["stack_id"])}
        self._trace.slice(self._pid, place, "operator", row["operator"], args)
        forward = self._places.get(row["forward_call_id"])
        if forward is not None:
            key = f"a{self._pid}.{row['call_id']}"
            ends = (forward.ended_ns, place, place.started_ns)
            self._trace.arrow(self._pid, key, "autograd", forward, *ends)

    def _device(self, track: Track) -> None:
        log = Log(self._selection, track)
        groups = [name for name, count in track.groups().items() if count > 1]
        counters = Counters(track.device, self._counter, groups, self._budget.bucket_ns)
        if groups:
            held = log.held(track.seq_first - 1)
            counters.begin(track.first_ns, held, log.segment_events_before())
        if not track.num_events:
            counters.total(track.first_ns, track.peak_bytes or 0)
        makers: dict[int, tuple[int, int, int]] = {}
        for batch in log.events():
            for row in batch.to_pylist():
                counters.event(row)
                self._freed(track, row, makers)
        for row in rows_of(log.samples()):
            counters.sample(row["time_ns"], row["app_reserved_bytes"])
        counters.end()
        for batch in log.blocks(at_least_bytes=self._budget.block_bytes):
            self._stacks.load(batch["stack_id"].to_pylist())
            for row in batch.to_pylist():
                self._block(track, row)

    def _counter(self, name: str, time_ns: int, value_bytes: int) -> None:
        self._trace.counter(self._pid, name, time_ns, value_bytes)

    def _freed(self, track: Track, row: dict[str, Any], makers: dict[int, tuple[int, int, int]]) -> None:
        """Writes an arrow from the call that allocated a block to the one that requested its free."""
        address, call_id = row["address"], row["call_id"]
        if row["action"] == "alloc":
            if (
                address is not None
                and call_id in self._places
                and row["size_bytes"] >= self._budget.block_bytes
            ):
                makers[address] = (call_id, row["time_ns"], row["seq"])
            else:
                makers.pop(address, None)
        elif row["action"] in ("free_requested", "free_completed") and address in makers:
            maker, made_ns, seq = makers.pop(address)
            if call_id is not None and call_id != maker and call_id in self._places:
                key = f"f{self._pid}.{track.device}.{seq}"
                ends = (made_ns, self._places[call_id], row["time_ns"])
                self._trace.arrow(self._pid, key, "free", self._places[maker], *ends)

    def _block(self, track: Track, row: dict[str, Any]) -> None:
        older = "before the recording" if row["preexisting"] else None
        args = {name: row[name] for name in _BLOCK_ARGS} | {
            "bytes": row["size_bytes"],
            "address": hex(row["address"] & _U64) if row["address"] is not None else None,
            "line": self._stacks.line(row["stack_id"]),
            "alive": older,
        }
        if row["attribution"] not in (None, "observed"):
            args |= {"attribution": row["attribution"], "like_id": row["like_id"]}
        began_ns = track.first_ns if row["allocated_ns"] is None else max(row["allocated_ns"], track.first_ns)
        ended_ns = track.last_ns if row["freed_ns"] is None else row["freed_ns"]
        if row["freed_ns"] is None:
            args["alive"] = "at the end"
        key = f"{self._pid}.{track.device}.{row['allocation_id']}"
        name = row["operator"] or older or "no operator"
        self._trace.life(self._pid, key, name, began_ns, max(ended_ns, began_ns), args)
