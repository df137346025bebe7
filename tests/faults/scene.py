"""The scene of a fault: real ranks, a real shipper, a real aggregator, each a process that can be killed.

Every wait here has a deadline. What is started here is ended here: ranks and aggregators by their handle,
shippers (which are nobody's children) by the session's folder in their command line.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from faults.ledger import Written
from ports import free_port
from rankmem_agent.spool.election import elect, is_shipping
from rankmem_agent.spool.folder import spools
from waiting import DEADLINE_S, until

TESTS: Final = Path(__file__).resolve().parents[1]
RANK: Final = Path(__file__).with_name("reference_rank.py")
SESSION: Final = "0TESTSESSION"


@dataclass(kw_only=True)
class Rank:
    """A rank's process and what its witness saw."""

    rank: int
    attempt: int
    process: subprocess.Popen[bytes]
    witness: Path

    @property
    def count(self) -> int:
        """Events written for sure, so far."""
        return self._witnessed()[0]

    def written(self) -> Written:
        """What it wrote; it has ended."""
        code = self.process.wait(DEADLINE_S)
        count, ends = self._witnessed()
        reasons = ("exit",) if code == 0 else ("exit", "killed") if ends else ("killed",)
        return Written(rank=self.rank, attempt=self.attempt, count=count, end_reasons=reasons)

    def _witnessed(self) -> tuple[int, bool]:
        try:
            count, ends = struct.unpack("<QQ", self.witness.read_bytes())
        except (FileNotFoundError, struct.error):
            return 0, False
        return count, bool(ends)


class Scene:
    """One session on one or more pretended hosts, and one aggregator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "database" / "mem.duckdb"
        self.database.parent.mkdir()
        self.port = free_port()
        self.aggregator: subprocess.Popen[bytes] | None = None
        self.ranks: list[Rank] = []
        self.ship_to = self.address
        """What the ranks are told; a test may put something in between."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def session_dir(self, host: str = "host-a") -> Path:
        """The session's folder on a host."""
        return self.folder / f"spool-{host}" / SESSION

    # -- the aggregator --------------------------------------------------------------------------

    def start_aggregator(self, *, kept: bool = False, **variables: str) -> None:
        """Starts it on the database that is there, and waits until it listens.

        Args:
            kept: with a parent that starts it again when it dies (``rankmem serve``).
            variables: for its environment.
        """
        command = ("-m", "rankmem_cli", "serve") if kept else ("-m", "rankmem_aggregator")
        environment = self._environment() | {"RANKMEM_DB": str(self.database), "RANKMEM_LISTEN": self.address}
        with (self.folder / "aggregator.log").open("ab") as log:
            self.aggregator = subprocess.Popen(
                (sys.executable, *command),
                env=environment | variables,
                stderr=log,
                stdout=log,
            )
        until("the aggregator listens", self._listens)

    def kill_worker(self) -> int:
        """SIGKILL to the process of an aggregator that is kept; how many there were: none between two
        starts."""
        assert self.aggregator is not None
        threads = Path(f"/proc/{self.aggregator.pid}/task").iterdir()
        found = [int(pid) for thread in threads for pid in (thread / "children").read_text().split()]
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        return len(found)

    def kill_aggregator(self) -> None:
        """SIGKILL."""
        assert self.aggregator is not None
        self.aggregator.kill()
        self.aggregator.wait(DEADLINE_S)

    def close_aggregator(self) -> None:
        """SIGTERM: it leaves one plain file."""
        assert self.aggregator is not None
        self.aggregator.terminate()
        assert self.aggregator.wait(DEADLINE_S) == 0

    def forget_database(self) -> None:
        """The next aggregator begins with nothing."""
        shutil.rmtree(self.database.parent)
        self.database.parent.mkdir()

    def _listens(self) -> bool:
        assert self.aggregator is not None
        assert self.aggregator.poll() is None, (self.folder / "aggregator.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    # -- ranks and shippers ----------------------------------------------------------------------

    def start_rank(
        self,
        rank: int,
        *arguments: str,
        attempt: int = 0,
        host: str = "host-a",
        within: Sequence[str] = (),
        **variables: str,
    ) -> Rank:
        """Starts a rank of the reference run; it has its spool when this returns.

        Args:
            within: a command that runs the rank's, and ends it with itself.
        """
        witness = self.folder / f"witness-{attempt}-{rank}"
        command = (sys.executable, str(RANK), str(self.session_dir(host)), "--witness", str(witness))
        who = ("--rank", str(rank), "--attempt", str(attempt), "--host", host, "--aggregator", self.ship_to)
        process = subprocess.Popen(
            (*within, *command, *who, *arguments), env=self._environment() | variables, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        started = Rank(rank=rank, attempt=attempt, process=process, witness=witness)
        self.ranks.append(started)
        return started

    def shippers(self) -> list[int]:
        """Processes that ship one of the session's folders."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal():
                continue
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"rankmem_ship" in words and any(
                    word.startswith(os.fsencode(self.folder)) for word in words
                ):
                    found.append(int(entry.name))
        return found

    def kill_shippers(self) -> int:
        """SIGKILL to every shipper; how many there were."""
        found = self.shippers()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def deliver(self, host: str = "host-a") -> float:
        """Waits until every spool of a host is stored and gone; the seconds it took. Ranks have ended."""
        began_s = time.monotonic()
        session_dir = self.session_dir(host)

        def is_delivered() -> bool:
            if not spools(session_dir):
                return True
            if not is_shipping(session_dir):
                elect(session_dir)
            return False

        until("all spools are delivered", is_delivered)
        return time.monotonic() - began_s

    def written(self) -> list[Written]:
        """What all ranks wrote; they have ended."""
        return [rank.written() for rank in self.ranks]

    def close(self) -> None:
        """Ends whatever is left."""
        for rank in self.ranks:
            rank.process.kill()
            rank.process.communicate()
        if self.aggregator is not None:
            self.aggregator.kill()
            self.aggregator.wait()
        until("the shippers are gone", lambda: self.kill_shippers() == 0)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RANKMEM_")}
        return kept | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Scene]:
    """A scene that ends with the block."""
    scene = Scene(folder)
    try:
        yield scene
    finally:
        scene.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A scene in the test's own folder."""
    with opened(tmp_path) as found:
        yield found
