"""An engine that several readers of a process share: their questions have its workers one after the other.

Stage: query, in the reader's process. A page has some readers, each for one request at a time; with an engine
of its own each would bring its own workers, of which every one counts on its share of the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from rankmem_aggregator.lake.engine import Engine, interrupted
from rankmem_aggregator.lake.kernel import Task

LOOK_S: Final = 0.1
"""A question that waits for another's end looks so often whether it was given up."""


class SharedEngine:
    """Lends an engine.

    Args:
        engine: closed with this.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.turn = threading.Lock()

    def share(self) -> Engine:
        """The engine for one more reader, which may be closed by itself."""
        return _Share(self)

    def workers(self) -> int:
        """Tasks that the engine runs at once; connects, and raises, as :attr:`Engine.workers`. Any thread."""
        return self.engine.workers

    def close(self) -> None:
        """Ends the workers; may be called twice."""
        self.engine.close()


class _Share:
    def __init__(self, shared: SharedEngine) -> None:
        self._shared = shared
        self._stopped = threading.Event()
        self._runs = False

    @property
    def workers(self) -> int:
        """See :class:`Engine`."""
        return self._shared.workers()

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, pa.Table]]:
        """See :class:`Engine`."""
        self._stopped.clear()
        while not self._shared.turn.acquire(timeout=LOOK_S):
            if self._stopped.is_set():
                raise interrupted()
        try:
            self._runs = True
            if self._stopped.is_set():
                raise interrupted()
            yield from self._shared.engine.run(tasks)
        finally:
            self._runs = False
            self._shared.turn.release()

    def stop(self) -> None:
        """See :class:`Engine`. What another reader runs goes on."""
        self._stopped.set()
        if self._runs:
            self._shared.engine.stop()

    def close(self) -> None:
        """Nothing: others use it."""
