"""Pairing: the records of one spool in, rows of the database's tables out, batch by batch.

Stage: pairing, between spool reader and wire. In: chunks of committed records and gaps, in log order. Out:
Arrow record batches. A pure state machine in the shipper process, on its loop's thread; it reads no
clock, no file and no environment. The rows of a batch are a function of the log up to its last record and
of where the batch before ended (see docs/internals.md, "Exactly once"). Four things ride along that are
not, all of them harmless when sent twice: the clock's estimate in rank_info, frames of stacks, and when and
how the process ended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from rankmem_agent.spool.exits import Exit
from rankmem_agent.spool.layout import Kind
from rankmem_agent.spool.meta import SpoolMeta
from rankmem_protos.tables import BUCKET_RECORDS
from rankmem_ship.pairing.batch import Batch, advance
from rankmem_ship.pairing.categories import resolve
from rankmem_ship.pairing.categories_templates import with_categories
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.detail import at_detail
from rankmem_ship.pairing.rank_columns import RankColumns
from rankmem_ship.pairing.rows import RowMaker, Rows
from rankmem_ship.pairing.stacks import Stacks
from rankmem_ship.pairing.state import Array, PairingState, joined
from rankmem_ship.pairing.texts import Texts
from rankmem_ship.pairing.upserts import (
    ClockEstimate,
    Ended,
    device_rows,
    host_row,
    merged_notes,
    rank_row,
    session_row,
)
from rankmem_ship.spool_reader.reader import Chunk, Gap
from rankmem_ship.spool_reader.segments import RECORD_DTYPE
from rankmem_ship.spool_reader.string_table import StringTable

RANK_INFO_NS = 2_000_000_000
"""rank_info's counts are sent again after this much of the log's own time."""


class Pairing:
    """The state machine of one spool.

    Args:
        meta: the spool's facts.
        strings: its strings, polled by the reader.
        state: where to go on from; default: the log's start.
        bucket_records: positions of the log in a row of memory_bucket.
    """

    def __init__(
        self,
        meta: SpoolMeta,
        strings: StringTable,
        state: PairingState | None = None,
        *,
        bucket_records: int = BUCKET_RECORDS,
    ) -> None:
        self.state = state or PairingState()
        self._parts: list[Chunk | Gap] = []
        self._meta = meta
        self._strings = strings
        self._stacks = Stacks(strings, meta.project_root, meta.privacy)
        self._texts = Texts(strings)
        whose = RankColumns(session_id=meta.session_id, attempt=meta.attempt, rank=meta.rank, strings=strings)
        observes = "operators" not in str(meta.rank_row.get("not_recorded") or "").split(",")
        self._rows = RowMaker(
            whose=whose,
            stacks=self._stacks,
            bucket_records=bucket_records,
            observes=observes if meta.infers else None,
        )

    def feed(self, part: Chunk | Gap) -> None:
        """Take what comes next in the log; its rows come with the next cut."""
        self._parts.append(part)

    def cut(
        self,
        *,
        final: bool = False,
        ended_ns: int | None = None,
        clock: ClockEstimate | None = None,
        exited: Exit | None = None,
        wrote_end: bool = False,
    ) -> list[Rows]:
        """The rows of what was fed since the last cut, as (table, record batch).

        Args:
            final: the log ends after them: everything that waits goes out, and the rank has ended.
            ended_ns: host time of the process's end where known better than by its last record.
            clock: the host's clock against the aggregator's, if it was measured.
            exited: how the process ended, where known.
            wrote_end: by its control page it wrote END, whether or not that record is here.
        """
        parts, self._parts = self._parts, []
        records, seq = _joined([part for part in parts if isinstance(part, Chunk)])
        before = at_detail(self.state, records, seq)
        gaps = tuple(part for part in parts if isinstance(part, Gap))
        base_ns = self._meta.realtime_ns - self._meta.monotonic_ns
        after, batch = advance(
            before, records, seq, gaps, texts=self._texts, fallback_base_ns=base_ns, final=final
        )
        infers = self._meta.infers and after.infers and not after.is_reduced
        resolved = resolve(before, batch, after.devices, self._texts, infers=infers)
        self.state = dataclasses.replace(
            after,
            categories=resolved.known,
            tags=resolved.tags,
            lines=resolved.lines,
            templates=with_categories(after, batch, resolved.initial, resolved.changes),
        )
        end = max(self.state.last_ns, ended_ns or 0) if final else None
        rows = self._rows.rows(batch, resolved, self.state.devices)
        rows += self._new_stacks(batch)
        ended = None if end is None else Ended(at_ns=end, exited=exited, wrote_end=wrote_end)
        late = self._comes_late() if ended is not None and not (self.state.saw_end or wrote_end) else None
        if ended is not None and late is not None:
            rows = self._without_the_last(rows, batch, ended, late)
            self.state = dataclasses.replace(self.state, is_off=True)
        rows += self._upserts(before, batch, clock, ended)
        return rows

    def forget_sent(self, num_missing: int = 0) -> None:
        """Resend all that lives, the stacks, the model and the rank: to another database.

        Args:
            num_missing: records that it lacks: their events no longer count as stored.
        """
        live = self.state.live.copy()
        live["sent"] = False
        live["sent_free_requested"] = False
        modules, weights = self.state.modules.copy(), self.state.weights.copy()
        modules["sent"] = weights["sent"] = False
        self.state = dataclasses.replace(
            self.state,
            live=live,
            modules=modules,
            weights=weights,
            stacks_sent=np.zeros(0, np.bool_),
            rank_sent_ns=-1,
            num_events=max(0, self.state.num_events - num_missing),
        )

    def _comes_late(self) -> str | None:
        """Why events come to this log some time after they happened; None: they do not."""
        why = merged_notes(self.state.notes, self._strings).get("late")
        return why if isinstance(why, str) else None

    def _without_the_last(self, rows: list[Rows], batch: Batch, ended: Ended, late: str) -> list[Rows]:
        """The rows with the gap of a log whose events come late, and which has no END."""
        place = int(batch.seq[-1]) if len(batch.seq) else max(self.state.last_outside_seq, 0)
        gap = {
            "session_id": self._meta.session_id,
            "attempt": self._meta.attempt,
            "rank": self._meta.rank,
            "sequence_first": place,
            "sequence_last": place,
            "records": 0,
            "why": "never_read",
            "noticed_ns": ended.at_ns,
            "detail": late,
            "to_end": True,
        }
        gaps = [each for table, each in rows if table == "gap"]
        others = [(table, each) for table, each in rows if table != "gap"]
        return [*others, ("gap", pa.concat_batches([*gaps, rows_of("gap", [gap])]))]

    def _new_stacks(self, batch: Batch) -> list[Rows]:
        """Frames of the stacks that this batch names first."""
        calls = batch.calls_due
        named = np.concatenate(
            [
                *(batch.records_due[column] for column in ("stack", "forward_stack")),
                batch.calls.stack[calls],
                batch.attribution.forward_stack[calls],
                batch.weights_due["stack"],
                batch.points.stack,
            ]
        )
        if not len(named):
            return []
        sent = np.zeros(max(int(named.max()) + 1, len(self.state.stacks_sent)), np.bool_)
        sent[: len(self.state.stacks_sent)] = self.state.stacks_sent
        new = np.unique(named[~sent[named]])
        new = new[new != 0]
        if not len(new):
            return []
        sent[new] = True
        self.state = dataclasses.replace(self.state, stacks_sent=sent)
        return [("stack_frame", self._stacks.rows(new))]

    def _upserts(
        self, before: PairingState, batch: Batch, clock: ClockEstimate | None, ended: Ended | None
    ) -> list[Rows]:
        """The keyed rows that are due: at first, at the end, when a fact came, and now and then."""
        state = self.state
        first = before.rank_sent_ns < 0
        fact = first or batch.final or state.notes != before.notes
        end_ns = None if ended is None else ended.at_ns
        rows: list[Rows] = []
        hole = batch.gaps or len(batch.losses) or len(batch.offs)
        if fact or clock or hole or state.last_ns - before.rank_sent_ns >= RANK_INFO_NS:
            notes = merged_notes(state.notes, self._strings)
            rows.append(
                ("rank_info", rows_of("rank_info", [rank_row(self._meta, notes, state, clock, ended)]))
            )
            self.state = dataclasses.replace(state, rank_sent_ns=max(state.last_ns, 0))
            if fact:
                rows.append(("session", rows_of("session", [session_row(self._meta, notes, end_ns)])))
                rows.append(("host_info", rows_of("host_info", [host_row(self._meta, notes)])))
        describes_device = bool((batch.records["kind"] == Kind.DEVICE).any())
        if len(state.devices) and (first or describes_device or len(state.devices) > len(before.devices)):
            devices = device_rows(self._meta, state.devices, self._strings)
            rows.append(("device_info", rows_of("device_info", devices)))
        return rows


def _joined(chunks: Sequence[Chunk]) -> tuple[Array, Array]:
    if not chunks:
        return np.zeros(0, RECORD_DTYPE), np.zeros(0, np.int64)
    seq = [np.arange(c.sequence_first, c.sequence_last + 1, dtype=np.int64) for c in chunks]
    return joined([c.records for c in chunks]), np.concatenate(seq)


def table_of(rows: Sequence[Rows], table: str) -> pa.Table | None:
    """The rows of one table among a batch's; None if it has none."""
    for name, batch in rows:
        if name == table:
            return pa.Table.from_batches([batch])
    return None
