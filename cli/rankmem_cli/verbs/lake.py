"""``rankmem lake``: fill a lake, check and maintain it. The verbs that answer read it with ``--lake``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_cli.verbs.prune import KeepDays, KeepGib, KeepSessions, These, limits_of
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.lake.check import Fault

Uri = Annotated[
    str,
    typer.Option(
        "--lake", metavar="URI", envvar="RANKMEM_LAKE", help="DIR or s3://BUCKET/PREFIX.", show_envvar=True
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Database that no aggregator holds.")]
Joined = Annotated[
    list[str] | None,
    typer.Option("--session", metavar="ID", help="Join files of this session only; may be repeated."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the files, and delete none.")]

lake = typer.Typer(
    help="Fill and keep a lake: sessions as Parquet in Delta tables.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@lake.command(name="import")
def import_(file: File, uri: Uri) -> None:
    """Write a database's sessions into a lake.

    The lake is made if there is none. A session that is there already is left as it is, or replaced if the
    database has more of it. An import that was interrupted goes on when the command is given again.
    """
    from rankmem_aggregator.lake.import_ import import_database
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.units import bytes_text

    with show_progress("importing"), _in_hints(uri):
        done = import_database(file, uri)
    for session_id, outcome in done.sessions.items():
        print(f"{session_id} {outcome}")
    note(f"{done.rows:,} rows written, {bytes_text(done.size_bytes)}")


@lake.command()
def check(uri: Uri) -> None:
    """Read all files of a lake, and list faulty ones.

    Faulty are files that are missing, torn, or not what was written.
    """
    from rankmem_aggregator.lake.check import check_lake
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note

    with show_progress("reading"), _in_hints(uri):
        checked = check_lake(uri)
    note(f"{checked.num_files:,} files, {checked.num_rows:,} rows; {len(checked.faults)} faulty")
    _fail_with(checked.faults, uri)


@lake.command()
def compact(uri: Uri, session: Joined = None) -> None:
    """Join the small files that aggregators leave.

    Sessions that are over are cut as by an import; of others, small files are joined. Answers stay
    the same, and questions may be asked meanwhile. The joined files are deleted by rankmem lake vacuum.
    """
    from rankmem_aggregator.lake.compact import compact_lake
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.units import bytes_text

    with show_progress("joining"), _in_hints(uri):
        done = compact_lake(uri, session or ())
    note(f"{done.num_old:,} files joined to {done.num_new:,}, {bytes_text(done.size_bytes)}")
    _fail_with(done.faults, uri)


@lake.command()
def prune(
    uri: Uri,
    keep_days: KeepDays = None,
    keep_gib: KeepGib = None,
    keep_sessions: KeepSessions = None,
    session: These = None,
) -> None:
    """Delete old sessions from a lake.

    The oldest are deleted first; a running session is never deleted. Their files are freed by rankmem lake
    vacuum, a day later.
    """
    from rankmem_aggregator.lake.prune import prune_lake
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.units import bytes_text

    with show_progress("deleting"), _in_hints(uri):
        done = prune_lake(uri, limits_of(keep_days, keep_gib, keep_sessions), session or ())
    for session_id in done.session_ids:
        print(session_id)
    note(
        f"{len(done.session_ids)} deleted, {done.num_kept} kept"
        f"{f', of which {done.num_running} may still be running' if done.num_running else ''}; {uri}: "
        f"{bytes_text(done.bytes_before)}, now {bytes_text(done.bytes_after)}"
    )


@lake.command()
def vacuum(uri: Uri, dry_run: DryRun = False) -> None:
    """Delete files that nobody needs any more.

    These were joined or pruned more than a day ago, or left by a writer that was killed.
    """
    from rankmem_aggregator.lake.vacuum import vacuum_lake
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.render import note
    from rankmem_cli.show.units import bytes_text

    with show_progress("listing"), _in_hints(uri):
        done = vacuum_lake(uri, dry_run=dry_run)
    for file in done.files if dry_run else ():
        print(file.path)
    note(
        f"{len(done.files):,} files, {bytes_text(done.size_bytes)}"
        f"{' would be deleted' if dry_run else ' deleted'}"
    )


def _in_hints(uri: str) -> AbstractContextManager[None]:
    """A context in which commands that errors name are about the lake."""
    return GivenOptions(source=(("--lake", uri),)).in_hints()


def _fail_with(faults: Sequence[Fault], uri: str) -> None:
    """Lists faulty files, and fails if there are any."""
    for fault in faults:
        print(f"{fault.path}: {fault.what}")
    if faults:
        raise RankmemError(
            Code.INVALID,
            f"{len(faults)} files of {uri} cannot be used",
            "restore them, or import their sessions into another lake",
        )
