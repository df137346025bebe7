"""The file `<database>.address`: the address of the aggregator that holds a database.

Stage: between server and readers. While one process holds a DuckDB file no other can open it, so the
server leaves its address beside the file and a reader of the file is redirected to it.
Written by the server (whole or absent: temporary name, then rename), read by any process of the host.
It is a hint, never a lock: a file whose process is gone is *stale* and reads as absent. A stranger who made
the database may have written it, too: that of another user redirects, but never asks for a token.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

SUFFIX: Final = ".address"
FORMAT_VERSION: Final = 2
FILE_BYTES_MAX: Final = 4096
"""An address file has under 400 bytes; a larger one is not ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """The address at which a database is served, and the process that serves it."""

    address: str
    """HOST:PORT as a client on the same host dials it."""
    pid: int
    process_start_ticks: int
    """Start of that process in clock ticks since boot; with pid it identifies the process. 0: unknown."""
    host_name: str
    tls: bool = False
    """Whether it must be dialled with TLS."""
    token: bool = False
    """Whether it requires a token."""
    version: int = FORMAT_VERSION


def address_path(database_path: Path) -> Path:
    """The address file that belongs to a database file."""
    return database_path.with_name(database_path.name + SUFFIX)


def write_address(
    database_path: Path, address: str, *, tls: bool = False, token: bool = False, pid: int | None = None
) -> Path:
    """Writes an address beside the database; replaces an existing one.

    Args:
        database_path: the database.
        address: HOST:PORT as a client on this host dials it.
        tls: whether it must be dialled with TLS.
        token: whether it requires a token.
        pid: of the process that lives as long as it is served; None: this one.
    """
    path = address_path(database_path)
    pid = os.getpid() if pid is None else pid
    entry = ServerAddress(
        address=address,
        pid=pid,
        process_start_ticks=_process_start_ticks(pid),
        host_name=socket.gethostname(),
        tls=tls,
        token=token,
    )
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(entry)) + "\n", encoding="utf-8")
    temporary.replace(path)
    return path


def read_address(database_path: Path) -> ServerAddress | None:
    """The address at which the database is served; None if it is not, or the file is stale or not ours."""
    entry = _parse(address_path(database_path))
    return entry if entry is not None and is_alive(entry) else None


def remove_address(database_path: Path, pid: int | None = None) -> None:
    """Removes the address file if it is that of the process (None: this one); another's stays."""
    path = address_path(database_path)
    entry = _parse(path)
    pid = os.getpid() if pid is None else pid
    if entry is not None and entry.pid == pid and entry.host_name == socket.gethostname():
        path.unlink(missing_ok=True)


def is_alive(entry: ServerAddress) -> bool:
    """Whether the process that wrote it still runs; on another host (shared disk) that is unknown: True."""
    if entry.host_name != socket.gethostname():
        return True
    try:
        os.kill(entry.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs as another user
    now = _process_start_ticks(entry.pid)
    return now == 0 or entry.process_start_ticks in (0, now)


def is_of_this_process(entry: ServerAddress) -> bool:
    """Whether this process wrote it: in a container its number is often 1, and in the next container too."""
    own = os.getpid(), socket.gethostname()
    ticks = _process_start_ticks(os.getpid())
    return (entry.pid, entry.host_name) == own and entry.process_start_ticks in (0, ticks)


def _parse(path: Path) -> ServerAddress | None:
    try:
        with path.open("rb") as file:
            value = json.loads(file.read(FILE_BYTES_MAX))
            is_trusted = os.fstat(file.fileno()).st_uid in (0, os.geteuid())
        return ServerAddress(
            address=str(value["address"]),
            pid=int(value["pid"]),
            process_start_ticks=int(value["process_start_ticks"]),
            host_name=str(value["host_name"]),
            tls=bool(value.get("tls")),
            token=bool(value.get("token")) and is_trusted,
            version=int(value["version"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None  # absent, half of another program's file, or not ours


def _process_start_ticks(pid: int) -> int:
    """Field 22 of /proc/PID/stat; 0 where there is no procfs or the process is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
