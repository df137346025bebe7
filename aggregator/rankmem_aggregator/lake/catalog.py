"""Which files of a lake count: the rows of ``lake_progress``, at one version.

Stage: between files and questions. In: a lake's place; out: its :class:`DataFile` rows, checked: a lake may
come from a stranger, so no row may name a file outside of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from rankmem_aggregator.lake.delta import LOG_SETTINGS, add_columns, commit_once, made_elsewhere, sequence_in
from rankmem_aggregator.lake.files import GIVE_A_LAKE, LakeFiles, deltalake
from rankmem_aggregator.lake.layout import (
    ALL_SESSIONS,
    LAKE_PROGRESS,
    OPENING,
    OPENING_LAYOUT,
    DataFile,
    file_schema,
)
from rankmem_aggregator.lake.progress_rows import check_age, checked_files, progress_rows
from rankmem_protos.errors import Code, RankmemError

PROGRESS_FILES_MAX: Final = 64
"""Files of lake_progress: more are joined to one, after an import and after so many commits of a writer."""


@dataclass(frozen=True)
class Catalog:
    """The files that count at one version of a lake."""

    version: int
    """Of ``lake_progress``; -1: there is none yet."""
    files: tuple[DataFile, ...]
    """By table, session, segment, hosts, writer and sequence."""

    @cached_property
    def _by_table(self) -> dict[str, list[DataFile]]:
        found: dict[str, list[DataFile]] = {}
        for file in self.files:
            found.setdefault(file.table_name, []).append(file)
        return found

    def of_table(self, name: str) -> Sequence[DataFile]:
        """The files of a table."""
        return self._by_table.get(name, ())

    def of_session(self, session_id: str) -> list[DataFile]:
        """The files of a session, of all tables."""
        return [file for file in self.files if file.session_id == session_id]

    def about(self, session_id: str) -> Catalog:
        """What a question about a session needs: its files, and those that belong to no session."""
        return Catalog(
            self.version, tuple(f for f in self.files if f.session_id in (session_id, ALL_SESSIONS))
        )

    def has_openings(self, session_id: str) -> bool:
        """Whether there is an opening for all of a session: its files are of one cut, and as it left them.

        One of an older layout is none: it does not say by which clock offsets it was made.
        """
        openings = [file for file in self.of_table(OPENING.name) if file.session_id == session_id]
        if not openings or any(file.layout_version < OPENING_LAYOUT for file in openings):
            return False
        return len({(file.writer, file.state) for file in self.of_session(session_id)}) == 1

    def session_ids(self) -> list[str]:
        """The sessions, ordered by id."""
        return sorted({file.session_id for file in self.of_table("session")})


def read_catalog(files: LakeFiles, *, version: int | None = None, is_answered: bool = True) -> Catalog:
    """What counts at a version of ``lake_progress``; None: the newest.

    Args:
        files: the lake.
        version: of ``lake_progress``.
        is_answered: whether questions are; False also takes files of a layout that is too old for them.

    Raises:
        RankmemError: NOT_FOUND where there is nothing, INVALID where there is no lake or a damaged one,
            UNAVAILABLE where the store does not give it, UNSUPPORTED for a lake that a newer rankmem wrote or
            one too old, or where deltalake is not installed.
    """
    return _read(files, version, is_answered=is_answered)[1]


def _read(files: LakeFiles, version: int | None, *, is_answered: bool = True) -> tuple[Any, Catalog]:
    """The table lake_progress and what it says."""
    opened = open_progress(files, version=version)
    with files.reading_log(LAKE_PROGRESS.name):
        if opened is not None:
            rows = pa.table(opened.to_pyarrow_table())
        elif files.is_there():
            what = f"{files.root} is no lake of rankmem: it has no table lake_progress"
            raise RankmemError(Code.INVALID, what, GIVE_A_LAKE)
        else:
            # One that was read before may be back soon; only for a session is it final that it is not there.
            code = Code.NOT_FOUND if version is None else Code.UNAVAILABLE
            raise RankmemError(
                code,
                f"no lake {files.root}",
                "rankmem lake import FILE --lake URI makes one, and so does rankmem serve --lake URI",
            )
    found = checked_files(files, rows)
    if is_answered:
        check_age(files, found)
    return opened, Catalog(opened.version(), found)


def newest_version(files: LakeFiles) -> int:
    """The newest version of ``lake_progress``; -1: there is none."""
    opened = open_progress(files)
    return -1 if opened is None else int(opened.version())


def open_progress(files: LakeFiles, *, version: int | None = None) -> Any:
    """The Delta table lake_progress; None where there is none.

    Raises:
        RankmemError: INVALID for a damaged one, UNAVAILABLE where the store does not give it.
    """
    from deltalake.exceptions import TableNotFoundError

    with files.reading_log(LAKE_PROGRESS.name):
        try:
            place = files.place(LAKE_PROGRESS.name)
            return deltalake().DeltaTable(place, version=version, storage_options=files.options)
        except TableNotFoundError:
            return None


def made_progress(files: LakeFiles) -> Any:
    """The Delta table lake_progress, made where there is none.

    Raises:
        RankmemError: as :func:`open_progress`; EXHAUSTED where it cannot be written.
    """
    if (opened := open_progress(files)) is None:
        place, schema = files.place(LAKE_PROGRESS.name), file_schema(LAKE_PROGRESS)
        made = partial(
            deltalake().DeltaTable.create,
            place,
            schema,
            mode="ignore",
            name=LAKE_PROGRESS.name,
            configuration=LOG_SETTINGS,
        )
        commit_once(place, made)
        opened = open_progress(files)
    return opened


def replace_progress(
    files: LakeFiles,
    session_id: str,
    writer: str,
    new: Iterable[DataFile],
    *,
    app: str,
    sequence: int,
    **guards: Any,
) -> None:
    """Makes these the files of a session (or of :data:`ALL_SESSIONS`) from this writer, and no others.

    ``guards`` are numbers and check of :func:`commit_progress`.

    Raises:
        RankmemError: CONFLICT where this or a later sequence of ``app`` was committed with other files.
    """
    condition = f"session_id = '{session_id}' AND writer = '{writer}'"
    _commit(files, new, app, sequence, mode="overwrite", predicate=condition, **guards)


def add_progress(files: LakeFiles, new: Iterable[DataFile], *, app: str, sequence: int) -> None:
    """Makes these files count besides those that do. Raises as :func:`replace_progress`."""
    _commit(files, new, app, sequence, mode="append")
    if sequence % PROGRESS_FILES_MAX == 0:
        with contextlib.suppress(RankmemError):  # the files count; they are joined another time
            join_progress(files)


def exchange_progress(
    files: LakeFiles,
    old: Iterable[DataFile],
    new: Iterable[DataFile],
    *,
    whole_session: bool = False,
    numbers: Mapping[str, int] | None = None,
) -> bool:
    """Makes files count in place of others, in one commit; files that are added meanwhile stay.

    Args:
        files: the lake.
        old: files that count.
        new: whose rows are those of ``old``, or what is left of them.
        whole_session: whether ``old`` has to be all files of their sessions.
        numbers: Delta's ``txn`` numbers to be set with it: of two commits at once that set the same one,
            one is refused.

    Returns:
        False, and nothing is done, where another process has exchanged one of ``old`` before, or, with
        ``whole_session``, their sessions have other files.

    Raises:
        RankmemError: as :func:`read_catalog`; EXHAUSTED where it cannot be written.
    """
    from deltalake.transaction import CommitProperties, Transaction

    gone, added = set(old), tuple(new)
    paths = {file.path for file in added}
    transactions = [Transaction(name, number) for name, number in (numbers or {}).items()]
    sessions = {file.session_id for file in gone} if whole_session else set()
    is_done = False

    def attempt() -> None:
        nonlocal is_done
        opened, catalog = _read(files, None, is_answered=False)
        if paths and paths <= {file.path for file in catalog.files}:
            is_done = True  # by an attempt whose answer was lost
            return
        kept = [file for file in catalog.files if file not in gone]
        is_done = len(kept) + len(gone) == len(catalog.files)
        is_done &= not any(file.session_id in sessions for file in kept)
        if is_done:
            add_columns(opened, file_schema(LAKE_PROGRESS))
            # Removes the files of lake_progress that were read: a commit meanwhile adds others. Of two
            # exchanges at once one is refused, and looks again.
            properties = CommitProperties(app_transactions=transactions)
            rows = progress_rows([*kept, *added])
            deltalake().write_deltalake(opened, rows, mode="overwrite", commit_properties=properties)

    commit_once(files.place(LAKE_PROGRESS.name), attempt)
    return is_done


def commit_progress(
    files: LakeFiles,
    new: Iterable[DataFile],
    app: str,
    sequence: int,
    *,
    numbers: Mapping[str, int] = MappingProxyType({}),
    check: Callable[[Any], None] = lambda opened: None,
    **mode: str,
) -> bool:
    """Makes files count and sets numbers, in one commit.

    Args:
        files: the lake.
        new: the files, which are there.
        app: makes each sequence once.
        sequence: of the commit.
        numbers: Delta's ``txn`` numbers to be set with it.
        check: looks at the newest version before each attempt, and raises where nothing may be committed.
        mode: of the write, as deltalake names it.

    Returns:
        False where this or a later sequence of ``app`` is there already: by another process, or by an attempt
        whose answer was lost.

    Raises:
        RankmemError: as ``check`` and :func:`commit_once`.
    """
    from deltalake.transaction import CommitProperties, Transaction

    rows = progress_rows(new)
    transactions = [Transaction(*number) for number in {**numbers, app: sequence}.items()]
    is_new = True

    def attempt() -> None:
        nonlocal is_new
        opened = made_progress(files)
        is_new = sequence_in(opened, app) < sequence
        if is_new:
            check(opened)
            add_columns(opened, rows.schema)
            properties = CommitProperties(app_transactions=transactions)
            deltalake().write_deltalake(opened, rows, commit_properties=properties, **mode)

    commit_once(files.place(LAKE_PROGRESS.name), attempt)
    return is_new


def _commit(files: LakeFiles, new: Iterable[DataFile], app: str, sequence: int, **given: Any) -> None:
    added = tuple(new)
    is_new = commit_progress(files, added, app, sequence, **given)
    if not is_new and not set(added) <= set(read_catalog(files, is_answered=False).files):
        raise made_elsewhere(files.place(LAKE_PROGRESS.name))


def join_progress(files: LakeFiles) -> None:
    """Joins the files of lake_progress once they are many: every question reads them."""
    opened = open_progress(files)
    if opened is not None and len(opened.file_uris()) > PROGRESS_FILES_MAX:
        exchange_progress(files, (), ())
