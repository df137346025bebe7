"""Opens what a target names: a database file, a running aggregator, or a lake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rankmem_aggregator.lake.files import is_lake_address
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.store.address import read_address
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError

if TYPE_CHECKING:
    from rankmem_aggregator.lake.engine import Engine

_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]+):\d{1,5}")
"""``host:port``, ``[::1]:port``; anything else is a path."""


def open_queries(
    target: str | Path, credentials: Credentials, *, unsafe: bool = False, engine: str | Engine | None = None
) -> Queries:
    """The implementation of :class:`Queries` that a target needs; see ``rankmem_aggregator.connect``."""
    if isinstance(target, str) and is_lake_address(target):
        return _open_lake(target, unsafe=unsafe, engine=engine)
    if engine is not None:
        raise RankmemError(
            Code.INVALID,
            f"{target} is no lake, and {engine} answers from lakes alone",
            "leave the engine out",
        )
    if isinstance(target, str) and _ADDRESS.fullmatch(target) and not Path(target).exists():
        if unsafe:
            raise RankmemError(
                Code.INVALID,
                f"{target} is an aggregator, which confines what it runs for others",
                "give a file that no aggregator holds: --db FILE",
            )
        return _open_remote(target, credentials)
    return open_file(Path(target), credentials, unsafe=unsafe)


def _open_remote(address: str, credentials: Credentials) -> Queries:
    from rankmem_aggregator.query.remote import RemoteQueries  # gRPC's import takes 30 ms, which a file saves

    return RemoteQueries(address, credentials)


def _open_lake(address: str, *, unsafe: bool, engine: str | Engine | None) -> Queries:
    if unsafe:
        raise RankmemError(
            Code.INVALID, f"{address} is a lake, which is always read confined", "leave --unsafe out"
        )
    if engine is not None:
        from rankmem_aggregator.lake.scattered import ScatteredQueries

        return ScatteredQueries(address, engine)
    from rankmem_aggregator.lake.queries import LakeQueries

    return LakeQueries(address)


def open_file(path: Path, credentials: Credentials, *, unsafe: bool = False) -> Queries:
    """The queries of a database file, by itself or through the aggregator that holds it.

    Args:
        path: of the file.
        credentials: for the aggregator, as far as it requires them.
        unsafe: see ``LocalQueries``.

    Raises:
        RankmemError: NOT_FOUND without such a file, INVALID for a file that is no database of rankmem,
            UNSUPPORTED for one of a newer version, CONFLICT where a program that left no address holds it, or
            an aggregator, if ``unsafe``.
    """
    from rankmem_aggregator.query.local import LocalQueries  # DuckDB's import takes 50 ms

    try:
        return LocalQueries(path, unsafe=unsafe)
    except RankmemError as exc:
        server = read_address(path) if exc.code is Code.CONFLICT else None
        if server is None:
            raise
        if unsafe:
            raise RankmemError(
                Code.CONFLICT,
                f"the aggregator at {server.address} holds {path}, and confines what it runs",
                "leave --unsafe out; or copy the file: rankmem export duckdb COPY",
            ) from exc
    return _open_remote(server.address, credentials.only(tls=server.tls, token=server.token))
