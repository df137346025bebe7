"""The trainer's guard: a failure of the agent is reported once, and the part that failed is switched off.

Stage: trainer, every thread in which the agent's code runs. Comes in: an exception of ours. Goes out: one
line on stderr, and a record in the log for the answers; the training goes on unaffected. A set of hooks has a
guard of its own: it goes off alone, and the allocators' events, which it cannot harm, go on. Nothing of ours
is raised, nothing is printed twice. What a signal handler of the program raised amid a hook (a timeout by
SIGALRM) is the program's: it is raised, and the set of that hook goes off.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, TextIO

from rankmem_agent.signals import raise_of_handler
from rankmem_protos.errors import RankmemError

LINE_CHARS_MAX: Final = 600
"""A compiler's whole output in every rank's log would bury the training's own."""


class PartGuard:
    """The guard of one set of hooks: its first failure is reported and switches that set off.

    Args:
        whole: the agent's guard.
        part: the name of what the set records: ``gap.what``.
        stop: switches the set off. It must not raise.
        infers: whether the meaning of blocks still follows from calls and lives without the set.
    """

    def __init__(self, whole: Guard, part: str, stop: Callable[[], None], *, infers: bool) -> None:
        self._whole = whole
        self._stop = stop
        self._has_failed = False
        self.part = part
        self.infers = infers

    def failed(self, error: Exception) -> None:
        """A hook has failed: the set goes off. Raises what is the program's own."""
        self.go_off(error)
        raise_of_handler(error)

    def go_off(self, error: Exception) -> None:
        """Reports the first failure and switches the set off."""
        if self._has_failed:
            return
        self._has_failed = True
        with contextlib.suppress(Exception):  # the failure itself is reported below
            self._stop()
        self._whole.part_failed(self, error)

    def report(self, text: str) -> None:
        """Writes one line to stderr."""
        self._whole.report(text)


class Guard:
    """Reports the first failure and switches everything off.

    Args:
        rank: for the line on stderr, where the output of all ranks meets.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        """For the lines to come: a process group may number the process anew."""
        self._pid = os.getpid()
        self._switches: list[Callable[[str], None]] = []
        self._part_switches: list[Callable[[PartGuard, str], None]] = []
        self._is_off = False
        self.failures = 0

    def when_off(self, switch: Callable[[str], None]) -> None:
        """Has ``switch`` called on the first failure, with what happened. It must not raise."""
        self._switches.append(switch)

    def when_part_off(self, switch: Callable[[PartGuard, str], None]) -> None:
        """The same for a set of hooks that is off."""
        self._part_switches.append(switch)

    def of(self, part: str, stop: Callable[[], None], *, infers: bool = True) -> PartGuard:
        """The guard of one set of hooks; see :class:`PartGuard`."""
        return PartGuard(self, part, stop, infers=infers)

    def failed(self, error: Exception) -> None:
        """Counts a failure; the first one is reported and switches the agent off."""
        self.failures += 1
        if self._is_off:
            return
        self._is_off = True
        for switch in self._switches:
            with contextlib.suppress(Exception):
                switch(happened(error))
        self.report(f"the agent is off: {described(error)}")

    def part_failed(self, part: PartGuard, error: Exception) -> None:
        """A set of hooks is off: reports it on stderr and in the log."""
        self.failures += 1
        for switch in self._part_switches:
            with contextlib.suppress(Exception):
                switch(part, happened(error))
        self.report(f"{part.part} are no longer recorded: {described(error)}")

    def report(self, text: str) -> None:
        """Writes one line to stderr; a forked child keeps silent."""
        stream = sys.stderr
        if os.getpid() != self._pid or stream is None:
            return
        line = " | ".join(part.strip() for part in text.splitlines() if part.strip())[:LINE_CHARS_MAX]
        try:
            _write(stream, f"rankmem: rank {self.rank}: {line}\n")
        except Exception as error:  # noqa: BLE001  closed, its reader gone, or any object
            raise_of_handler(error)


def _write(stream: TextIO, line: str) -> None:
    try:
        descriptor = stream.fileno() if stream is sys.__stderr__ else None
    except (OSError, ValueError):
        descriptor = None
    if descriptor is None:
        stream.write(line)
        stream.flush()
    else:  # past its buffer: what is left there would make the exit code 120
        stream.flush()
        os.write(descriptor, line.encode(stream.encoding, "backslashreplace"))


def unseen_by_modes() -> AbstractContextManager[None]:
    """While it is open, the user's ``TorchFunctionMode`` and tensor classes do not see us ask tensors."""
    import torch  # loaded, since there are modules

    context: AbstractContextManager[None] = torch._C.DisableTorchFunction()
    return context


@contextlib.contextmanager
def unseen_by_listeners() -> Iterator[None]:
    """While it is open, no operator of ours reaches a ``TorchDispatchMode`` or a profiler of the user's.

    For the few facts that cost an operator. It hides them from our own tap as well.
    """
    import torch

    undispatched = torch._C._DisableTorchDispatch()
    try:
        torch._C._autograd._enable_record_function(False)
        yield
    finally:
        torch._C._autograd._enable_record_function(True)
        del undispatched


def described(error: Exception) -> str:
    """The error and its hint."""
    if isinstance(error, RankmemError):
        return str(error)
    return f"{happened(error)} (try: rankmem doctor)"


def happened(error: Exception) -> str:
    """The error on one line."""
    text = error.message if isinstance(error, RankmemError) else f"{type(error).__name__}: {error}"
    return " | ".join(part.strip() for part in text.splitlines() if part.strip())[:LINE_CHARS_MAX]
