"""A running session, told as it is stored: server-sent events, one stream a tab.

Stage: page, in uvicorn's event loop. However many streams a session has, it is asked once a second. Messages:

- ``progress``, once a second: watermark, until_ns (ns since the session's start; the newest stored event),
  events, ranks, running, ended, ooms, lag_ns (how old the newest event is), changed_ns (what was stored since
  the message before is of this time or later; NULL: it may be of any). Its id is the watermark: a page asks
  again for what it shows when that has moved, so a stream that was lost loses nothing.
- ``rank``: a rank came or ended: attempt, rank, state. ``oom``: an allocation failed: attempt, rank, device,
  seq, time_ns, size_bytes; after a lost stream also those since its last message.
- ``end``: every rank has ended. The stream stays, more slowly: the job may be started again.
- ``lost``: the database or its aggregator does not answer now: code, message, hint.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator
from typing import Any, Final

from rankmem_aggregator.page.answering import Answering
from rankmem_aggregator.page.pool import Ticket
from rankmem_aggregator.page.reading import PageSession
from rankmem_aggregator.page.refusal import Refusal, told
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import page_text
from rankmem_protos.errors import Code, RankmemError

logger = logging.getLogger(__name__)

EVERY_S: Final = 1.0
ENDED_EVERY_S: Final = 5.0
"""Of a session whose ranks have all ended."""
STREAMS_A_CALLER: Final = 8
STREAMS_MAX: Final = 256
"""At once; half of the connections."""
UNREAD_MAX: Final = 64
"""Messages that a stream holds for a slow reader; then it ends, and the reader connects again."""
OOMS_TOLD_MAX: Final = 20
RANKS_TOLD_MAX: Final = 64
"""Of one look: a page asks for all of them anyway."""
RETRY_MS: Final = 1000
"""After which a browser opens a lost stream again."""
UNORDERED_NS: Final = 1_000_000_000
"""Threads write into a rank's log at once: an event may be so much older than one before it, by far."""
Message = tuple[str, dict[str, Any]]
_Unread = asyncio.Queue[bytes | None]


class Live:
    """The streams of all sessions."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering
        self._looks: dict[str, _Look] = {}
        self._of_caller: Counter[str] = Counter()
        self._closed = False

    def admit(self, caller: str) -> None:
        """Counts a stream; who counts one calls :meth:`leave`.

        Raises:
            RankmemError: EXHAUSTED.
        """
        if self._closed:
            raise RankmemError(Code.UNAVAILABLE, "the page is ending", "")
        if self._of_caller[caller] >= STREAMS_A_CALLER or self._of_caller.total() >= STREAMS_MAX:
            raise Refusal(
                429, Code.EXHAUSTED, "too many live views are open", "close some of the page's other tabs"
            )
        self._of_caller[caller] += 1

    def leave(self, caller: str) -> None:
        """The stream has ended."""
        self._of_caller[caller] -= 1
        if not self._of_caller[caller]:
            del self._of_caller[caller]

    async def messages(self, session_id: str, last_id: str) -> AsyncGenerator[bytes, None]:
        """A stream's messages, without end.

        Args:
            last_id: of the message that the reader had last; empty: none.
        """
        look = self._looks.get(session_id)
        if look is None:
            look = self._looks[session_id] = _Look(self._answering, session_id)
        unread: _Unread = asyncio.Queue(UNREAD_MAX)
        try:
            look.add(unread, last_id)
            yield f"retry: {RETRY_MS}\n\n".encode()
            while (message := await unread.get()) is not None:
                yield message
        finally:
            if look.remove(unread) and self._looks.get(session_id) is look:
                del self._looks[session_id]

    def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        for look in self._looks.values():
            look.close()


class _Look:
    """A session that is looked at once a second while anybody is interested."""

    def __init__(self, answering: Answering, session_id: str) -> None:
        self._answering = answering
        self._session_id = session_id
        self._streams: dict[_Unread, str] = {}
        """With the id of the last message that its reader had."""
        self._watermark = ""
        self._row: dict[str, Any] = {}
        self._asked_s = 0.0
        self._ranks: dict[tuple[int, int], str] | None = None
        self._untils: dict[tuple[int, int, str], int | None] = {}
        """The newest stored event of each rank, and the newest sample of its process."""
        self._changed_ns: int | None = None
        self._ooms: list[dict[str, Any]] = []
        """The latest, the oldest first."""
        self._progress: Message | None = None
        self._ended = False
        self._task: asyncio.Task[None] | None = None

    def add(self, unread: _Unread, last_id: str) -> None:
        """A stream begins: what it missed, then what is known."""
        self._streams[unread] = last_id
        if self._progress is not None:
            self._greet(unread)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._follow())

    def remove(self, unread: _Unread) -> bool:
        """A stream has ended; true if nobody is left."""
        self._streams.pop(unread, None)
        if not self._streams and self._task is not None:
            self._task.cancel()
        return not self._streams

    def close(self) -> None:
        """Ends the streams."""
        if self._task is not None:
            self._task.cancel()
        for unread in self._streams:
            _end(unread)

    async def _follow(self) -> None:
        while True:
            began_s = time.monotonic()
            greeted = set(self._streams) if self._progress is not None else set()
            try:
                changes = await self._changes()
            except RankmemError as exc:
                self._tell([("lost", told(exc))], set(self._streams))
                if exc.code is Code.NOT_FOUND:
                    self.close()  # readers that ask again are told so
                    return
            except Exception:
                logger.exception("a stream of session %s failed", self._session_id)
                error = RankmemError(
                    Code.INTERNAL,
                    "the stream failed by a defect of rankmem",
                    "see the page's log; please report it",
                )
                self._tell([("lost", told(error))], set(self._streams))
            else:
                self._tell(changes, greeted)
                for unread in [each for each in self._streams if each not in greeted]:
                    self._greet(unread)
            every_s = ENDED_EVERY_S if self._ended else EVERY_S
            await asyncio.sleep(max(EVERY_S / 4, every_s - (time.monotonic() - began_s)))

    async def _changes(self) -> list[Message]:
        """Looks once; the messages for who has had all before."""
        state = await self._answering.state(self._session_id, fresh_s=EVERY_S / 2)
        messages: list[Message] = []
        if state.watermark != self._watermark:
            ooms_known = self._row.get("num_ooms")

            def ask(ticket: Ticket) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
                with self._answering.pool.reader(ticket) as queries:
                    return _ask(queries, self._session_id, ooms_known)

            key = ("live", self._session_id, state.watermark)
            asked_s = time.monotonic()
            self._row, ranks, ooms = await self._answering.computed(key, ask)
            self._changed_ns = self._changed_since(ranks, moved_from=self._watermark, to=state.watermark)
            messages += self._rank_changes(ranks)
            messages += self._oom_changes(ooms, state)
            self._watermark, self._asked_s = state.watermark, asked_s
        self._progress = ("progress", self._progress_of(state))
        messages.append(self._progress)
        if state.ended and not self._ended:
            messages.append(("end", {}))
        self._ended = state.ended
        return messages

    def _progress_of(self, state: PageSession) -> dict[str, Any]:
        row = self._row
        events_ns = [
            each for (*_, name), each in self._untils.items() if name == "until_ns" and each is not None
        ]
        until_ns = max(events_ns, default=row["stored_ns"])
        changed_ns = self._changed_ns
        since_ns = int((time.monotonic() - self._asked_s) * 1e9)
        return {
            "watermark": state.watermark,
            "until_ns": None if until_ns is None else until_ns - state.origin_ns,
            "events": row["events"],
            "ranks": row["num_ranks"],
            "running": row["num_running"],
            "ended": state.ended,
            "ooms": row["num_ooms"],
            "lag_ns": None if until_ns is None else max(0, row["now_ns"] - until_ns) + since_ns,
            "changed_ns": None if changed_ns is None else changed_ns - state.origin_ns,
        }

    def _changed_since(self, ranks: list[dict[str, Any]], *, moved_from: str, to: str) -> int | None:
        """The earliest that what is stored since the last look can be of: the newest event or sample known
        then of a rank that has newer ones now. None where times themselves moved, or a rank is new, was
        silent or is over: its end may be older."""
        before = self._untils
        self._untils = {
            (row["attempt"], row["rank"], name): row[name]
            for row in ranks
            for name in ("until_ns", "sampled_ns")
        }
        is_over = self._ranks != {(row["attempt"], row["rank"]): row["state"] for row in ranks}
        if is_over or before.keys() != self._untils.keys() or _offsets_in(moved_from) != _offsets_in(to):
            return None
        moved = [before[who] for who, until_ns in self._untils.items() if until_ns != before[who]]
        if not moved or None in moved:
            return None
        return min(each for each in moved if each is not None) - UNORDERED_NS

    def _rank_changes(self, rows: list[dict[str, Any]]) -> list[Message]:
        known, self._ranks = self._ranks, {(row["attempt"], row["rank"]): row["state"] for row in rows}
        if known is None:
            return []
        changed = [(who, state) for who, state in self._ranks.items() if known.get(who) != state]
        return [
            ("rank", {"attempt": attempt, "rank": rank, "state": state})
            for (attempt, rank), state in changed[:RANKS_TOLD_MAX]
        ]

    def _oom_changes(self, rows: list[dict[str, Any]], state: PageSession) -> list[Message]:
        told_before = {_identity(row) for row in self._ooms}
        is_first = self._progress is None
        found = [{**row, "time_ns": row["time_ns"] - state.origin_ns} for row in reversed(rows)]
        new = [row for row in found if _identity(row) not in told_before]
        self._ooms = [*self._ooms, *new][-OOMS_TOLD_MAX:]
        return [] if is_first else [("oom", row) for row in new]

    def _greet(self, unread: _Unread) -> None:
        """What a stream missed since its last message, and how things are."""
        missed = self._row["num_ooms"] - _ooms_in(self._streams[unread], self._row["num_ooms"])
        messages: list[Message] = [("oom", row) for row in self._ooms[-missed:]] if missed > 0 else []
        assert self._progress is not None
        messages.append(self._progress)
        if self._ended:
            messages.append(("end", {}))
        self._tell(messages, {unread})

    def _tell(self, messages: list[Message], streams: set[_Unread]) -> None:
        for name, data in messages:
            mark = f"id: {self._watermark}\n" if name == "progress" else ""
            message = f"{mark}event: {name}\ndata: {json.dumps(data)}\n\n".encode()
            for unread in streams & self._streams.keys():
                if unread.full():
                    _end(unread)
                    del self._streams[unread]
                else:
                    unread.put_nowait(message)


def _ask(
    queries: Queries, session_id: str, ooms_known: int | None
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    row = queries.sql(page_text("live_state"), {"session": session_id}).to_pylist()[0]
    ranks = queries.sql(page_text("live_ranks"), {"session": session_id}).to_pylist()
    ooms: list[dict[str, Any]] = []
    if row["num_ooms"] and row["num_ooms"] != ooms_known:
        given: dict[str, Value] = {"session": session_id, "at_most": OOMS_TOLD_MAX}
        ooms = queries.sql(page_text("live_ooms"), given).to_pylist()
    return row, ranks, ooms


def _identity(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["attempt"], row["rank"], row["seq"]


def _ooms_in(watermark: str, otherwise: int) -> int:
    """The failed allocations that a watermark of ``session_state.sql`` counts."""
    parts = watermark.split("-", 9)
    count = parts[7] if len(parts) == 10 else ""
    return int(count) if count.isascii() and count.isdigit() and len(count) < 10 else otherwise


def _offsets_in(watermark: str) -> str:
    """The clocks' offsets that it was made with: its last part."""
    return watermark.split("-", 9)[-1]


def _end(unread: _Unread) -> None:
    """Ends a stream, also one whose reader has not read."""
    while unread.full():
        unread.get_nowait()
    unread.put_nowait(None)
