"""Deletes sessions of a database file that is not in use, and returns the space to the file system.

Stage: store, in the process of ``rankmem prune``, which holds the file meanwhile: an aggregator cannot start
on it. In: the path and the limits; out: a smaller file. DuckDB (2.0) shortens a file only where free blocks
are at its end, so the remaining rows are copied into a new file, which takes the old one's name when it is
whole and on disk. Killed at any moment, there is one whole database under the name.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.retention.limits import Limits, check_over
from rankmem_aggregator.retention.worker import RetentionWorker, stored_sessions
from rankmem_aggregator.store.copy import export_duckdb
from rankmem_aggregator.store.store import Store, open_store
from rankmem_protos.errors import Code, RankmemError

COPY_SLACK: Final = 1.1
"""Room for the copy, relative to the bytes in use: row groups are filled again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The result of :func:`prune_file`."""

    session_ids: tuple[str, ...]
    """Deleted, oldest first."""
    num_kept: int
    """Remaining sessions."""
    num_running: int
    """Of these, sessions that may still be running."""
    bytes_before: int
    bytes_after: int
    """Of the file."""


def prune_file(path: Path, limits: Limits, session_ids: Sequence[str] = (), *, pack: bool = True) -> Pruned:
    """Deletes sessions and shrinks the file.

    Args:
        path: of the database.
        limits: what is kept; sessions that may still be running are never deleted.
        session_ids: deleted as well, whatever the limits.
        pack: copy the remaining rows into a new file; False: leave free blocks for later rows.

    Raises:
        RankmemError: CONFLICT where an aggregator holds the file or a session is running, NOT_FOUND for an
            unknown session, EXHAUSTED where the copy does not fit beside the file.
    """
    if not path.is_file():
        raise RankmemError(Code.NOT_FOUND, f"no database {path}", "give its path with --db")
    bytes_before = path.stat().st_size
    store = _opened(path)
    try:
        gone = _delete(store, limits, session_ids)
        kept = stored_sessions(store)
        now_ns = time.time_ns()
        store.checkpoint(0)
        if pack:
            _pack(store)
    finally:
        store.close()
    return Pruned(
        session_ids=tuple(gone),
        num_kept=len(kept),
        num_running=sum(not session.is_over(now_ns) for session in kept),
        bytes_before=bytes_before,
        bytes_after=path.stat().st_size,
    )


def _opened(path: Path) -> Store:
    try:
        return open_store(AggregatorConfig.embedded(path))
    except RankmemError as exc:
        if exc.code is not Code.CONFLICT:
            raise
        raise RankmemError(
            exc.code,
            exc.message,
            "let it delete sessions (rankmem serve --keep-days D), or stop it first",
        ) from exc


def _delete(store: Store, limits: Limits, session_ids: Sequence[str]) -> list[str]:
    gone: list[str] = []
    worker = RetentionWorker(store, limits, deleted=gone.append)
    check_over(stored_sessions(store), session_ids, now_ns=worker.now_ns(), place=str(store.path))
    for session_id in session_ids:
        worker.begin(session_id)
    while worker.advance():
        pass
    return gone


def _pack(store: Store) -> None:
    """The new file takes the old one's name while that is still held: nothing can write to it in between."""
    needed = int(store.used_bytes() * COPY_SLACK)
    if store.disk.free_bytes() < needed:
        raise RankmemError(
            Code.EXHAUSTED,
            f"sessions are deleted, but shrinking {store.path} takes {needed} bytes beside it, "
            f"{store.disk.free_bytes()} are free",
            "free space and run it again, or use --no-pack: later rows take the free blocks",
        )
    copy = store.path.with_name(f"{store.path.name}.{os.getpid()}.packed")
    copy.unlink(missing_ok=True)
    try:
        with store.cursor() as cursor:
            cursor.execute("BEGIN TRANSACTION READ ONLY")
            export_duckdb(cursor, copy)
            cursor.execute("ROLLBACK")
        copy.chmod(stat.S_IMODE(store.path.stat().st_mode))  # who may read it is its owner's choice
        _sync(copy)
        copy.replace(store.path)
        _sync(store.path.parent)
    finally:
        copy.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
