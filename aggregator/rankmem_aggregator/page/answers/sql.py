"""A statement of the user's.

Stage: page, in the thread of a request. The statement passes the fences of any client's: over a file those
of ``LocalQueries``, over an aggregator its sandbox. What comes back may be of any type, so it is brought to
those that a browser's numbers and texts hold exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rankmem_aggregator.page.parameters import integer, parameter, text
from rankmem_aggregator.page.reading import of_database
from rankmem_aggregator.page.routes import DatabaseRoute
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError

SQL_BYTES_MAX: Final = 128 << 10
"""As an aggregator accepts them."""
SQL_ROWS_MAX: Final = 10_000
"""More than anyone reads in a page; ``rankmem sql --out FILE`` has no limit."""
SQL_S: Final = 60.0
"""Of a statement: who wrote it may wait, other readers of the page not for ever."""
EXACT_MAX: Final = 1 << 53
"""Above it a browser's numbers are not exact."""
TEXT_MAX: Final = 4_000
"""Characters of a value that is neither a number nor a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SqlAsked:
    """Parameters of ``/sql``."""

    sql: str = parameter(text(SQL_BYTES_MAX), "one reading statement of DuckDB's dialect")
    limit: int = parameter(integer(1, SQL_ROWS_MAX), "rows at most", default=SQL_ROWS_MAX)


def sql(queries: Queries, asked: SqlAsked) -> pa.Table:
    """The first rows of a statement, in its order.

    Facts: truncated, whether there are more; types, DuckDB's names of the columns' Arrow types, in order.
    """
    if len(asked.sql.encode("utf-8", "surrogatepass")) > SQL_BYTES_MAX:
        raise RankmemError(
            Code.INVALID, f"the statement has more than {SQL_BYTES_MAX:,} bytes", "send a shorter one"
        )
    batches, count = [], 0
    for batch in queries.stream(asked.sql):
        batches.append(batch)
        count += batch.num_rows
        if count > asked.limit:
            break
    rows = pa.Table.from_batches(batches).slice(0, asked.limit)
    types = [str(field.type) for field in rows.schema]
    return of_database(
        exact_in_a_browser(rows), source="", sql=asked.sql, truncated=count > asked.limit, types=types
    )


def exact_in_a_browser(rows: pa.Table) -> pa.Table:
    """The rows as booleans, numbers that a browser holds exactly, and texts; each column's name once."""
    names: dict[str, int] = {}
    columns = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        seen = names.get(field.name, 0)
        name = field.name if not seen else f"{field.name} ({seen + 1})"
        names[field.name] = seen + 1
        columns.append((name, _exact(column)))
    return pa.Table.from_arrays([column for _, column in columns], names=[name for name, _ in columns])


def _exact(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _exact(column.cast(kind.value_type))
    if pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return column
    if pa.types.is_decimal(kind) and kind.precision > 15 and kind.scale:
        return column.cast(pa.string())
    if pa.types.is_decimal(kind) and kind.scale:
        return column.cast(pa.float64())
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):  # DuckDB's sum() of integers is a decimal
        known = pc.min_max(column).as_py()
        low, high = known["min"], known["max"]
        if low is None or (low >= -EXACT_MAX and high <= EXACT_MAX):
            return column.cast(pa.int64())
        return column.cast(pa.string())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.cast(pa.string())
    texts = [None if value is None else _text(value) for value in column.to_pylist()]
    return pa.chunked_array([texts], pa.string())


def _text(value: object) -> str:
    shown = value.hex() if isinstance(value, bytes) else str(value)
    return shown if len(shown) <= TEXT_MAX else shown[:TEXT_MAX] + "…"


ROUTES: Final = (DatabaseRoute(path="/sql", parameters=SqlAsked, answer=sql, limit_s=SQL_S, method="POST"),)
