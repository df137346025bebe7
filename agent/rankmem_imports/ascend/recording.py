"""One rank of an Ascend recording: its parts, from either form of file.

Stage: readers; the process of ``rankmem import``. In: a ``Source``; out: parts in log order, then the
blocks, which are known when the log has ended, then samples of components and static graphs. Memory: a
slice of the log and about 70 bytes for each operator's row; totals, and blocks that have ended, wait on
disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rankmem_imports.ascend.log import AscendLog, LogSlice
from rankmem_imports.ascend.rows import CHUNK_ROWS, UNKNOWN, Source, Step, with_sizes
from rankmem_imports.ascend.stage import Operators, Totals
from rankmem_imports.ascend.steps import StepBuckets
from rankmem_imports.ascend.tables import AscendTables
from rankmem_imports.recording import Closing, Identity, NothingHereError, Part, RankFacts
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.fact_rows import Rows
from rankmem_ship.pairing.state import ABSENT, Array

STEP_NAME: Final = "ProfilerStep#{}"
"""Of the marker around a step, as torch's profiler calls it."""


@dataclass(frozen=True, slots=True)
class _Extras:
    """Samples and ends of steps: what else has a position in the log."""

    times: Array
    is_step: Array
    place: Array
    """Among the samples, or among the steps."""

    @classmethod
    def of(cls, samples: Array, steps: Sequence[Step]) -> _Extras:
        ends = np.array([step.ended_ns for step in steps], np.int64)
        times = np.concatenate([samples["time_ns"], ends])
        order = np.argsort(times, kind="stable")
        is_step = order >= len(samples)
        return cls(times[order], is_step, np.where(is_step, order - len(samples), order))


class AscendRecording:
    """A rank's recording."""

    def __init__(self, source: Source, kind: str, remarks: tuple[str, ...] = ()) -> None:
        self.source = source.path
        self._tables = source
        self._kind = kind
        self._remarks = remarks
        self._closing = Closing(events=0)
        self._others = 0

    @cached_property
    def facts(self) -> RankFacts:
        """The source's facts, with its span widened to what was recorded."""
        facts, totals = self._tables.facts, self._totals
        started = [ns for ns in (facts.started_ns, totals.first_ns) if ns is not None]
        ended = [ns for ns in (facts.ended_ns, totals.last_ns) if ns is not None]
        return replace(facts, started_ns=min(started, default=None), ended_ns=max(ended, default=None))

    @cached_property
    def _totals(self) -> Totals:
        return Totals(self._tables)

    @cached_property
    def _steps(self) -> list[Step]:
        return sorted(self._tables.steps(), key=lambda step: (step.ended_ns, step.number))

    def parts(self, identity: Identity) -> Iterator[Part]:
        """The rank's rows, in log order.

        Raises:
            RankmemError: INVALID where a file breaks off, or nothing is in it.
        """
        tables = AscendTables(identity=identity, names=self._tables.names, has_active=self._totals.has_active)
        extras = _Extras.of(self._totals.samples, self._steps)
        log = AscendLog(
            totals=self._totals,
            operators=Operators(self._tables),
            names=self._tables.names,
            extra_times=extras.times,
        )
        buckets = StepBuckets(self._steps)
        last = 0
        for log_slice in log.slices():
            last = log_slice.seq_last
            buckets.add(log_slice)
            yield Part(
                rows=[*tables.events(log_slice), *self._between(tables, log_slice, extras)],
                sequence_last=last,
            )
        for some in self._after(tables, log, buckets):
            last += 1
            yield Part(rows=some, sequence_last=last)
        if not log.events and not self._others and not len(extras.times):
            raise NothingHereError(
                f"{self.source} holds no memory record",
                "record with profile_memory=True (torch_npu.profiler)",
            )
        self._finish(log)

    def closing(self) -> Closing:
        """Includes what did not fit together, in words."""
        return self._closing

    def _finish(self, log: AscendLog) -> None:
        """Keeps the log's results and releases its memory, which is needed to store the rows."""
        assert self.facts
        self._closing = _closing_of(log, self._remarks)
        if count := self._totals.num_unattributed:
            remark = f"{count} records were left out: their component has no name"
            self._closing = replace(self._closing, remarks=(*self._closing.remarks, remark))
        self.__dict__.pop("_totals", None)
        pa.default_memory_pool().release_unused()

    def _between(self, tables: AscendTables, log_slice: LogSlice, extras: _Extras) -> list[Rows]:
        """Samples and steps of a slice; in the first, the devices."""
        rows: list[Rows] = []
        is_step, place = extras.is_step[log_slice.extras], extras.place[log_slice.extras]
        if (~is_step).any():
            rows.append(tables.samples(self._totals.samples[place[~is_step]], log_slice.extra_seq[~is_step]))
        steps = [
            {
                "step": self._steps[number].number,
                "ended_ns": self._steps[number].ended_ns,
                "seq": int(seq),
                "optimizer": "ProfilerStep",
            }
            for number, seq in zip(place[is_step], log_slice.extra_seq[is_step], strict=True)
        ]
        if steps:
            rows.append(("step", rows_of("step", tables.facts(steps))))
        return rows

    def _after(self, tables: AscendTables, log: AscendLog, buckets: StepBuckets) -> Iterator[list[Rows]]:
        """The rows that are known when the log has ended."""
        yield from ([rows] for rows in self._blocks(tables, log))
        for modules in (*self._totals.separate, *self._tables.modules()):
            if len(modules):
                self._others += len(modules)
                yield [tables.modules(with_sizes(modules, self.source, "reserved"))]
        for blocks in self._tables.static_blocks():
            if len(blocks):
                self._others += len(blocks)
                yield [tables.static_blocks(with_sizes(blocks, self.source, "size"))]
        facts = [
            ("device_info", tables.facts(self._devices())),
            ("marker", tables.facts(_markers(self._steps))),
            ("step_bucket", tables.facts(buckets.rows(self._tables.names.devices.texts))),
        ]
        yield [(table, rows_of(table, rows)) for table, rows in facts if rows]

    def _blocks(self, tables: AscendTables, log: AscendLog) -> Iterator[Rows]:
        texts = self._tables.names.texts.texts
        for start in range(0, len(log.operators), CHUNK_ROWS):
            rows = self._named(log, start, min(start + CHUNK_ROWS, len(log.operators)))
            if len(rows["allocation_id"]):
                yield tables.blocks(rows, texts)
        for blocks in log.unattributed.chunks():
            columns = {name: blocks[name] for name in blocks.dtype.names or ()}
            columns["operator"] = np.full(len(blocks), ABSENT)
            columns["step"] = self._step_of(np.where(blocks["is_older"], UNKNOWN, blocks["allocated_ns"]))
            yield tables.blocks(columns, texts)

    def _named(self, log: AscendLog, start: int, stop: int) -> dict[str, Array]:
        """Columns of the blocks with an operator, of a slice of their rows."""
        rows, places = log.operators.spool.read(start, stop), np.arange(start, stop)
        is_older = (rows["allocated_ns"] == UNKNOWN) | (rows["size"] < 0)
        named = log.named
        requested, freed = named.requested_seq[places], named.freed_seq[places]
        kept = np.where(
            is_older, (requested != ABSENT) | (freed != ABSENT), named.allocated_seq[places] != ABSENT
        )
        at = np.flatnonzero(kept)
        rows, places, is_older = rows[at], places[at], is_older[at]
        requested, freed = requested[at], freed[at]
        released = np.where(
            rows["size"] < 0, _first(rows["released_ns"], rows["allocated_ns"]), rows["released_ns"]
        )
        in_one = requested == ABSENT
        return {
            "allocation_id": named.ids(places, is_older),
            "size": np.abs(rows["size"]),
            "stream": rows["stream"],
            "component": named.component[places],
            "device": rows["device"],
            "operator": rows["name"],
            "is_older": is_older,
            "allocated_ns": np.where(is_older, UNKNOWN, rows["allocated_ns"]),
            "step": self._step_of(np.where(is_older, UNKNOWN, rows["allocated_ns"])),
            "free_requested_ns": np.where(in_one, UNKNOWN, released),
            "free_requested_seq": np.where(in_one, UNKNOWN, requested),
            "freed_ns": np.where(freed == ABSENT, UNKNOWN, _first(rows["active_released_ns"], released)),
            "freed_seq": np.where(freed == ABSENT, UNKNOWN, freed),
        }

    def _step_of(self, time_ns: Array) -> Array:
        """The step that each time lies in; a step begins where the one before ended."""
        ends = np.array([step.ended_ns for step in self._steps], np.int64)
        numbers = np.array([*(step.number for step in self._steps), UNKNOWN], np.int64)
        found: Array = np.where(time_ns == UNKNOWN, UNKNOWN, numbers[np.searchsorted(ends, time_ns, "left")])
        return found

    def _devices(self) -> list[dict[str, Any]]:
        titles = self._tables.device_titles()
        devices = self._tables.names.devices.texts
        return [{"device": device, "name": titles.get(device), "source": self._kind} for device in devices]


def _closing_of(log: AscendLog, remarks: Sequence[str]) -> Closing:
    """The closing, at the log's end."""
    discrepancies, unattributed = log.discrepancies, log.unattributed
    rests = unattributed.rests().values()
    older, negative = sum(max(rest, 0) for rest in rests), sum(max(-rest, 0) for rest in rests)
    found = list(remarks)
    if older:
        found.append(
            f"{older} bytes are older than the recording and are kept as one block for each component"
        )
    for count, what in (
        (unattributed.num_made, "allocations have no operator in the recording"),
        (
            discrepancies.events_without_record,
            "times of operators have no record of the totals: left out",
        ),
        (discrepancies.changes_that_differ, "changes of a total differ from the size of their block"),
        (
            discrepancies.sums_that_differ,
            f"of {discrepancies.sums} sums (PTA+GE) differ from their parts, which count",
        ),
        (negative, "bytes more were freed than were there"),
    ):
        if count:
            found.append(f"{count} {what}")
    return Closing(
        events=log.events,
        unexplained_bytes=discrepancies.unexplained_bytes - negative if log.events else None,
        complete=False,
        remarks=tuple(found),
    )


def _first(values: Array, otherwise: Array) -> Array:
    return np.where(values == UNKNOWN, otherwise, values)


def _markers(steps: Sequence[Step]) -> list[dict[str, Any]]:
    return [
        {
            "marker_id": number,
            "name": STEP_NAME.format(step.number),
            "kind": "user_scope",
            "depth": 0,
            "started_ns": step.started_ns,
            "ended_ns": step.ended_ns,
        }
        for number, step in enumerate(steps)
    ]
