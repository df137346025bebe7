"""What goes up and what stays: summaries go to the aggregator, rows of events stay until they are wanted.

Stage: shipper process, on the loop's thread, between encoding and the connection. In: encoded batches, what
the aggregator wants, and its replies; out: batches without rows of events, and later the messages with these.
A log is paired once: what is sent later is what was made then. It decides nothing about positions: those are
the business of the batches that went up.

Sent without being asked for: everything of a rank that ran out of memory, and of what is gone, that it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa

from rankmem_protos.arrow_wire import encode_rows
from rankmem_protos.collector_pb2 import Batch, OpenSpool, TableRows, Wanted
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import AVAILABILITY, DETAIL_TABLES, MEMORY_EVENT, OOM
from rankmem_ship.encoding import Leave
from rankmem_ship.kept_details import FOLDER_NAME, OPENING_NAME, KeptDetails
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.rows import Rows
from rankmem_ship.spool_upload import SpoolUpload

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX: Final = 8
"""Messages with rows of events that are not received yet: summaries come first."""
REOPEN_S: Final = 1.0
"""A spool that was refused for a while is opened again after this."""
_Stretch = tuple[str, int, int]
"""Spool, first and last position."""


class Edge:
    """The rows of events that stay on this host, of all spools of a session's folder.

    Args:
        session_dir: the folder.
        bytes_max: for all files together; 0: nothing more stays, and what did is sent as it is wanted.
    """

    def __init__(self, session_dir: Path, bytes_max: int) -> None:
        self._folder = session_dir / FOLDER_NAME
        self._bytes_max = bytes_max
        self._kept: dict[str, KeptDetails] = {}
        for opening in sorted(self._folder.glob(f"*/{OPENING_NAME}")):
            kept = KeptDetails(opening.parent)
            self._kept[kept.opening.spool_id] = kept
        self._in_flight: dict[int, _Stretch] = {}  # by number of the batch
        self._received: dict[int, _Stretch] = {}
        self._open: set[str] = set()  # at the aggregator, on this connection
        self._opening: dict[str, float] = {}  # asked to be open: not again before
        self._barred: dict[str, RankmemError] = {}  # nothing more is sent of these on this connection

    @property
    def is_on(self) -> bool:
        """Whether rows of events stay here, or did."""
        return self._bytes_max > 0 or bool(self._kept)

    @property
    def keeps_any(self) -> bool:
        """Whether something may still be wanted."""
        return any(kept.may_be_wanted for kept in self._kept.values())

    @property
    def error(self) -> RankmemError | None:
        """Why all that is kept is not taken on this connection; None: some of it may be."""
        barred = [self._barred.get(spool_id) for spool_id, kept in self._kept.items() if kept.may_be_wanted]
        return barred[0] if barred and all(barred) else None

    @property
    def is_sending(self) -> bool:
        """Whether something is wanted, or sent and not stored."""
        wanted = any(kept.wanted for spool_id, kept in self._kept.items() if spool_id not in self._barred)
        return bool(self._received or self._in_flight) or wanted

    @property
    def expects_reply(self) -> bool:
        """Whether the aggregator has to answer something."""
        return bool(self._in_flight) or any(spool_id not in self._open for spool_id in self._opening)

    def want_all(self) -> None:
        """Send all that is here."""
        for kept in self._kept.values():
            kept.want_all()

    def leave(self, upload: SpoolUpload) -> Leave | None:
        """What leaves rows of events of a spool here; None: nothing stays."""
        if not self._bytes_max:
            return None
        spool_id = upload.meta.spool_id
        if spool_id not in self._kept:
            opening = upload.opening_request()
            self._kept[spool_id] = KeptDetails(self._folder / upload.folder.name, opening)
        return partial(_leave, self._kept[spool_id], str(upload.meta.host.get("host_uid") or ""))

    # -- the connection --------------------------------------------------------------------------

    def disconnected(self) -> None:
        """What was sent and is not stored is sent again."""
        for spool_id, first, last in (*self._in_flight.values(), *self._received.values()):
            if spool_id in self._kept:
                self._kept[spool_id].want([(first, last)])
        self._in_flight.clear()
        self._received.clear()
        self._open.clear()
        self._opening.clear()
        self._barred.clear()

    def openings(self, uploads: Iterable[SpoolUpload], now_s: float) -> list[OpenSpool]:
        """Of spools that are delivered, which the aggregator has to know to ask for their rows."""
        active = {upload.meta.spool_id for upload in uploads}
        due = [
            spool_id
            for spool_id in self._kept
            if spool_id not in active
            and spool_id not in self._open
            and spool_id not in self._barred
            and now_s >= self._opening.get(spool_id, 0.0)
        ]
        self._opening |= {spool_id: float("inf") for spool_id in due}
        return [self._kept[spool_id].opening for spool_id in due]

    def opened(self, spool_id: str) -> None:
        """The aggregator has the spool open."""
        self._open.add(spool_id)
        self._opening.pop(spool_id, None)

    def wanted(self, wanted: Wanted) -> None:
        """The aggregator wants rows."""
        kept = self._kept.get(wanted.spool_id)
        if kept is not None:
            kept.want((stretch.sequence_first, stretch.sequence_last) for stretch in wanted.stretches)

    def next(self, stored: Mapping[str, int], number: int) -> Batch | None:
        """The next message; None: none is wanted, or enough are under way.

        Args:
            stored: by spool that is being shipped the last position stored; what lies behind it waits.
            number: of the message.
        """
        if len(self._in_flight) >= IN_FLIGHT_MAX:
            return None
        for spool_id, kept in self._kept.items():
            if spool_id not in self._barred and (spool_id in stored or spool_id in self._open):
                stretch = _next_of(kept, stored.get(spool_id))
                if stretch is not None:
                    try:
                        message = kept.message(*stretch) or _gone(kept, *stretch)
                    except OSError as exc:
                        kept.want([stretch])
                        self._bar(
                            spool_id, RankmemError(Code.UNAVAILABLE, f"cannot read {kept.folder}: {exc}")
                        )
                        continue
                    message.batch_number = number
                    self._in_flight[number] = (spool_id, *stretch)
                    return message
        return None

    def received(self, number: int) -> bool:
        """A batch is in the aggregator's memory; returns whether it was one of these."""
        stretch = self._in_flight.pop(number, None)
        if stretch is not None:
            self._received[number] = stretch
        return stretch is not None

    def acknowledged(self, number: int) -> bool:
        """A batch is stored; returns whether it was one of these."""
        stretch = self._in_flight.pop(number, None) or self._received.pop(number, None)
        if stretch is not None and stretch[0] in self._kept:
            self._kept[stretch[0]].stored(*stretch[1:])
        return stretch is not None

    def is_details(self, number: int) -> bool:
        """Whether a batch that is not stored is one of these."""
        return number in self._in_flight or number in self._received

    def refused(
        self, spool_id: str, number: int, error: RankmemError, *, is_temporary: bool, now_s: float
    ) -> bool:
        """A batch, or the opening of a spool, was refused; returns whether that is no upload's business.

        What is kept is deleted only where the aggregator has deleted the session: it may be the last copy.

        Args:
            spool_id: the spool.
            number: of the batch; 0: the opening.
            error: why.
            is_temporary: whether it may be taken later.
            now_s: by the monotonic clock.
        """
        stretch = self._in_flight.pop(number, None) or self._received.pop(number, None)
        kept = self._kept.get(spool_id)
        if kept is None or (stretch is None and spool_id not in {*self._opening, *self._open}):
            return stretch is not None
        if is_temporary:
            if stretch is not None:
                kept.want([stretch[1:]])
            self._open.discard(spool_id)
            self._opening[spool_id] = now_s + REOPEN_S
        elif error.code is not Code.NOT_FOUND:
            if stretch is not None:
                kept.want([stretch[1:]])
            self._open.discard(spool_id)
            self._opening.pop(spool_id, None)
            self._bar(spool_id, error)
        elif stretch is not None:
            logger.info("%s: they stay in %s", error, kept.folder)
            kept.refused(*stretch[1:])
            # The aggregator takes nothing more of the spool until it is opened again.
            self._open.discard(spool_id)
            self._opening[spool_id] = now_s
        else:
            logger.warning("rows of events of %s are deleted here: %s", spool_id, error)
            self._forget(spool_id)
        return True

    def _bar(self, spool_id: str, error: RankmemError) -> None:
        logger.warning("rows of events of %s stay here until the next connection: %s", spool_id, error)
        self._barred[spool_id] = error

    # -- room ------------------------------------------------------------------------------------

    def maintain(self, uploads: Iterable[SpoolUpload]) -> None:
        """Delete the oldest files beyond the room, and what is left of spools of which nothing is."""
        while self._bytes_max and sum(kept.size_bytes for kept in self._kept.values()) > self._bytes_max:
            oldest = [(path.stat().st_mtime_ns, path, kept) for path, kept in self._oldest()]
            if not oldest:
                break
            _, path, kept = min(oldest, key=lambda found: found[:2])
            logger.warning("%s is deleted for its room: rows of events in it are gone", path)
            kept.drop_file(path)
        active = {upload.meta.spool_id for upload in uploads}
        in_use = {spool_id for spool_id, _, _ in (*self._in_flight.values(), *self._received.values())}
        for spool_id in [s for s in self._kept if s not in active and s not in in_use]:
            if self._kept[spool_id].is_empty:
                self._forget(spool_id)

    def _oldest(self) -> list[tuple[Path, KeptDetails]]:
        found = [(kept.oldest_file(), kept) for kept in self._kept.values()]
        return [(path, kept) for path, kept in found if path is not None and path.exists()]

    def _forget(self, spool_id: str) -> None:
        self._kept.pop(spool_id).remove()
        self._open.discard(spool_id)
        self._opening.pop(spool_id, None)


def _next_of(kept: KeptDetails, stored: int | None) -> tuple[int, int] | None:
    """Takes the first stretch that is wanted and whose summary is stored."""
    for place, stretch in enumerate(kept.wanted):
        if stored is None or stretch[1] <= stored:
            del kept.wanted[place]
            return stretch
    return None


def _leave(kept: KeptDetails, host_uid: str, message: Batch, rows: Sequence[Rows]) -> Batch:
    """The batch without rows of events, which stay; all of it where they cannot."""
    left = [entry for entry in message.tables if entry.table in DETAIL_TABLES]
    if not left:
        return message
    events = next((data for name, data in rows if name == MEMORY_EVENT.name), None)
    where = partial(
        _availability,
        kept.opening,
        message.sequence_first,
        message.sequence_last,
        host_uid=host_uid,
        first_ns=None if events is None else events["time_ns"][0].as_py(),
        last_ns=None if events is None else events["time_ns"][-1].as_py(),
        events=0 if events is None else events.num_rows,
        size_bytes=sum(len(entry.arrow_ipc) for entry in left),
    )
    details = _batch(message, [*left, where("here")])
    try:
        kept.add(details)
    except OSError as exc:
        logger.warning("rows of events cannot stay here, and are sent: %s", exc)
        return message
    if any(entry.table == OOM.name for entry in message.tables):
        try:
            kept.want_all_for_good()
        except OSError as exc:
            logger.warning("rows of events are sent by this process alone: %s", exc)
    sent = [entry for entry in message.tables if entry.table not in DETAIL_TABLES]
    return Batch(
        spool_id=message.spool_id,
        sequence_first=message.sequence_first,
        sequence_last=message.sequence_last,
        tables=[*sent, where("host")],
        final=message.final,
    )


def _gone(kept: KeptDetails, first: int, last: int) -> Batch:
    """The message that says that a stretch is not here any more."""
    at = Batch(spool_id=kept.opening.spool_id, sequence_first=first, sequence_last=last)
    return _batch(at, [_availability(kept.opening, first, last, "gone")])


def _batch(of: Batch, tables: Sequence[TableRows]) -> Batch:
    return Batch(
        spool_id=of.spool_id,
        sequence_first=of.sequence_first,
        sequence_last=of.sequence_last,
        tables=tables,
        details=True,
    )


def _availability(opening: OpenSpool, first: int, last: int, place: str, **known: object) -> TableRows:
    row = {
        "session_id": opening.session_id,
        "attempt": opening.attempt,
        "rank": opening.rank,
        "sequence_first": first,
        "sequence_last": last,
        "place": place,
        "spool_id": opening.spool_id,
        **known,
    }
    rows: pa.RecordBatch = rows_of(AVAILABILITY.name, [row])
    return TableRows(table=AVAILABILITY.name, arrow_ipc=encode_rows(rows))
