"""``rankmem fit``: what a step would hold and need at another batch or length, and whether that fits."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmem_cli.args import options
from rankmem_cli.show.insight import FailOn
from rankmem_cli.show.render import Format

if TYPE_CHECKING:
    from rankmem_aggregator.query.queries import Queries

_SIZES = "sizes, as 16,32, or multiples of the largest recorded, as 2x"


@options.reads
def fit(
    source: options.Target,
    session: options.Session = None,
    rank: options.Rank = None,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="N", help=f"Batch to predict: {_SIZES}.  [default: 2x,4x]"),
    ] = None,
    length: Annotated[
        str | None, typer.Option("--length", metavar="N", help=f"Length to predict instead: {_SIZES}.")
    ] = None,
    recorded: Annotated[
        str | None,
        typer.Option(
            "--recorded", metavar="A,B", help="Batch or length of each recorded size, the smallest first."
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="SESSION|FILE",
            help="Another recording of the same program at another size; may be given several times.",
        ),
    ] = None,
    in_size: Annotated[
        str | None,
        typer.Option(
            "--in", metavar="SIZE", help="Memory of the device, as 80GiB.  [default: the recorded one's]"
        ),
    ] = None,
    as_device: Annotated[
        str | None,
        typer.Option(
            "--as", metavar="cuda", help="From a CPU's recording: what it would need on such a device."
        ),
    ] = None,
    fail_on: FailOn = None,
    output: options.Output = Format.TABLE,
) -> None:
    """Predict whether a training fits at another batch or length.

    Compares steady steps of different sizes, of one session or of several (--with), and gives each block the
    bytes that it would have at another. From one size it gives an upper bound for larger batches.
    --as cuda has been held against six trainings of three models on one GPU, an H200.
    Exit code 2: cannot tell, with the reason: no steady steps, or they did not run the same program.
    """
    from rankmem_cli.args.sizes import parse_size
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import tell

    with ExitStack() as opened:
        tell(
            source,
            session,
            lambda queries, facts: queries.fit(
                facts.session_id,
                batch=_parts(batch),
                length=_parts(length),
                recorded=_numbers(recorded),
                in_bytes=None if in_size is None else parse_size(in_size),
                as_device=as_device,
                rank=rank,
                others=[_other(each, source, opened) for each in others or ()],
            ),
            lambda answer: columns.fit(str(answer.figures.get("what", "batch"))),
            output=output,
            fail_on=fail_on,
        )


def _parts(text: str | None) -> list[str]:
    return [] if text is None else [part.strip() for part in text.split(",")]


def _numbers(text: str | None) -> list[int]:
    from rankmem_protos.errors import Code, RankmemError

    try:
        return [int(part) for part in _parts(text)]
    except ValueError as exc:
        raise RankmemError(
            Code.INVALID, f"--recorded {text} is no list of whole numbers", "--recorded 2,4"
        ) from exc


def _other(name: str, source: options.Target, opened: ExitStack) -> str | Queries:
    """A recording that ``--with`` names: a database file, or a session of the same target."""
    from rankmem_aggregator.query.next_commands import GivenOptions
    from rankmem_aggregator.query.open import open_queries

    if Path(name).is_file():
        given = GivenOptions(source=(("--db", name),))
        with given.in_hints():
            queries = opened.enter_context(open_queries(Path(name), source.credentials))
        queries.given_options = given
        return queries
    return name
