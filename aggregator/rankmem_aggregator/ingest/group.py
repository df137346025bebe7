"""The rows of several batches as one transaction: one Arrow table a database table.

Stage: ingest, in the writer's thread. In: accepted batches, their stack ids replaced; out: concatenated
tables, rows of one spool side by side (their columns then compress as runs and small differences), keyed
tables with one row a key, the last one sent. A pure function of its input.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

import pyarrow as pa

from rankmem_protos.tables import TABLES, Table


def concatenated(batches: Iterable[Mapping[str, pa.Table]]) -> dict[str, pa.Table]:
    """All rows by table, in the order of the declarations, each table in one piece.

    One piece, because DuckDB scans pieces in parallel and then writes part-filled row groups from every
    thread: measured on 480,000 events, 44 bytes an event and 3.6 CPU seconds instead of 34 and 2.5.
    """
    parts: defaultdict[str, list[pa.Table]] = defaultdict(list)
    for rows in batches:
        for name, table in rows.items():
            parts[name].append(table)
    joined: dict[str, pa.Table] = {}
    for name, declared in TABLES.items():
        if name in parts:
            table = pa.concat_tables(parts[name])
            joined[name] = last_by_key(table, declared) if declared.key else _in_one_piece(table)
    return joined


def last_by_key(table: pa.Table, declared: Table) -> pa.Table:
    """One row for each key, the last one: a MERGE that meets a key twice would insert it twice."""
    plain = table.cast(pa.schema([_without_dictionary(field) for field in table.schema]))
    numbered = plain.select(declared.key).append_column("row", pa.array(range(plain.num_rows), pa.int64()))
    last = numbered.group_by(list(declared.key)).aggregate([("row", "max")]).column("row_max")
    return plain.take(last)


def _in_one_piece(table: pa.Table) -> pa.Table:
    return table.unify_dictionaries().combine_chunks()


def _without_dictionary(field: pa.Field) -> pa.Field:
    return field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
