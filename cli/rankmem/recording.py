"""``with rankmem.record():`` in a notebook or a plain Python process, and ``rankmem.peak()`` after it.

Stage: the user's process; around the trainer's own stages, as ``rankmem run`` is around a command. In: a
block of the user's code. Out: a session in a database, and a :class:`Recording` that finds it. The aggregator
and the shipper are processes of their own, started and ended here; this one loads neither DuckDB nor gRPC nor
Arrow before :func:`peak` is called.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_agent.preload.launch import environment
from rankmem_agent.preload.part import RecordedPart
from rankmem_agent.preload.rank_detection import ranked
from rankmem_agent.session_ids import make_session_id
from rankmem_agent.spool import election, folder
from rankmem_agent.spool.process_stat import process_is_alive, process_start_ticks
from rankmem_protos.credentials import CLIENT_VARIABLES
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem.peak_view import PeakView

DRAIN_S_DEFAULT: Final = 60.0
"""A user waits for the cell to end; what is not delivered by then stays on disk, and a warning says so."""
_LEAVE_S: Final = 5.0
"""For a shipper that has delivered everything to end, and for one that is told to."""
_COMES_S: Final = 20.0
"""For one that has only begun to say which process it is: its imports take half a second where none waits."""
_POLL_S: Final = 0.02
_VARIABLES: Final = ("RANKMEM_SESSION", "RANKMEM_AGGREGATOR", "RANKMEM_DRAIN_S", "RANKMEM_NAME")


@dataclass(slots=True, kw_only=True)
class Recording:
    """What a ``with rankmem.record()`` has recorded, or is recording."""

    session_id: str
    target: str
    """A database's path, or HOST:PORT of an aggregator: for ``rankmem.connect``."""
    saw_torch_begin: bool
    """Torch was imported within the block: there is no older memory of tensors."""
    is_over: bool = False
    is_delivered: bool = False
    """Everything that was recorded is stored."""
    has_log: bool = False
    """Something was recorded: torch was imported."""
    _keeps: list[object] = field(default_factory=list, repr=False)
    """The temporary folder, removed with this object."""


_last: Recording | None = None


@contextmanager
def record(
    db: str | os.PathLike[str] | None = None,
    *,
    aggregator: str | None = None,
    name: str | None = None,
    drain_s: float = DRAIN_S_DEFAULT,
) -> Iterator[Recording]:
    """Records this process while the block runs; once in a process's life.

    The end of the block ends the recording, waits until it is stored, and leaves no process behind.
    Memory that was allocated before is not in the figures of cpu, and is ``preexisting`` on cuda. Processes
    that the block starts are not recorded: for those, ``rankmem run``.

    Args:
        db: the database, made where there is none; None: a temporary one, removed with the Recording or as
            this process ends.
        aggregator: HOST:PORT of a running aggregator in place of a database.
        name: of the session; default: the notebook's or the script's.
        drain_s: longest wait at the end for the last acknowledgement, in seconds.

    Raises:
        RankmemError: CONFLICT where this process is or was recorded, or another process holds the database;
            INVALID where a launcher made it one of several ranks; UNSUPPORTED where it cannot be recorded.
    """
    global _last
    _check_alone()
    if db is not None and aggregator is not None:
        raise RankmemError(Code.INVALID, f"both db={db} and aggregator={aggregator} are given", "give one")
    recording = Recording(
        session_id=make_session_id(),
        target=aggregator or "",
        saw_torch_begin="torch" not in sys.modules,
    )
    with ExitStack() as opened:
        address = aggregator or opened.enter_context(_embedded(recording, db))
        made = environment(
            {},
            session_id=recording.session_id,
            aggregator=address,
            name=name or _default_name(),
            drain_s=drain_s,
        )
        # Credentials are for another aggregator than our own.
        without = () if aggregator else CLIENT_VARIABLES
        part = RecordedPart(
            {**dict.fromkeys(without), **{key: made[key] for key in _VARIABLES if key in made}}
        )
        part.begin()
        _last = recording
        try:
            yield recording
        finally:
            session_dir = part.end()
            recording.is_over, recording.has_log = True, session_dir is not None
            recording.is_delivered = session_dir is None or _hand_over(session_dir)


def peak(recording: Recording | None = None) -> PeakView:
    """The peak of a recording and what held it: a table and a curve in a notebook's cell, else text.

    Args:
        recording: default: the last one of this process.

    Raises:
        RankmemError: NOT_FOUND where nothing was recorded, CONFLICT while the block still runs.
    """
    recording = recording or _last
    if recording is None:
        raise RankmemError(
            Code.NOT_FOUND, "nothing was recorded in this process", "with rankmem.record(): ..."
        )
    if not recording.is_over:
        raise RankmemError(Code.CONFLICT, "the recording still goes on", "ask after the with block")
    if not recording.has_log:
        raise RankmemError(
            Code.NOT_FOUND, "nothing was recorded: torch was not imported", "train within rankmem.record()"
        )
    from rankmem.peak_view import PeakView

    return PeakView.of(recording.target, recording.session_id, sees_all=recording.saw_torch_begin)


def _check_alone() -> None:
    launched = ranked(os.environ)
    if launched is not None and launched.world_size > 1:
        raise RankmemError(
            Code.INVALID,
            f"this process is rank {launched.rank} of {launched.world_size}; record() records one process",
            "rankmem run -- and the command that started it",
        )


@contextmanager
def _embedded(recording: Recording, db: str | os.PathLike[str] | None) -> Iterator[str]:
    """The address of an aggregator of our own, which lives as long as the block."""
    from rankmem_aggregator.config import AggregatorConfig
    from rankmem_aggregator.supervision.supervisor import Supervisor

    path = Path(db).absolute() if db is not None else _temporary(recording) / "rankmem.duckdb"
    recording.target = str(path)
    supervisor = Supervisor(
        AggregatorConfig.embedded(path),
        is_embedded=True,
        niceness=election.NICENESS,
        report=lambda text: print(f"rankmem: {text}", file=sys.stderr),
    )
    with supervisor:
        yield supervisor.address


def _temporary(recording: Recording) -> Path:
    path = tempfile.mkdtemp(prefix="rankmem-")
    weakref.finalize(_kept_by(recording), shutil.rmtree, path, ignore_errors=True)
    return Path(path)


class _Kept:
    """Lives as long as a Recording does."""


def _kept_by(recording: Recording) -> _Kept:
    kept = _Kept()
    recording._keeps.append(kept)
    return kept


def _default_name() -> str | None:
    """The notebook's file where the server says it (``JPY_SESSION_NAME``); None: the script's name."""
    notebook = os.environ.get("JPY_SESSION_NAME")
    if notebook:
        return os.path.basename(notebook)
    return "notebook" if "ipykernel" in sys.modules else None


def _hand_over(session_dir: Path) -> bool:
    """Closes the session here and waits for its shipper's end; True if nothing is left on disk."""
    from rankmem_ship import closing

    shipper = _shipper_pid(session_dir)
    started = 0 if shipper is None else process_start_ticks(shipper)
    closing.close(session_dir)
    if shipper is not None:
        _see_off(shipper, started)
    if not folder.spools(session_dir):
        closing.remove_unless_shipping(session_dir)
        return True
    again = f"rankmem ship {shlex.quote(str(session_dir))}"
    warnings.warn(f"some records are not stored yet (try: {again})", stacklevel=4)
    return False


def _see_off(pid: int, started_ticks: int) -> None:
    """Waits for a shipper's end, then asks for it: the first signal has it drain, the second stops it."""
    for _ in range(2):
        if _ends(pid, started_ticks):
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    _ends(pid, started_ticks)


def _ends(pid: int, started_ticks: int) -> bool:
    """Waits for the end of a process; False if it lives on."""
    over_s = time.monotonic() + _LEAVE_S
    while is_alive := process_is_alive(pid, started_ticks):
        if time.monotonic() > over_s:
            break
        time.sleep(_POLL_S)
    return not is_alive


def _shipper_pid(session_dir: Path) -> int | None:
    """Of the shipper on this host, which may have only begun; None where it has left or never came."""
    from rankmem_ship.status import STATUS_NAME

    over_s = time.monotonic() + _COMES_S
    while time.monotonic() < over_s:
        try:
            return int(json.loads((session_dir / STATUS_NAME).read_text())["pid"])
        except FileNotFoundError:
            if not session_dir.exists() or not election.is_shipping(session_dir):
                return None
        time.sleep(_POLL_S)
    return None
