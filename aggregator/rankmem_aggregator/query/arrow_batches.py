"""The batches of an Arrow reader of DuckDB's, whose errors are DuckDB's again.

Stage: query, wherever an answer is read in pieces. Arrow has its own exceptions for what DuckDB raises while
the reader is iterated, mostly OSError: they would be taken for those of whatever the batches are written to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import duckdb
import pyarrow as pa

_KINDS: Final[Mapping[str, type[duckdb.Error]]] = {
    "FATAL Error": duckdb.FatalException,
    "INTERNAL Error": duckdb.InternalException,
    "INTERRUPT Error": duckdb.InterruptException,
    "Out of Memory Error": duckdb.OutOfMemoryException,
    "Permission Error": duckdb.PermissionException,
}
"""By what the text begins with: those that are told apart."""


def batches_of(reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
    """The batches.

    Raises:
        duckdb.Error: whatever fails in DuckDB.
    """
    try:
        yield from reader
    except (OSError, pa.ArrowException) as exc:
        kind = _KINDS.get(str(exc).partition(":")[0], duckdb.Error)
        raise kind(str(exc)) from exc
