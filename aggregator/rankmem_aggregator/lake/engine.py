"""What an engine is: it runs tasks over parts of a lake, on whatever machines.

Stage: query, in the reader's process. In: tasks; out: their answers, as they come. An engine runs a task
again whose worker died, three times; then the question fails and names the part. An answer that lacks a part
is never given.
"""

from __future__ import annotations

import abc
import importlib.util
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Protocol

import pyarrow as pa

from rankmem_aggregator.lake.kernel import Task
from rankmem_protos.errors import Code, RankmemError

RETRIES: Final = 3
"""Times that a part runs again whose worker died: more often it is the part that kills it."""
CONNECT_S: Final = 5.0
"""For a server to take a connection; one that is away mostly refuses it at once."""


class Engine(Protocol):
    """Runs tasks. One thread uses it, but for :meth:`stop` and :attr:`workers`."""

    @property
    def workers(self) -> int:
        """Tasks that run at once; connects where that has not happened yet.

        Raises:
            RankmemError: UNAVAILABLE, UNSUPPORTED: no engine, or one of another version.
        """

    def run(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, pa.Table]]:
        """The tasks with their answers, as they come. A task is taken when a worker is free, so ``tasks`` may
        depend on the answers that were given.

        Raises:
            RankmemError: what a task raised, with its part; UNAVAILABLE where workers died over one.
        """

    def stop(self) -> None:
        """Ends what runs, which raises UNAVAILABLE. Any thread; a later question works again."""

    def close(self) -> None:
        """Ends the workers; may be called twice."""


class Cluster(abc.ABC):
    """An engine of other machines: looked for at once, connected to by the first question that needs it.

    Args:
        what: its name, and that of its server, for messages.
        package: of its client, and the extra of rankmem that brings it.
        place: host and port.
        start: how it is started.

    Raises:
        RankmemError: UNAVAILABLE where nothing listens, UNSUPPORTED without the package.
    """

    def __init__(
        self, what: tuple[str, str], package: tuple[str, str], place: tuple[str, int], start: str
    ) -> None:
        check_installed(what[0], package[0], f"pip install 'rankmem[{package[1]}]'")
        self._server, self._place, self._start = what[1], place, start
        self._check_reachable()
        self._connecting = threading.Lock()
        self._client: Any = None
        self._workers = 0

    @property
    def workers(self) -> int:
        """See :class:`Engine`."""
        with self._connecting:
            if self._client is None:
                self._check_reachable()  # it may have gone since
                self._connect()
            return self._workers

    @abc.abstractmethod
    def _connect(self) -> None:
        """Connects: sets the client and how many workers there are."""

    def _check_reachable(self) -> None:
        check_reachable(self._server, *self._place, self._start)


def rows_of(task: Task, sent: tuple[Any, ...]) -> pa.Table:
    """The rows that a worker sent for a task, see ``worker.answer_bytes``.

    Raises:
        RankmemError: what the task raised there, with its part.
    """
    kind, *told = sent
    if kind == "failed":
        code, message, hint = told
        raise RankmemError(Code(code), f"{task.part}: {message}", hint)
    return pa.ipc.open_stream(told[0]).read_all()


def interrupted() -> RankmemError:
    """What a question raises that was stopped."""
    return RankmemError(Code.UNAVAILABLE, "the question was interrupted", "ask again")


def first_line(exc: BaseException) -> str:
    """What an exception of a foreign package says, without the traces that follow."""
    lines = [line.strip() for line in str(exc).splitlines() if line.strip()]
    return lines[0] if lines else type(exc).__name__


def check_installed(engine: str, package: str, install: str) -> None:
    """Looks for a package without importing it, which takes a second where no question needs it.

    Raises:
        RankmemError: UNSUPPORTED where it is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise RankmemError(Code.UNSUPPORTED, f"{engine} needs the package {package}", install)


def check_reachable(engine: str, host: str, port: int, start: str) -> None:
    """Fails at once where nothing listens: clients of clusters try for half a minute and longer.

    Args:
        engine: what is to be there, for the message.
        host: its host.
        port: its port.
        start: how it is started.

    Raises:
        RankmemError: UNAVAILABLE.
    """
    try:
        socket.create_connection((host.strip("[]"), port), timeout=CONNECT_S).close()
    except OSError as exc:
        raise RankmemError(
            Code.UNAVAILABLE,
            f"no {engine} at {host}:{port}: {exc}",
            f"{start}; or leave --engine out: one process answers, too",
        ) from exc


def portable_answer() -> Callable[[bytes], tuple[Any, ...]]:
    """``worker.answer_packed`` for workers elsewhere: sent by value, so that it can say what they lack."""

    def answer(packed: bytes) -> tuple[Any, ...]:
        try:
            from rankmem_aggregator.lake.worker import answer_packed
        except ImportError as exc:
            import socket

            where = f"the worker on {socket.gethostname()} cannot import rankmem: {exc}"
            return "failed", "unsupported", where, "pip install 'rankmem[lake]' where the workers run"
        return answer_packed(packed)

    return answer
