"""``rankmem diff``: what a change did to the memory of a job, at equal input."""

from __future__ import annotations

import enum
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rankmem_cli.args import options
from rankmem_cli.args.sizes import parse_size
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.insights.diff_limits import Limit

FIGURES = ("peak", "held", "allocated")


class DiffFormat(enum.StrEnum):
    """The output format of a comparison."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"
    CSV = "csv"


Base = Annotated[str, typer.Argument(metavar="BASE", help="Database FILE, or session ID, before the change.")]
Head = Annotated[str, typer.Argument(metavar="HEAD", help="Database FILE, or session ID, after it.")]
BaseSession = Annotated[
    str | None,
    typer.Option("--base-session", metavar="ID", help="Session of BASE, a FILE.  [default: the newest]"),
]
HeadSession = Annotated[
    str | None,
    typer.Option("--head-session", metavar="ID", help="Session of HEAD, a FILE.  [default: the newest]"),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="FIGURE=LIMIT",
        help="How much worse peak, held or allocated may get, such as peak=2% or held=64MiB; repeatable.  "
        "[default: peak and held by 0.5% and 64KiB]",
    ),
]
Output = Annotated[
    DiffFormat, typer.Option("--format", help="Output format; markdown is for a pull request.")
]


def diff(
    base: Base,
    head: Head,
    limits: Limits = None,
    base_session: BaseSession = None,
    head_session: HeadSession = None,
    db: options.ReadDb = None,
    lake: options.Lake = None,
    engine: options.Engine = None,
    aggregator: options.Aggregator = None,
    tls_ca: options.TlsCa = None,
    tls_cert: options.TlsCert = None,
    tls_key: options.TlsKey = None,
    token_file: options.TokenFile = None,
    output: Output = DiffFormat.TEXT,
) -> None:
    """Show what got worse between two runs, steps of equal input compared.

    Compares the peak of a step and what is held at its end, rank by rank, from the third step on. Batches may
    vary, as long as the inputs of both runs overlap. Reserved memory is shown, never judged.
    Exit code 0: nothing is worse; 1: something is, without any --fail-on; 2: cannot tell, with the reason.
    """
    from rankmem_cli.show.progress import show_progress
    from rankmem_cli.show.session import open_queries, session_facts

    parsed = _limits(limits or [])
    elsewhere = options.source(db, lake, aggregator, tls_ca, tls_cert, tls_key, token_file, engine)
    given = any(each is not None for each in (db, lake, aggregator))
    with ExitStack() as opened:
        found = []
        for name, session in ((base, base_session), (head, head_session)):
            is_file = not given and (Path(name).is_file() or name.endswith(".duckdb"))
            if session is not None and not is_file:
                raise RankmemError(
                    Code.INVALID,
                    f"{name!r} is taken for a session, so it has no session {session!r}",
                    "BASE and HEAD as files, without --db, --lake and --aggregator; or as sessions alone",
                )
            target = options.target(db=Path(name), token_file=token_file) if is_file else elsewhere
            with target.given.in_hints():
                queries = opened.enter_context(open_queries(target))
                found.append((queries, session_facts(queries, session if is_file else name)))
        (base_in, before), (queries, after) = found
        with show_progress("querying"), after.given.in_hints():
            answer = queries.diff(before.session_id, after.session_id, base_in=base_in, limits=parsed)
        answer = answer.asked_with(after.given)
    _show(answer, [before.title(), after.title()], output)
    code = answer.exit_code("suspected")
    if code:
        raise typer.Exit(code)


def _show(answer: object, titles: list[str], output: DiffFormat) -> None:
    from rankmem_aggregator.insights.answer import Answer
    from rankmem_aggregator.insights.diff_text import markdown
    from rankmem_cli.show import columns
    from rankmem_cli.show.insight import show_insight
    from rankmem_cli.show.render import Format, note

    assert isinstance(answer, Answer)
    if output is DiffFormat.MARKDOWN:
        print(markdown(answer), end="")
        return
    if output is DiffFormat.TEXT:
        for side, title in zip(("base", "head"), titles, strict=True):
            note(f"{side}: {title}")
    of = {DiffFormat.JSON: Format.JSON, DiffFormat.CSV: Format.CSV}.get(output, Format.TABLE)
    has_moved = any(row["moved_from"] for row in answer.rows.to_pylist())
    show_insight(answer, columns.diff(with_moves=has_moved), output=of)


def _limits(texts: list[str]) -> dict[str, Limit]:
    """The limits by figure.

    Raises:
        RankmemError: INVALID for one that is none.
    """
    from rankmem_aggregator.insights.diff_limits import Limit

    found: dict[str, Limit] = {}
    for text in texts:
        figure, _, value = text.partition("=")
        if figure not in FIGURES or not value:
            raise RankmemError(
                Code.INVALID,
                f"--limit {text!r} is not FIGURE=LIMIT with one of {', '.join(FIGURES)}",
                "--limit peak=2%, --limit held=64MiB",
            )
        known = found.get(figure, Limit())
        if value.endswith("%"):
            try:
                share = float(value[:-1]) / 100
            except ValueError:
                share = -1.0
            if not 0 <= share <= 100:
                raise RankmemError(Code.INVALID, f"--limit {text!r}: {value!r} is no share", "such as 2%")
            found[figure] = known._replace(share=share)
        elif value.replace(".", "", 1).isdecimal() and float(value) > 0:
            hint = f"--limit {figure}={value}% or --limit {figure}={value}B"
            raise RankmemError(Code.INVALID, f"--limit {text!r}: {value!r} has no unit", hint)
        else:
            found[figure] = known._replace(size_bytes=parse_size(value))
    return found
