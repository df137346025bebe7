"""``rankmem import``: recordings read, laid down, delivered, one after the other, and what came of each.

Stage: the verb's process. In: paths and a place. Out: sessions in the database, a summary on stderr. Reading
is the agent package's, storing the aggregator's; a file held by an aggregator is delivered to it.
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

from rankmem_cli.args.options import Target
from rankmem_cli.run.destination import served_at
from rankmem_cli.run.import_plan import lines_of, whence
from rankmem_cli.show.progress import Update, show_progress
from rankmem_cli.show.render import note
from rankmem_cli.show.units import count_text
from rankmem_imports.jobs import Job, Plan, is_skipped, plan
from rankmem_imports.members import Member
from rankmem_imports.search import Found, search
from rankmem_imports.staging import StagedRank, stage
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.ingest.file_import import Loader
    from rankmem_imports.delivery import Delivery

SKIPPED_SHOWN_MAX: Final = 10
"""Files with nothing to import that are named; of the others their number is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the user asks for."""

    paths: Sequence[str]
    name: str | None = None
    session: str | None = None
    rank_from: str | None = None


@dataclass(slots=True, kw_only=True)
class Report:
    """What came of an import."""

    session_ids: list[str] = field(default_factory=list)
    """Of sessions of which a rank is stored, in order."""
    failed: list[tuple[Path, RankmemError]] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    """Files that nobody named and that hold nothing to import, each with the reason: no failures."""
    num_events: int = 0

    def add(self, found: Found, error: RankmemError) -> None:
        """What an error means for the import: a failure, or a file that is skipped."""
        if is_skipped(found, error):
            self.skipped.append((found.path, str(error)))
        else:
            self.failed.append((found.path, error))


class Sink(Protocol):
    """Where ranks go."""

    def store(self, ranks: Sequence[StagedRank], session_row: dict[str, Any]) -> bool:
        """Stores the ranks of one recording; False if they were stored before."""


def import_recordings(request: Request, place: Target) -> Report:
    """Imports what the paths hold and says so on stderr.

    Raises:
        RankmemError: nothing is there, the options contradict each other, or the place cannot be used.
    """
    report = Report()
    with show_progress("looking") as say:
        looked = search(request.paths)
        plans = plan(looked.found, name=request.name, session=request.session, rank_from=request.rank_from)
        report.failed += looked.failed + plans.failed
        report.skipped += [(path, str(error)) for path, error in plans.skipped]
        if plans.jobs:
            for line in lines_of(plans):
                note(f"rankmem: {line}")
            with _sink(place) as sink:
                _import_all(plans, sink, say, report)
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
            "docs/formats.md says what is read",
        )
    return report


def _note_file(path: Path, text: str) -> None:
    note(f"rankmem: {text}" if str(path) in text else f"rankmem: {path}: {text}")


def _import_all(plans: Plan, sink: Sink, say: Update, report: Report) -> None:
    files = [(job, members) for job in plans.jobs for members in _by_file(job)]
    for number, (job, members) in enumerate(files, 1):
        where = members[0].found.path
        text = f"{where.name} ({number} of {len(files)})"
        say(text)
        try:
            _import_file(job, members, sink, report, partial(_say_rows, say, text))
        except RankmemError as exc:
            report.add(members[0].found, exc)
            if exc.code is Code.UNAVAILABLE:  # nobody is there for the others either
                report.failed += [(rest[0].found.path, exc) for _, rest in files[number:]]
                return


def _say_rows(say: Update, text: str, rows: int) -> None:
    say(f"{text}: {count_text(rows)} rows")


def _import_file(
    job: Job, members: Sequence[Member], sink: Sink, report: Report, progress: Callable[[int], None]
) -> None:
    """The ranks of one file: all read before any is stored."""
    folder = Path(tempfile.mkdtemp(prefix="rankmem-import-"))
    try:
        staged = [
            stage(
                member.recording,
                job.identity(member),
                job.spool_id(member),
                folder / str(member.rank),
                progress,
            )
            for member in members
        ]
        is_new = sink.store(staged, job.row_with(staged))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if job.session_id not in report.session_ids:
        report.session_ids.append(job.session_id)
    for rank in staged:
        report.num_events += rank.closing.events
        _tell(job, rank, is_new)


def _tell(job: Job, rank: StagedRank, is_new: bool) -> None:
    """What became of a rank, in a line, and what is inexact, in a line each."""
    counted = [(rank.closing.events, "events")]
    counted += [(rank.rows.get(table, 0), noun) for table, noun in _ALSO_COUNTED]
    said = ", ".join(f"{count_text(count)} {noun}" for count, noun in counted if count)
    again = "" if is_new else ", already imported"
    whose = f"rank {rank.identity.rank}{whence(job, rank.identity.rank)}"
    note(f"{rank.source}: {job.kind}, session {job.session_id}, {whose}: {said}{again}")
    if rank.closing.events_lost:
        note(f"    {count_text(rank.closing.events_lost)} events are missing")
    for remark in rank.closing.remarks:
        note(f"    {remark}")


_ALSO_COUNTED: Final = (
    ("allocation_record", "blocks"),
    ("operator_call", "operator calls"),
    ("marker", "markers"),
    ("kernel_launch", "kernels"),
    ("component_sample", "samples"),
    ("static_block", "static blocks"),
)


def _by_file(job: Job) -> list[list[Member]]:
    files: dict[Path, list[Member]] = {}
    for member in job.members:
        files.setdefault(member.found.path, []).append(member)
    return list(files.values())


@contextmanager
def _sink(place: Target) -> Iterator[Sink]:
    """The aggregator that is named or holds the file, else the file itself."""
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
    """A file nobody else holds. One that is not there is made for the first recording that can be stored: a
    recording that is refused leaves no empty database.

    Args:
        opened: closes it.
    """

    def __init__(self, path: Path, opened: contextlib.ExitStack) -> None:
        self._path = path
        self._opened = opened
        self._loader: Loader | None = None

    def open(self) -> Loader:
        """The open database."""
        from rankmem_aggregator.ingest.file_import import Loader

        if self._loader is None:
            self._loader = self._opened.enter_context(Loader(self._path))
        return self._loader

    def store(self, ranks: Sequence[StagedRank], session_row: dict[str, Any]) -> bool:
        from rankmem_aggregator.ingest.file_import import RankLog

        logs = [RankLog(opening=rank.opening(), messages=rank.messages(session_row)) for rank in ranks]
        return self.open().load(logs)


class _Remote:
    """An aggregator."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def store(self, ranks: Sequence[StagedRank], session_row: dict[str, Any]) -> bool:
        from rankmem_aggregator.ingest.batch import Spool, decode_batch

        # All of it as the aggregator will, before any of it is sent: whole or not at all.
        for rank in ranks:
            spool = Spool.of(rank.opening())
            for message in rank.messages(session_row):
                decode_batch(message, spool)
        num_new = sum(self._delivery.deliver(rank, session_row) for rank in ranks)
        return num_new > 0


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
