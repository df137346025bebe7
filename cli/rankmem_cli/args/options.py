"""The options that several verbs share, declared once.

Stage: arguments. In: the command line and the environment. Out: plain values. Opens nothing.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from rankmem_aggregator.query.next_commands import GivenOptions
from rankmem_cli.show.render import Format
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.lake.engine import Engine as OpenedEngine

ReadDb = Annotated[
    Path | None,
    typer.Option(
        "--db",
        metavar="FILE",
        help="Database to read, even while it is being written.  [env: RANKMEM_DB; default: rankmem.duckdb]",
    ),
]
Lake = Annotated[
    str | None,
    typer.Option(
        "--lake",
        metavar="URI",
        help="Lake to read instead of a database: DIR or s3://BUCKET/PREFIX.  [env: RANKMEM_LAKE]",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="ENGINE",
        help="What answers large questions of a lake: processes:N, ray://HOST:PORT or sc://HOST:PORT.  "
        "[env: RANKMEM_ENGINE]",
    ),
]
RecordDb = Annotated[
    Path | None,
    typer.Option(
        "--db", metavar="FILE", help="Database to record into.  [env: RANKMEM_DB; default: rankmem.duckdb]"
    ),
]
Aggregator = Annotated[
    str | None,
    typer.Option(
        "--aggregator",
        metavar="HOST:PORT",
        help="Address of a running aggregator.  [env: RANKMEM_AGGREGATOR]",
    ),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Use TLS and trust this CA; `public` trusts the public ones.  [env: RANKMEM_TLS_CA]",
    ),
]
TlsCert = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="This client's certificate.  [env: RANKMEM_TLS_CERT]"),
]
TlsKey = Annotated[
    Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key.  [env: RANKMEM_TLS_KEY]")
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", help="File with the access token.  [env: RANKMEM_TOKEN_FILE]"
    ),
]
Session = Annotated[
    str | None,
    typer.Option(
        "--session",
        metavar="ID",
        help="Session ID, the beginning of one, or a session's name.  [default: the newest]",
    ),
]
Output = Annotated[
    Format,
    typer.Option("--format", help="Output format; json and csv give plain bytes and nanoseconds."),
]
Attempt = Annotated[
    int | None,
    typer.Option("--attempt", metavar="N", min=0, help="Only this start of the workers, counted from 0."),
]
Rank = Annotated[int | None, typer.Option("--rank", metavar="R", min=0, help="Only this rank.")]
OfDevice = Annotated[
    str | None, typer.Option("--device", metavar="D", help="Only this device, such as cuda:0.")
]
Limit = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", min=0, help="Maximum number of rows; 0 for all."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="TIME",
        help="Start of the range, as for rankmem live --at.  [default: the first event]",
    ),
]


POINTS_DEFAULT: Final = 1_000_000
"""Points of a curve unless --points says less: all, short of recordings that would not fit in memory. The
parts of a stack must meet at the same instants, so thinning is left to what draws them together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where rows are read from or written to: a database file, an aggregator or a lake; one of them."""

    db: Path | None = None
    aggregator: str | None = None
    """HOST:PORT."""
    lake: str | None = None
    """``lake:DIR`` or ``s3://BUCKET/PREFIX``; only read."""
    engine: str | OpenedEngine | None = None
    """What answers large questions of the lake, or its address; None: this process."""
    credentials: Credentials = field(default_factory=Credentials)
    """For the aggregator, including one that holds the file."""

    given: GivenOptions = field(default_factory=GivenOptions, compare=False)
    """The options that named it; empty where the environment or a default did."""

    def address(self) -> str:
        """What ``open_queries`` opens."""
        return self.lake or self.aggregator or str(self.db)


def target(
    db: Path | None = None,
    aggregator: str | None = None,
    tls_ca: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    token_file: Path | None = None,
) -> Target:
    """The target that flags and environment name: flag > environment > ``rankmem.duckdb`` here.

    A flag beats both variables, so that ``--db other.duckdb`` works in a shell that has
    RANKMEM_AGGREGATOR set.

    Raises:
        RankmemError: INVALID for both a database and an aggregator, for a path that DuckDB cannot open, or
            for a certificate without its key or CA.
    """
    from rankmem_aggregator.config import target_from_environment

    credentials = Credentials.from_environment(
        tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file
    )
    given = _given(
        db=db,
        aggregator=aggregator,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        token_file=token_file,
    )
    named = target_from_environment(db, aggregator)
    if aggregator is not None or (db is None and named == os.environ.get("RANKMEM_AGGREGATOR")):
        return Target(aggregator=named, credentials=credentials, given=given)
    try:
        named.encode()
    except UnicodeEncodeError as exc:
        raise RankmemError(
            Code.INVALID,
            f"the database's path is not valid UTF-8: {named!r}",
            "rename it: DuckDB opens no other paths",
        ) from exc
    return Target(db=Path(named), credentials=credentials, given=given)


def _given(**named: object) -> GivenOptions:
    """The options that have a value."""
    given = {f"--{name.replace('_', '-')}": value for name, value in named.items() if value is not None}
    return GivenOptions(source=tuple((name, str(value)) for name, value in given.items()))


def source(
    db: Path | None = None,
    lake: str | None = None,
    aggregator: str | None = None,
    tls_ca: str | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    token_file: Path | None = None,
    engine: str | Literal[False] | None = False,
) -> Target:
    """The target of a verb that only reads: that of :func:`target`, or a lake.

    A flag beats the variables; of these RANKMEM_DB counts first, then RANKMEM_LAKE. RANKMEM_ENGINE counts
    where a lake is read, unless ``engine`` is False: a verb without one.

    Raises:
        RankmemError: as :func:`target`; INVALID for a lake and something else, for an engine without a lake.
    """
    stores = _given(db=db, lake=lake, aggregator=aggregator).source
    named = [f"{flag} {value}" for flag, value in stores]
    if lake is not None and len(named) > 1:
        raise RankmemError(Code.INVALID, f"{' and '.join(named)} are given", "give one of them")
    given = _given(lake=lake, engine=engine or None)
    if not named and not os.environ.get("RANKMEM_DB"):
        lake = os.environ.get("RANKMEM_LAKE")
    if not lake and engine:
        raise RankmemError(
            Code.INVALID, f"--engine {engine} answers from a lake alone", "give one: --lake URI"
        )
    if not lake:
        return target(db, aggregator, tls_ca, tls_cert, tls_key, token_file)
    from rankmem_aggregator.lake.files import lake_address

    if engine is None:
        engine = os.environ.get("RANKMEM_ENGINE")
    return Target(lake=lake_address(lake), engine=engine or None, given=given)


_READING: Final = {
    "db": ReadDb,
    "lake": Lake,
    "engine": Engine,
    "aggregator": Aggregator,
    "tls_ca": TlsCa,
    "tls_cert": TlsCert,
    "tls_key": TlsKey,
    "token_file": TokenFile,
}
"""The options that name what is read: the parameters of :func:`source`."""


def reads(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb with the options that name what it reads in place of its parameter ``source``."""
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(verb, eval_str=True).parameters.values():
        parameter = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        if parameter.name == "source":
            parameters += [
                parameter.replace(name=name, annotation=option, default=None)
                for name, option in _READING.items()
            ]
        else:
            parameters.append(parameter)

    @functools.wraps(verb)
    def with_options(**given: Any) -> None:
        target = source(**{name: given.pop(name) for name in _READING})
        with replace(target.given, session=given.get("session")).in_hints():
            verb(source=target, **given)

    with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
    return with_options
