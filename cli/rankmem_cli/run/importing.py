"""``rankmem import``: reads, stages and delivers recordings one by one, and reports the result of each.

Stage: the verb's process. In: paths and a place. Out: sessions in the database, a summary on stderr. Reading
is done by ``rankmem_imports``, storing by the aggregator's package; recordings for a file that an aggregator
holds are delivered to the aggregator.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from rankmem_aggregator.quantity_text import counted
from rankmem_cli.args.options import Target
from rankmem_cli.run.destination import served_at
from rankmem_cli.run.import_plan import lines_of, rank_source
from rankmem_cli.show.progress import Update, show_progress
from rankmem_cli.show.render import note
from rankmem_cli.show.units import count_text
from rankmem_imports.members import Member
from rankmem_imports.planning import Plan, PlannedSession, is_skipped, plan
from rankmem_imports.search import Found, search
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.ingest.file_import import Loader, RankLog
    from rankmem_imports.delivery import Delivery
    from rankmem_imports.staging import StagedRank

SKIPPED_SHOWN_MAX: Final = 10
"""Files with nothing to import that are listed; the rest are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of an import."""

    paths: Sequence[str]
    name: str | None = None
    session: str | None = None
    rank_from: str | None = None


@dataclass(slots=True, kw_only=True)
class Report:
    """The result of an import."""

    session_ids: list[str] = field(default_factory=list)
    """Sessions with a stored rank, in order."""
    failed: list[tuple[Path, RankmemError]] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Files found in folders that hold nothing to import, each with the reason: no failures."""
    num_events: int = 0

    def add(self, found: Found, error: RankmemError) -> None:
        """Records an error as a failure or a skipped file."""
        if is_skipped(found, error):
            self.skipped.append((found.path, str(error)))
        else:
            self.failed.append((found.path, error))


class Sink(Protocol):
    """Stores ranks."""

    def store(self, ranks: Sequence[StagedRank], session_row: dict[str, Any]) -> bool:
        """Stores the ranks of one recording; False if they were already imported."""


def import_recordings(request: Request, place: Target) -> Report:
    """Imports the recordings in the paths and reports each on stderr.

    Raises:
        RankmemError: there is no recording, the options contradict each other, or the place cannot be used.
    """
    report = Report()
    with show_progress("looking") as update:
        looked = search(request.paths)
        plans = plan(looked.found, name=request.name, session=request.session, rank_from=request.rank_from)
        report.failed += looked.failed + plans.failed
        report.skipped += [(path, str(error)) for path, error in plans.skipped]
        if plans.sessions:
            for line in lines_of(plans):
                note(f"rankmem: {line}")
            with _sink(place) as sink:
                _import_all(plans, sink, update, report)
    for path, error in report.failed:
        _note_file(path, str(error))
    report.skipped += [(path, "unrecognised format") for path in looked.unrecognised]
    for path, why in report.skipped[:SKIPPED_SHOWN_MAX]:
        _note_file(path, f"{why}, skipped")
    if len(report.skipped) > SKIPPED_SHOWN_MAX:
        note(f"rankmem: {len(report.skipped) - SKIPPED_SHOWN_MAX} more files skipped")
    if not report.session_ids and not report.failed:
        raise RankmemError(
            Code.NOT_FOUND,
            f"no recording in {' '.join(request.paths)}",
            "docs/formats.md lists what is read",
        )
    return report


def _note_file(path: Path, text: str) -> None:
    note(f"rankmem: {text}" if str(path) in text else f"rankmem: {path}: {text}")


def _import_all(plans: Plan, sink: Sink, update: Update, report: Report) -> None:
    files = [(session, members) for session in plans.sessions for members in _by_file(session)]
    for number, (session, members) in enumerate(files, 1):
        where = members[0].found.path
        text = f"{where.name} ({number} of {len(files)})"
        update(text)
        try:
            _import_file(session, members, sink, report, partial(_show_rows, update, text))
        except RankmemError as exc:
            report.add(members[0].found, exc)
            if exc.code is Code.UNAVAILABLE:  # for the others as well
                report.failed += [(rest[0].found.path, exc) for _, rest in files[number:]]
                return


def _show_rows(update: Update, text: str, rows: int) -> None:
    update(f"{text}: {count_text(rows)} rows")


def _import_file(
    session: PlannedSession,
    members: Sequence[Member],
    sink: Sink,
    report: Report,
    progress: Callable[[int], None],
) -> None:
    """Imports the ranks of one file: all are read before any is stored."""
    from rankmem_imports.staging import stage

    folder = Path(tempfile.mkdtemp(prefix="rankmem-import-"))
    try:
        staged = [
            stage(
                member.recording,
                session.identity(member),
                session.spool_id(member),
                folder / str(member.rank),
                progress,
            )
            for member in members
        ]
        is_new = sink.store(staged, session.row_with(staged))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if session.session_id not in report.session_ids:
        report.session_ids.append(session.session_id)
    for rank in staged:
        report.num_events += rank.closing.events
        _report(session, rank, is_new)


def _report(session: PlannedSession, rank: StagedRank, is_new: bool) -> None:
    """Prints a line on a rank, and one on each thing that is inexact."""
    counts = [(rank.closing.events, "event")]
    counts += [(rank.rows.get(table, 0), noun) for table, noun in _ALSO_COUNTED]
    what = ", ".join(counted(count, noun) for count, noun in counts if count)
    again = "" if is_new else ", already imported"
    whose = f"rank {rank.identity.rank}{rank_source(session, rank.identity.rank)}"
    note(f"{rank.source}: {session.format}, session {session.session_id}, {whose}: {what}{again}")
    if rank.closing.events_lost:
        note(f"    missing: {counted(rank.closing.events_lost, 'event')}")
    for remark in rank.closing.remarks:
        note(f"    {remark}")


_ALSO_COUNTED: Final = (
    ("allocation_record", "block"),
    ("operator_call", "operator call"),
    ("marker", "marker"),
    ("kernel_launch", "kernel"),
    ("component_sample", "sample"),
    ("allocation_use", "used block"),
    ("static_block", "static block"),
)


def _by_file(session: PlannedSession) -> list[list[Member]]:
    files: dict[Path, list[Member]] = {}
    for member in session.members:
        files.setdefault(member.found.path, []).append(member)
    return list(files.values())


@contextmanager
def _sink(place: Target) -> Iterator[Sink]:
    """The aggregator that is named or holds the file, or else the file itself."""
    with contextlib.ExitStack() as stack:
        if place.aggregator is not None:
            place.credentials.check()
            yield stack.enter_context(_remote(place.aggregator, place))
            return
        assert place.db is not None  # a Target has one of the two
        holder = served_at(place.db)
        if holder is not None:
            note(f"rankmem: {place.db} is held by the aggregator at {holder.address}; importing into it")
            yield stack.enter_context(_remote(holder.address, place, tls=holder.tls, token=holder.token))
            return
        local = _Local(place.db, stack)
        if place.db.exists():
            local.open()
        yield local


class _Local:
    """A file that no other process holds. A missing one is created for the first recording that can be
    stored: a recording that is refused leaves no empty database.

    Args:
        stack: closes it.
    """

    def __init__(self, path: Path, stack: contextlib.ExitStack) -> None:
        self._path = path
        self._stack = stack
        self._loader: Loader | None = None

    def open(self) -> Loader:
        """The open database."""
        from rankmem_aggregator.ingest.file_import import Loader

        if self._loader is None:
            self._loader = self._stack.enter_context(Loader(self._path))
        return self._loader

    def store(self, ranks: Sequence[StagedRank], session_row: dict[str, Any]) -> bool:
        return self.open().load(_logs(ranks, session_row))


class _Remote:
    """An aggregator."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def store(self, ranks: Sequence[StagedRank], session_row: dict[str, Any]) -> bool:
        from rankmem_aggregator.ingest.file_import import check

        check(_logs(ranks, session_row))  # before any of it is sent: the recording whole, or not at all
        num_new = sum(self._delivery.deliver(rank, session_row) for rank in ranks)
        return num_new > 0


def _logs(ranks: Sequence[StagedRank], session_row: dict[str, Any]) -> list[RankLog]:
    from rankmem_aggregator.ingest.file_import import RankLog

    return [RankLog(opening=rank.opening(), messages=rank.messages(session_row)) for rank in ranks]


@contextmanager
def _remote(
    address: str, place: Target, *, tls: bool | None = None, token: bool | None = None
) -> Iterator[Sink]:
    from rankmem_imports.delivery import Delivery

    credentials = place.credentials
    if tls is not None or token is not None:
        credentials = credentials.only(tls=bool(tls), token=bool(token))
    with Delivery(address, credentials) as delivery:
        yield _Remote(delivery)
