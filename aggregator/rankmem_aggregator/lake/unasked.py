"""What is brought from hosts without being asked for: the stretches that can hold a job's peak.

Stage: ingest, in an aggregator that writes a lake; a thread of its own. In: the sessions of which shippers
keep rows of events, and what is known of them; out: requests to these shippers. Of a session that is over
everything that is needed, as far as its bytes allow; of one that runs now and then. It answers nothing and
decides nothing: what it brings makes ``job_peak`` exact, and what it does not bring leaves an interval.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from rankmem_aggregator.query.fetching import fetch_peak
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.sandbox.client_queries import ClientQueries
from rankmem_aggregator.sql import query_text
from rankmem_protos.collector_pb2 import Stretch, Wanted
from rankmem_protos.errors import RankmemError

logger = logging.getLogger(__name__)

LOOK_S: Final = 5.0
"""For sessions that have ended since."""
RUNNING_S: Final = 600.0
"""Between two searches of a session: while it runs its peak may rise, and events are not sent for nothing."""
FETCH_S: Final = 60.0
"""Longest for one session; then others have their turn."""
AGAIN_S: Final = 60.0
"""Until a session is looked at again that had nothing yet, or of which not all came."""


@dataclass(slots=True)
class _Session:
    room_bytes: int
    due_s: float
    """By the monotonic clock: it is looked at then, and once it has no rank here that is alive."""
    was_alive: bool


class PeakBringer:
    """Brings them.

    Args:
        queries: of the aggregator.
        keeping: the session of each spool of which a connected shipper may keep rows of events.
        alive: the sessions with ranks that are alive here.
        want: asks the shippers for rows; False where no one has them.
        bytes_max: of a session; 0: nothing is brought.
        died: stops the service; called from the thread.
    """

    def __init__(
        self,
        queries: ClientQueries,
        keeping: Callable[[], Mapping[str, str]],
        alive: Callable[[], Collection[str]],
        want: Callable[[Wanted], bool],
        *,
        bytes_max: int,
        died: Callable[[BaseException], None],
    ) -> None:
        self._queries, self._keeping, self._alive, self._want = queries, keeping, alive, want
        self._bytes_max, self._died = bytes_max, died
        self._sessions: dict[str, _Session] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankmem-peak-bringer", daemon=True)

    def start(self) -> None:
        """Starts the thread, if it has anything to do."""
        if self._bytes_max:
            self._thread.start()

    def stop(self) -> None:
        """Brings nothing more. Any thread."""
        self._stop.set()

    def close(self) -> None:
        """Waits until the thread has ended. Idempotent."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()

    def sql(self, text: str, parameters: Parameters) -> pa.Table:
        """The answer of a statement of ours."""
        return pa.Table.from_batches(self._queries.run(text, parameters))

    def fetch(self, spool_id: str, ranges: Sequence[tuple[int, int]]) -> bool:
        """Asks the shipper of a spool for stretches; False where none is connected."""
        stretches = [Stretch(sequence_first=first, sequence_last=last) for first, last in ranges]
        return self._want(Wanted(spool_id=spool_id, stretches=stretches))

    def _run(self) -> None:
        try:
            while not self._stop.wait(LOOK_S):
                self._look_at_all()
        except BaseException as exc:  # noqa: BLE001  the service stops
            self._died(exc)

    def _look_at_all(self) -> None:
        now_s, alive, present = time.monotonic(), self._alive(), set(self._keeping().values())
        self._sessions = {name: known for name, known in self._sessions.items() if name in present}
        for session_id in sorted(present):
            is_alive = session_id in alive
            known = self._sessions.setdefault(
                session_id, _Session(self._bytes_max, now_s + RUNNING_S * is_alive, is_alive)
            )
            if (known.was_alive and not is_alive) or now_s >= known.due_s:
                known.due_s = now_s + RUNNING_S
                self._search(session_id, known, is_alive)
            known.was_alive = is_alive
            if self._stop.is_set():
                return

    def _search(self, session_id: str, known: _Session, is_alive: bool) -> None:
        try:
            given = {"session": session_id, "ranks": None, "from_ns": None, "until_ns": None}
            if not self.sql(query_text("stretches_missing"), given).num_rows:
                known.due_s = time.monotonic() + AGAIN_S  # its first batches may not have come
                return
            found = fetch_peak(
                self, session_id, timeout_s=FETCH_S, bytes_max=known.room_bytes, stop=self._stop
            )
        except RankmemError as exc:
            # The store is away, or it is more than a statement may take: not again at once.
            logger.info("the peak of session %s is not looked for now: %s", session_id, exc)
            return
        known.room_bytes -= found.size_bytes
        if found.came:
            logger.info("session %s: %d stretches that can hold its peak came", session_id, found.came)
        if found.waiting and not is_alive:
            known.due_s = time.monotonic() + AGAIN_S
