"""Statements that have crashed the aggregator, or may have.

Stage: query; one half in the parent (:class:`CrashedStatements`), the other in the aggregator
(:class:`StatementGuard`). A statement that was the only one running when the process died is refused from
then on. Of several, none is known to be the cause: each is a suspect, is cleared when it completes, and is
refused if it is running at the next crash.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rankmem_aggregator.sandbox.running_statements import RunningStatements, fingerprint
from rankmem_protos.errors import REFUSED, Code, RankmemError

REFUSED_MAX: Final = 4096
"""Statements remembered, the latest: clients can send new ones for ever."""


@dataclass(slots=True, kw_only=True)
class CrashedStatements:
    """What the parent remembers until it ends."""

    refused: dict[str, str] = field(default_factory=dict)
    """By fingerprint: how the aggregator ended."""
    suspects: set[str] = field(default_factory=set)

    def died(self, running: Iterable[str], how: str) -> int:
        """Records a crash; returns how many statements are refused because of it."""
        names = list(running)
        guilty = names if len(names) == 1 else [name for name in names if name in self.suspects]
        for name in guilty:
            self.refused[name] = how
            self.suspects.discard(name)
        if not guilty:
            self.suspects.update(names)
        for kept in (self.refused, self.suspects):
            while len(kept) > REFUSED_MAX:
                _drop_first(kept)
        return len(guilty)

    def cleared(self, name: str) -> None:
        """A suspect has completed."""
        self.suspects.discard(name)


def _drop_first(kept: dict[str, str] | set[str]) -> None:
    if isinstance(kept, dict):
        del kept[next(iter(kept))]
    else:
        kept.pop()


class StatementGuard:
    """The same within the aggregator: refuses statements, and records which are running.

    Args:
        running: where they are recorded.
        crashed: as the parent knew it at the start.
        cleared: called with a suspect that has completed. Any thread.
    """

    def __init__(
        self, running: RunningStatements, crashed: CrashedStatements, cleared: Callable[[str], None]
    ) -> None:
        self._running = running
        self._crashed = crashed
        self._cleared = cleared
        self._lock = threading.Lock()

    @contextmanager
    def running(self, sql: str, parameters: Mapping[str, object]) -> Iterator[None]:
        """Within it the statement counts as running.

        Raises:
            RankmemError: DENIED if it has crashed an aggregator before.
        """
        name = fingerprint(sql, parameters)
        how = self._crashed.refused.get(name)
        if how is not None:
            raise RankmemError(
                Code.DENIED,
                f"{REFUSED}: the aggregator crashed while it ran ({how})",
                "split it into smaller queries; it is refused until the aggregator is restarted by hand",
            )
        with self._running.running(name):
            yield
        self._clear(name)

    def settled(self) -> None:
        """There is memory: statements that have ended cannot cause what comes. Any thread."""
        self._running.forget_ended()

    def _clear(self, name: str) -> None:
        with self._lock:
            if name not in self._crashed.suspects:
                return
            self._crashed.cleared(name)
        self._cleared(name)
