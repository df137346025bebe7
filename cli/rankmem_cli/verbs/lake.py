"""``rankmem lake``: fill a lake and check it. It is read with ``--lake`` of the verbs that answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankmem_protos.errors import Code, RankmemError

Uri = Annotated[
    str,
    typer.Option(
        "--lake", metavar="URI", envvar="RANKMEM_LAKE", help="DIR or s3://BUCKET/PREFIX.", show_envvar=True
    ),
]
File = Annotated[Path, typer.Argument(metavar="FILE", help="Database that no aggregator holds.")]

lake = typer.Typer(
    help="Fill and check a lake: sessions as Parquet in Delta tables.",
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

    with show_progress("importing"):
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

    with show_progress("reading"):
        checked = check_lake(uri)
    for fault in checked.faults:
        print(f"{fault.path}: {fault.what}")
    note(f"{checked.num_files:,} files, {checked.num_rows:,} rows; {len(checked.faults)} faulty")
    if checked.faults:
        raise RankmemError(
            Code.INVALID,
            f"{len(checked.faults)} of {checked.num_files} files of {uri} cannot be used",
            "restore them, or import their sessions into another lake",
        )
