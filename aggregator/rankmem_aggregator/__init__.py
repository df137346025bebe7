"""The aggregator: ingest, store, SQL; and the client for what is stored.

``connect`` is the one import a user needs::

    from rankmem_aggregator import connect

    with connect("rankmem.duckdb") as queries:  # or "host:port" of a running aggregator, or "lake:DIR"
        table = queries.sql("SELECT * FROM peak_by_rank")

Importing this package loads neither DuckDB nor gRPC nor Arrow: ``connect`` does, when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rankmem_aggregator.query.queries import Queries

__all__ = ["connect"]


def connect(
    target: str | Path,
    *,
    tls_ca: str | Path | None = None,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    token_file: str | Path | None = None,
    unsafe: bool = False,
    engine: str | None = None,
) -> Queries:
    """Opens a database file or a lake, or reaches a running aggregator; the caller closes it.

    Args:
        target: path of a database file, ``host:port`` of an aggregator, or a lake: ``lake:DIR`` or
            ``s3://BUCKET/PREFIX``. A file that an aggregator holds is answered by that aggregator.
        tls_ca: the CA that signed the aggregator's certificate, or ``public``; default RANKMEM_TLS_CA. Given:
            the aggregator is dialled with TLS.
        tls_cert: a certificate of one's own, where it asks for one; default RANKMEM_TLS_CERT.
        tls_key: its private key; default RANKMEM_TLS_KEY.
        token_file: holds the token that it asks for; default RANKMEM_TOKEN_FILE.
        unsafe: open a file with DuckDB bare: with the views and macros that its maker put there, and SQL that
            may read and write other files. Otherwise a file is read as if a stranger had made it.
        engine: what answers the larger questions of a lake: ``processes:N``, worker processes here;
            ``ray://HOST:PORT``, a Ray cluster; ``sc://HOST:PORT``, a Spark Connect server.

    Raises:
        RankmemError: DENIED for a token file that others may read; NOT_FOUND where there is no database,
            INVALID for one that rankmem did not make, UNSUPPORTED for one of a newer version, CONFLICT where
            another program holds it, UNAVAILABLE where no aggregator answers.
    """
    from rankmem_aggregator.query.open import open_queries
    from rankmem_protos.credentials import Credentials

    given = Credentials.from_environment(
        tls_ca=tls_ca, tls_cert=tls_cert, tls_key=tls_key, token_file=token_file
    )
    return open_queries(target, given, unsafe=unsafe, engine=engine)
