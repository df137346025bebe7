"""Statements that have ended the aggregator, or may have: what its parent remembers of them.

Stage: query; one half in the parent (:class:`Blame`), the other in the aggregator (:class:`Trial`). A
statement that was alone when the process died is refused from then on. Of several, none is known to be the
cause: each is a suspect, is cleared when it runs to its end, and is refused if it is under way at a death
once more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from rankmem_aggregator.sandbox.under_way import UnderWay, fingerprint
from rankmem_protos.errors import Code, RankmemError

REFUSED_MAX: Final = 4096
"""Statements remembered, the latest: whoever may ask can send ever new ones."""


@dataclass(slots=True, kw_only=True)
class Blame:
    """What a parent knows for as long as it lives."""

    refused: dict[str, str] = field(default_factory=dict)
    """By fingerprint: what happened."""
    suspects: set[str] = field(default_factory=set)

    def died(self, under_way: Iterable[str], how: str) -> int:
        """Takes in a death; how many statements are refused for it."""
        names = list(under_way)
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
        """A suspect has run to its end."""
        self.suspects.discard(name)


def _drop_first(kept: dict[str, str] | set[str]) -> None:
    if isinstance(kept, dict):
        del kept[next(iter(kept))]
    else:
        kept.pop()


class Trial:
    """The same within the aggregator: refuses, and tells who runs.

    Args:
        under_way: where it is told.
        blame: as the parent knew it at the start.
        cleared: told a suspect that has run to its end. Any thread.
    """

    def __init__(self, under_way: UnderWay, blame: Blame, cleared: Callable[[str], None]) -> None:
        self._under_way = under_way
        self._blame = blame
        self._cleared = cleared
        self._lock = threading.Lock()

    @contextmanager
    def running(self, sql: str, parameters: Mapping[str, object]) -> Iterator[None]:
        """Within it the statement runs.

        Raises:
            RankmemError: DENIED if it has ended an aggregator before.
        """
        name = fingerprint(sql, parameters)
        how = self._blame.refused.get(name)
        if how is not None:
            raise RankmemError(
                Code.DENIED,
                f"this statement is refused, for the aggregator ended while it ran: {how}",
                "ask for less at once; it is refused until the aggregator is stopped and started anew",
            )
        with self._under_way.running(name):
            yield
        self._clear(name)

    def settled(self) -> None:
        """There is memory: those that have ended are not to blame for what comes. Any thread."""
        self._under_way.forget_ended()

    def _clear(self, name: str) -> None:
        with self._lock:
            if name not in self._blame.suspects:
                return
            self._blame.cleared(name)
        self._cleared(name)
