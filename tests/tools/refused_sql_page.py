"""How a running aggregator ends each statement of ``refused_sql``: a table, which a test holds current.

Stage: tests. ``python tests/tools/refused_sql_page.py`` (``make docs``) writes it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ingest_client import IngestClient
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.server import aggregator as server
from rankmem_protos.errors import RankmemError
from refused_sql import ENDED, REFUSED
from sample_batches import RankSource

PAGE: Final = Path(__file__).parents[1] / "integration" / "golden" / "refused_sql.md"
SQL_CHARS: Final = 90
SAID_CHARS: Final = 100


@contextmanager
def confined(folder: Path) -> Iterator[server.Aggregator]:
    """An aggregator with a little data and short limits."""
    config = AggregatorConfig(
        database_path=folder / "mem.duckdb",
        listen="127.0.0.1:0",
        memory_limit_bytes=256 << 20,
        threads=2,
        query_timeout_s=1.0,
        query_row_limit=100_000,
    )
    with server.open(config) as running:
        with IngestClient(running.address) as client:
            source = RankSource(rank=0)
            client.open(source)
            client.send(batch=source.batch(2000))
            client.acks(1)
        yield running


def limit_of(message: str) -> str:
    """Which limit a message of EXHAUSTED speaks of."""
    return "time" if "longer than" in message else "rows" if "rows" in message else "memory"


def page() -> str:
    """The page, made anew."""
    with (
        tempfile.TemporaryDirectory() as folder,
        confined(Path(folder)) as running,
        connect(running.address) as queries,
    ):
        made = "\n".join(_table(queries, folder))
    return f"{made}\n"


def _table(queries: Queries, folder: str) -> Iterator[str]:
    count = sum(map(len, REFUSED.values()))
    yield f"{count} statements that are refused, {len(ENDED)} that are ended."
    for group, statements in REFUSED.items():
        yield f"\n**{group}**\n"
        yield from ("| statement | ends with |", "|---|---|")
        for sql in statements:
            error = _error(queries, sql)
            yield f"| {_code(sql)} | {error.code.value}: {_said(error.message, folder)} |"
    yield "\n**More than there is: allowed, and ended**\n"
    yield from ("| statement | ended by the limit of |", "|---|---|")
    for sql, limit in ENDED.items():
        yield f"| {_code(sql)} | {limit} |"


def _error(queries: Queries, sql: str) -> RankmemError:
    try:
        queries.sql(sql)
    except RankmemError as exc:
        return exc
    raise AssertionError(f"it ran: {sql}")


def _code(sql: str) -> str:
    shown = sql if len(sql) <= SQL_CHARS else f"{sql[: SQL_CHARS - 1]}…"
    visible = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in shown).replace("|", "\\|")
    return f"`{visible}`" if visible.strip() else "(nothing)"


def _said(message: str, folder: str) -> str:
    line = re.sub(r"\s+", " ", message.splitlines()[0]).replace(folder, "…").replace("|", "\\|")
    line = re.sub(r"[^ -~…\\|]", "?", line)
    return line if len(line) <= SAID_CHARS else f"{line[: SAID_CHARS - 1]}…"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
