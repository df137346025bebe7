"""``rankmem export duckdb``: the whole database as a plain DuckDB file, also while it is being written.

Stage: export. In: an open ``Queries``, local or remote; out: one file. The copy itself is made where the
database is: in this process, or in the aggregator (:mod:`rankmem_aggregator.store.copy`).
"""

from __future__ import annotations

from pathlib import Path

from rankmem_aggregator.exports.contract import ExportResult, Selection


def write_duckdb(selection: Selection, out: Path) -> ExportResult:
    """Writes the copy."""
    selection.queries.copy_to(out)
    return ExportResult()
