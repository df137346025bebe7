"""The commit of an import to ``lake_progress``: a session counts whole, and of one writer or the other.

Stage: import. In: files that are there and in their tables' logs; out: one commit, or a refusal. It moves the
same numbers as the commits of aggregators (see ``lanes``): of each spool that the database has, and of the
session. Whichever of two commits is second sees the first: an aggregator that has received records which the
import brought drops these and goes on behind them, an import beside an aggregator that has stored is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rankmem_aggregator.lake.catalog import open_progress, read_catalog, replace_progress
from rankmem_aggregator.lake.delta import DeltaLog, sequence_in
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.lanes import lane, spools_of
from rankmem_aggregator.lake.layout import TABLES, DataFile, digest
from rankmem_aggregator.lake.moves import Move, moved_in
from rankmem_protos.errors import Code, RankmemError


class StoredElsewhereError(RankmemError):
    """Another process has stored records of the session: nothing was committed, as both would count."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.CONFLICT, message, "import the file into another lake")


def moves_of(opened: Any, session_id: str, progress: Iterable[dict[str, Any]]) -> dict[str, Move]:
    """The numbers that guard an import's commit.

    Args:
        opened: the table lake_progress when the import of the session begins; None: there is none.
        session_id: the session.
        progress: the database's rows of ``ingest_progress`` of the session.
    """
    after = {lane(row["spool_id"]): row["last_sequence"] + 1 for row in progress}
    own = spools_of(session_id)
    before = {name: sequence_in(opened, name) for name in (own, *after)}
    return {name: Move(before[name], after.get(name, before[own] + 1)) for name in before}


def check_alone(files: LakeFiles, session_id: str, writer: str, present: Iterable[DataFile]) -> None:
    """Raises StoredElsewhereError where others have written files of a session that count."""
    if strangers := sorted({file.writer for file in present if file.session_id == session_id} - {writer}):
        raise StoredElsewhereError(
            f"the lake {files.root} has session {session_id} from {strangers[0]}, another process"
        )


def commit_session(
    files: LakeFiles,
    session_id: str,
    writer: str,
    new: Sequence[DataFile],
    *,
    moves: dict[str, Move],
    app: str,
    sequence: int,
) -> None:
    """Makes these the files of a session, and moves its numbers, in one commit.

    Raises:
        RankmemError: StoredElsewhereError where others have written files of the session or moved a number,
            CONFLICT where they have made this commit; EXHAUSTED where the lake cannot be written.
    """

    def check(opened: Any) -> None:
        check_alone(files, session_id, writer, _counting(files, opened))
        if moved_in(opened, moves):
            raise StoredElsewhereError(
                f"another process has changed session {session_id} of the lake {files.root} meanwhile"
            )

    numbers = {name: move.after for name, move in moves.items()}
    replace_progress(files, session_id, writer, new, app=app, sequence=sequence, numbers=numbers, check=check)


def withdraw(files: LakeFiles, session_id: str, writer: str) -> None:
    """Takes what an import has added to the tables' logs, and does not count, out of them again."""
    opened = open_progress(files)
    present = [] if opened is None else _counting(files, opened)
    own = {file.path: file for file in present if file.session_id == session_id and file.writer == writer}
    mark = f"-{digest(writer)}-"
    for name, table in TABLES.items():
        log = DeltaLog(files, table)
        active = [file for file in log.active(session_id) if mark in file.path]
        gone = [file for file in active if file.path not in own]
        kept = {file.path for file in active}
        back = [file for path, file in own.items() if file.table_name == name and path not in kept]
        if gone or back:
            log.commit(back, gone)


def _counting(files: LakeFiles, opened: Any) -> Sequence[DataFile]:
    return read_catalog(files, version=opened.version(), is_answered=False).files
