"""What an aggregator knows of its lake is brought up to date, and nobody waits long for a store that is away.

Stage: query, in the aggregator. In: an act that reads the store, which may take as long as the store pleases;
out: the same act in a thread of its own, which a question awaits for some seconds, and a sentence for answers
that were given without it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from concurrent.futures import TimeoutError as NotYetError
from datetime import UTC, datetime
from typing import Final

from rankmem_protos.errors import RankmemError

FRESH_S: Final = 2.0
"""What others have stored is looked for after this time, if somebody asks."""
WAIT_S: Final = 10.0
"""A question waits so long for the store; while it stays away, the next are answered from what is known."""
WORK_S: Final = 60.0
"""And so long for what this machine makes of it: views, on a host that is busy with other things."""
_LOOK_S: Final = 0.1
CLOSE_S: Final = 5.0
"""An end waits so long for what runs: DuckDB's code must not be left while a process ends."""


class Freshness:
    """Runs an act now and then, one at a time. Any thread.

    Args:
        place: of the lake, for the sentence.
        act: brings all up to date; raises RankmemError where the store fails. It calls :meth:`answered` when
            the store has answered.
    """

    def __init__(self, place: str, act: Callable[[], None]) -> None:
        self._place, self._act = place, act
        self._lock = threading.Lock()
        self._done: Future[None] | None = None
        self._answered_s: float | None = None
        self._begun_s = self._ended_s = float("-inf")
        self._known_at = self._begun_at = time.time()
        self._failure = ""

    @property
    def word(self) -> str:
        """What answers may lack, and why; empty where they lack nothing."""
        with self._lock:
            if self._is_overdue():
                reason = f"has not answered for {time.monotonic() - self._begun_s:.0f} s"
            elif self._failure:
                reason = f"cannot be read now ({self._failure})"
            else:
                return ""
            since = datetime.fromtimestamp(self._known_at, UTC).strftime("%H:%M:%S")
        return f"{self._place} {reason}: what was stored there since {since} UTC may be missing"

    def answered(self) -> None:
        """The store has; what follows is this machine's work."""
        with self._lock:
            self._answered_s = time.monotonic()

    def begin(self, *, is_due: bool) -> Future[None] | None:
        """Has the act run, if it does not, and does not wait.

        Args:
            is_due: as of :meth:`look`.

        Returns:
            The run that is under way; None where none is needed.
        """
        with self._lock:
            if self._done is None:
                if not is_due and time.monotonic() - self._ended_s < FRESH_S:
                    return None
                self._done, self._answered_s = Future(), None
                self._begun_s, self._begun_at = time.monotonic(), time.time()
                run = threading.Thread(
                    target=self._run, args=[self._done], name="rankmem-lake-refresh", daemon=True
                )
                run.start()
            return self._done

    def look(self, *, is_due: bool) -> None:
        """Has the act run, and waits for it, see :data:`WAIT_S`.

        Args:
            is_due: whether it is needed now; otherwise it runs if it has not for :data:`FRESH_S`.

        Raises:
            Exception: what the act raised, but for RankmemError, of which :attr:`word` tells.
        """
        if (done := self.begin(is_due=is_due)) is None:
            return
        while True:
            try:
                done.result(_LOOK_S)
            except NotYetError:
                with self._lock:
                    if self._done is done and self._is_overdue():
                        return
            except RankmemError:
                return
            else:
                return

    def close(self) -> None:
        """Waits for what runs, some seconds at most: a store that hangs is left. Idempotent."""
        with self._lock:
            done = self._done
        if done is not None:
            wait([done], CLOSE_S)

    def _run(self, done: Future[None]) -> None:
        error: BaseException | None = None
        try:
            self._act()
        except BaseException as exc:  # noqa: BLE001  who waits gets it
            error = exc
        with self._lock:
            self._done, self._ended_s = None, time.monotonic()
            self._failure = str(error) if error is not None else ""
            if error is None:
                self._known_at = self._begun_at
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def _is_overdue(self) -> bool:
        if self._done is None:
            return False
        if self._answered_s is not None:
            return time.monotonic() - self._answered_s > WORK_S
        return time.monotonic() - self._begun_s > WAIT_S
