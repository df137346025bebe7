"""``rankmem lake compact``: joins the small files that a writing aggregator leaves.

Stage: maintenance, in the process of the command line. In: the files that count; out: of a session that is
over, the files that an import would have written; of others, one file of each table, segment and group of
hosts, beside large ones. The rows are the same, in the order of the layout.

One commit of ``lake_progress`` exchanges a session's files; killed before it, nothing has happened, and what
was written is no file that counts. What was exchanged stays for readers of older versions until ``vacuum``.
Beside it writers may add files, and another compact may run: of two that join one file the first counts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from rankmem_aggregator.lake.catalog import Catalog, exchange_progress, join_progress, read_catalog
from rankmem_aggregator.lake.check import Fault, fault_of
from rankmem_aggregator.lake.cutting import PART_ROWS, cut_session
from rankmem_aggregator.lake.delta import exchange_in_logs
from rankmem_aggregator.lake.files import LakeFiles, writing
from rankmem_aggregator.lake.import_ import OF_SESSIONS, counts_by_session
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.lake.layout import (
    DIGEST_DIGITS,
    IMPORT_PREFIX,
    OPENING,
    TABLES,
    DataFile,
    order_of,
    path_of,
)
from rankmem_aggregator.lake.parquet import write_rows
from rankmem_aggregator.lake.part_files import Authorship, write_part
from rankmem_aggregator.lake.sessions import sessions_over, sessions_shifted
from rankmem_aggregator.query.local import InstanceQueries
from rankmem_aggregator.store.schema import PRUNED_SPOOL, quoted
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import SCHEMA_VERSION

WRITER: Final = "compact"
LARGE_BYTES: Final = 256 * 1024 * 1024
"""A file of this size is not joined while its session goes on: a row would be written with every run."""
MEMORY: Final = "2GB"
"""For sorting: a part has some 4 million events. DuckDB writes what does not fit to its temporary folder."""

_Part = tuple[str, int, int, str]


@dataclass(kw_only=True)
class Compacted:
    """What was joined."""

    num_old: int = 0
    """Files that do not count any more."""
    num_new: int = 0
    size_bytes: int = 0
    """Of the new ones."""
    faults: list[Fault] = field(default_factory=list)
    """Files that cannot be used; those of their part are as they were."""


def compact_lake(
    address: str,
    session_ids: Sequence[str] = (),
    *,
    large_bytes: int = LARGE_BYTES,
    part_rows: int = PART_ROWS,
    say: Callable[[str], None] = lambda text: None,
) -> Compacted:
    """Joins small files.

    Args:
        address: of the lake, see :class:`LakeFiles`.
        session_ids: of these alone; empty: of all.
        large_bytes: see :data:`LARGE_BYTES`.
        part_rows: events of a file of a session that is over, about.
        say: called with what is being joined.

    Raises:
        RankmemError: as :func:`read_catalog`; NOT_FOUND for a session that the lake does not have, EXHAUSTED
            where it cannot be written.
    """
    files = LakeFiles(address)
    catalog = read_catalog(files)
    present = {file.session_id for file in catalog.files}
    if unknown := sorted(set(session_ids) - present):
        raise RankmemError(
            Code.NOT_FOUND,
            f"no session {unknown[0]} in {files.root}",
            "give its full id, as rankmem sessions shows it",
        )
    with writing(files):
        compactor = _Compactor(files, address, large_bytes, part_rows)
        over = sessions_over(address, catalog.version)
        was_cut = any(file.writer == WRITER for file in catalog.of_table(OPENING.name))
        shifted = sessions_shifted(address, catalog.version) if was_cut else frozenset()
        for session_id in sorted(session_ids or present):
            say(f"joining files of {session_id}")
            is_shifted = session_id in shifted
            is_to_cut_now = session_id in over and is_to_cut(catalog.of_session(session_id), is_shifted)
            is_sound = compactor.join_session(catalog, session_id)
            if is_to_cut_now and is_sound:  # each part then looks at few files
                compactor.cut_session(read_catalog(files), session_id, is_shifted)
        join_progress(files)
        return compactor.done


class _Compactor:
    def __init__(self, files: LakeFiles, address: str, large_bytes: int, part_rows: int) -> None:
        self._files, self._address = files, address
        self._large_bytes, self._part_rows = large_bytes, part_rows
        self._made: set[str] = set()
        self.done = Compacted()

    def join_session(self, catalog: Catalog, session_id: str) -> bool:
        """Joins a session's small files; False where some cannot be used."""
        num_faults = len(self.done.faults)
        groups = [
            group for group in due(catalog.of_session(session_id), self._large_bytes) if self._is_sound(group)
        ]
        is_sound = len(self.done.faults) == num_faults
        if not groups:
            return is_sound
        old = [file for group in groups for file in group]
        with self._reading(Catalog(catalog.version, tuple(old))) as (queries, instance):
            new = [self._joined(queries, instance, group) for group in groups]
        self._exchange(old, new)
        return is_sound

    def cut_session(self, catalog: Catalog, session_id: str, is_shifted: bool) -> None:
        """Cuts a session that is over by hosts and by time, as an import does, with its openings.

        Not one of whose events some are on their hosts: what devices held would follow from what is here.
        """
        old = catalog.of_session(session_id)
        if not is_to_cut(old, is_shifted):
            return
        by = Authorship(writer=WRITER, sequence=min(file.sequence for file in old), state=_new_state())
        with self._reading(catalog.about(session_id)) as (queries, instance):
            if session_id in instance.lacking_sessions or not self._is_sound(
                [file for file in old if file.path not in self._made]
            ):
                return
            counts = {t.name: counts_by_session(queries, t).get(session_id, 0) for t in OF_SESSIONS}
            cut = cut_session(queries, session_id, counts["memory_event"], self._part_rows)
            parts = [(table, part) for table in OF_SESSIONS for part in cut.parts(table, counts[table.name])]
            written = [
                write_part(self._files, table, part, queries.stream(part.statement, part.parameters), by)
                for table, part in (*parts, (OPENING, cut.opening()))
            ]
        new = [file for file in written if file is not None]
        for name, expected in counts.items():
            _check_rows(name, sum(f.num_rows for f in new if f.table_name == name), expected, expected)
        self._exchange(old, new, whole_session=True)

    @contextlib.contextmanager
    def _reading(self, catalog: Catalog) -> Iterator[tuple[InstanceQueries, LakeInstance]]:
        instance = LakeInstance(self._files, catalog, {"memory_limit": MEMORY})
        with InstanceQueries(self._address, instance) as queries:
            yield queries, instance

    def _exchange(self, old: list[DataFile], new: list[DataFile], *, whole_session: bool = False) -> None:
        for file in new:  # the old ones will be deleted: read back first
            if what := fault_of(self._files, file):
                raise RankmemError(
                    Code.EXHAUSTED,
                    f"{self._files.place(file.path)} is not as it was written: {what}",
                    "see to the store; the files that count are as they were",
                )
        if not exchange_progress(self._files, old, new, whole_session=whole_session):
            # Another compact, an import, prune or a writer came first: these never counted.
            for file in new:
                self._files.delete(file.path)
            return
        own = [file for file in old if file.path in self._made]
        self._made |= {file.path for file in new}
        self.done.num_old += len(old) - len(own)
        self.done.num_new += len(new) - len(own)
        self.done.size_bytes += _size(new) - _size(own)
        exchange_in_logs(self._files, old, new)

    def _is_sound(self, group: Sequence[DataFile]) -> bool:
        """Whether all files are what was written: what is joined gets new checksums."""
        faults = [Fault(path=file.path, what=what) for file in group if (what := fault_of(self._files, file))]
        self.done.faults += faults
        return not faults

    def _joined(
        self, queries: InstanceQueries, instance: LakeInstance, group: Sequence[DataFile]
    ) -> DataFile:
        table = TABLES[group[0].table_name]
        order = ", ".join(map(quoted, order_of(table)))
        new = _joined_file(group)
        batches = queries.stream(f"{instance.rows_of(table, group)} ORDER BY {order}")
        rows, size = write_rows(self._files, new.path, table, batches)
        expected = sum(file.num_rows for file in group)
        has_doubles = bool(table.key) or "session_id" not in table.column_names()
        _check_rows(table.name, rows, 1 if has_doubles else expected, expected)
        return dataclasses.replace(new, num_rows=rows, size_bytes=size)


def due(present: Iterable[DataFile], large_bytes: int = LARGE_BYTES) -> list[list[DataFile]]:
    """The groups of files to join, each in the order of their names: of rows with one key the last counts.

    What an import has written is left out: it replaces its files itself, and leaves one a part. Of a table
    with a key all files are joined: a later name than that of a joined file has later rows. Files of tables
    that this rankmem does not know stay as they are.
    """
    parts: dict[_Part, list[DataFile]] = {}
    for file in present:
        table = TABLES.get(file.table_name)
        is_small = table is not None and (file.size_bytes < large_bytes or bool(table.key))
        if is_small and not file.writer.startswith(IMPORT_PREFIX):
            part = file.table_name, file.segment, file.hosts, file.session_id
            parts.setdefault(part, []).append(file)
    for files in parts.values():
        files.sort(key=lambda file: file.path.rpartition("/")[2])
    return [files for files in parts.values() if len(files) > 1]


def is_to_cut(present: Sequence[DataFile], is_shifted: bool = False) -> bool:
    """Whether a session's files are not those of one cut; what an import has written is left to it, and a
    session with files of tables that this rankmem does not know is left as it is.

    Args:
        present: the files.
        is_shifted: whether they were cut by other clock offsets than those of now.
    """
    is_ours = all(f.table_name in TABLES and not f.writer.startswith(IMPORT_PREFIX) for f in present)
    is_whole = not any(file.table_name == PRUNED_SPOOL.name for file in present)
    marks = {(file.writer, file.state) for file in present}
    is_cut = len(marks) == 1 and marks.pop()[0] == WRITER
    return is_ours and is_whole and (is_shifted or not is_cut)


def _check_rows(table_name: str, found: int, least: int, most: int) -> None:
    if not least <= found <= most:
        raise RankmemError(
            Code.INVALID,
            f"{found} rows of {table_name} are in the new files, {most} were in the old ones",
            "rankmem lake check; the files that count are as they were",
        )


def _size(files: Iterable[DataFile]) -> int:
    return sum(file.size_bytes for file in files)


def _new_state() -> str:
    return secrets.token_hex(DIGEST_DIGITS // 2)  # two at once must not write one file


def _joined_file(group: Sequence[DataFile]) -> DataFile:
    """The file of a group's rows, without its size."""
    like = group[0]
    state = _new_state()
    writers = {file.writer for file in group}
    uids = [json.loads(file.host_uids) if file.host_uids is not None else None for file in group]
    of_all = sorted({uid for known in uids for uid in known or ()})
    # Not the highest: who took a higher one before, and commits after this, has later rows.
    sequence = min(file.sequence for file in group)
    part = like.table_name, like.session_id, like.segment, like.hosts
    return DataFile(
        *part,
        path=path_of(*part, sequence=sequence, writer=WRITER, state=state),
        size_bytes=0,
        num_rows=0,
        from_ns=_least(file.from_ns for file in group),
        until_ns=_most(file.until_ns for file in group),
        host_uids=None if None in uids else json.dumps(of_all),
        writer=writers.pop() if len(writers) == 1 else WRITER,
        sequence=sequence,
        state=state,
        schema_version=SCHEMA_VERSION,
        layout_version=min(file.layout_version for file in group),
    )


def _least(times: Iterable[int | None]) -> int | None:
    known = list(times)
    return None if None in known else min(time for time in known if time is not None)


def _most(times: Iterable[int | None]) -> int | None:
    known = list(times)
    return None if None in known else max(time for time in known if time is not None)
