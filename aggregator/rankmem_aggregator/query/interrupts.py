"""An interrupt of a reader's statements that is neither lost nor hits what is asked later.

Stage: query, in the reader's process: one thread asks, any other may interrupt. An interrupt holds until
:meth:`Interrupts.allow`: it ends the statement that runs, also one that is just about to start, and refuses
those that follow. DuckDB forgets an interrupt that arrives before its statement has begun (2.0), so it is
repeated until the statement has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rankmem_protos.errors import Code, RankmemError

REPEAT_S: Final = 0.02
"""Between two interrupts of the same statement."""


class Interrupts:
    """The statements under way of one reader, and whether they were interrupted."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._ends: dict[int, Callable[[], None]] = {}
        """What ends each statement under way."""
        self._number = 0
        self._interrupted = False
        self._repeats = False

    @contextmanager
    def running(self, end: Callable[[], None]) -> Iterator[None]:
        """Within it a statement runs, which ``end`` ends; after it ``end`` is not called any more.

        Raises:
            RankmemError: UNAVAILABLE where it was interrupted before.
        """
        with self._changed:
            self.check()
            self._number += 1
            mine = self._number
            self._ends[mine] = end
        try:
            yield
        finally:
            with self._changed:
                del self._ends[mine]
                self._changed.notify_all()

    def check(self) -> None:
        """Raises UNAVAILABLE after an interrupt."""
        if self._interrupted:
            raise RankmemError(Code.UNAVAILABLE, "the question was interrupted", "ask again")

    def interrupt(self) -> None:
        """Ends what runs, and all that follows until :meth:`allow`. Any thread; does not wait."""
        with self._changed:
            self._interrupted = True
            self._end_all()
            if self._ends and not self._repeats:
                self._repeats = True
                threading.Thread(target=self._repeat, name="rankmem-interrupt", daemon=True).start()

    def allow(self) -> None:
        """Lets statements run again. The thread that asks."""
        with self._changed:
            self._interrupted = False

    def _end_all(self) -> None:
        for end in list(self._ends.values()):  # Python may collect, and so end, a forgotten stream meanwhile
            end()

    def _repeat(self) -> None:
        with self._changed:
            while self._ends and self._interrupted:
                self._changed.wait(REPEAT_S)
                if self._interrupted:
                    self._end_all()
            self._repeats = False
