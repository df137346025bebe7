"""``rankmem``: the application and its verbs.

Stage: the command line's entry. In: argv. Out: an exit code. Importing this module loads typer and nothing
heavier: ``rankmem --help`` must not wait for duckdb, grpc or pyarrow.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from rankmem_aggregator.server.process_exit import leave
from rankmem_cli import errors
from rankmem_cli.verbs.certs import certs
from rankmem_cli.verbs.control import control
from rankmem_cli.verbs.demo import demo
from rankmem_cli.verbs.diagnose import diagnose
from rankmem_cli.verbs.diff import diff
from rankmem_cli.verbs.doctor import doctor
from rankmem_cli.verbs.export import export
from rankmem_cli.verbs.fetch import fetch
from rankmem_cli.verbs.fit import fit
from rankmem_cli.verbs.fragmentation import fragmentation
from rankmem_cli.verbs.hosts import hosts
from rankmem_cli.verbs.imbalance import imbalance
from rankmem_cli.verbs.import_ import import_
from rankmem_cli.verbs.job_peak import job_peak
from rankmem_cli.verbs.lake import lake
from rankmem_cli.verbs.leaks import leaks
from rankmem_cli.verbs.ledger import ledger
from rankmem_cli.verbs.live import live
from rankmem_cli.verbs.modules import modules
from rankmem_cli.verbs.oom import oom
from rankmem_cli.verbs.ops import ops
from rankmem_cli.verbs.page import page
from rankmem_cli.verbs.peak import peak
from rankmem_cli.verbs.prune import prune
from rankmem_cli.verbs.ranks import ranks
from rankmem_cli.verbs.run import run
from rankmem_cli.verbs.serve import serve
from rankmem_cli.verbs.sessions import sessions
from rankmem_cli.verbs.ship import ship
from rankmem_cli.verbs.sql import sql
from rankmem_cli.verbs.status import status
from rankmem_cli.verbs.steps import steps
from rankmem_cli.verbs.timeline import timeline
from rankmem_cli.verbs.top import top
from rankmem_cli.verbs.weights import weights
from rankmem_cli.verbs.whatif import whatif
from rankmem_protos.without_pandas import leave_pandas_out

VERBS: tuple[Callable[..., None], ...] = (
    demo,
    serve,
    sessions,
    ranks,
    status,
    top,
    page,
    hosts,
    peak,
    ops,
    live,
    job_peak,
    timeline,
    modules,
    weights,
    steps,
    diagnose,
    leaks,
    imbalance,
    fragmentation,
    ledger,
    fit,
    whatif,
    diff,
    oom,
    sql,
    export,
    import_,
    prune,
    ship,
    fetch,
    control,
    certs,
    doctor,
)

_verbose = False

app = typer.Typer(
    name="rankmem",
    help="Record the device memory of every rank of a distributed PyTorch job, and see what used it.",
    no_args_is_help=True,
    add_completion=False,
    # Plain help: the same in a pipe, in review and in every terminal, and it needs no rich.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"rankmem {version('rankmem')}")
        raise typer.Exit


@app.callback()
def options(
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show a traceback for errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Reads the options given before the verb."""
    global _verbose
    _verbose = verbose


# Everything after the command's first word belongs to the job, even if it looks like an option.
app.command(context_settings={"allow_interspersed_args": False})(run)
for verb in VERBS:
    # Given as such, the list of verbs wraps a line instead of cutting it.
    short_help = (verb.__doc__ or "").splitlines()[0]
    app.command(name=verb.__name__.rstrip("_").replace("_", "-"), short_help=short_help)(verb)
app.add_typer(lake, name="lake")


def main() -> None:
    """The entry point: runs the command line and exits with its code."""
    _open_standard_streams()
    leave_pandas_out()
    try:
        code = errors.boundary(lambda: app(prog_name="rankmem"), verbose=lambda: _verbose)
    except SystemExit as ending:  # typer ends every verb with one
        code = ending.code if isinstance(ending.code, int) else int(bool(ending.code))
    sys.exit(leave(code))


def _open_standard_streams() -> None:
    """Opens the standard streams that are closed, as in a daemon: otherwise the next file or pipe takes their
    numbers, and receives what a library writes to standard error."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # the new descriptor gets the lowest free number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115  it stays
            setattr(sys, name, stream)
