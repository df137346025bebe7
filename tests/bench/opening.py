"""CPU time to open a database and a lake, with what is kept of an empty one and without: turns in one run.

Reading: opened, asked what `rankmem peak` asks, and closed, without a row.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from unittest import mock

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.lake.catalog import Catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.instance import LakeInstance
from rankmem_aggregator.lake.served import TailInstance
from rankmem_aggregator.lake.tail import Tail
from rankmem_aggregator.query.local import InstanceQueries, LocalQueries
from rankmem_aggregator.sql import query_text
from rankmem_aggregator.store.copy import export_duckdb
from rankmem_aggregator.store.store import open_store

ROUNDS: Final = 7
NO_CACHE: Final = "/proc/nothing"
ASKED: Final = ("session_facts", "peak", "incompleteness")
"""The questions of `rankmem peak`."""
GIVEN: Final = {"session": "0SESSION0001", "attempt": None, "rank": None}


@contextmanager
def _timed(times: list[float]) -> Iterator[None]:
    began = time.process_time()
    yield
    times.append(time.process_time() - began)


def _round(folder: Path, took: Callable[[str], list[float]]) -> None:
    path = folder / "mem.duckdb"
    config = AggregatorConfig(database_path=path)
    with _timed(took("new database")):
        store = open_store(config)
    with store.cursor() as cursor, _timed(took("copy of a database")):
        export_duckdb(cursor, folder / "copy.duckdb")
    store.close()
    with _timed(took("database opened again for writing")):
        store = open_store(config)
    store.close()
    with _timed(took("database read")), LocalQueries(path) as queries:
        _ask(queries)
    with _timed(took("lake read")):
        lake = InstanceQueries("", LakeInstance(LakeFiles(str(folder)), Catalog(-1, ())))
        _ask(lake)
        lake.close()
    with _timed(took("lake served by an aggregator")):
        instance = TailInstance(LakeFiles(str(folder)), Tail(Catalog(-1, ()), (), 0), {"threads": 1})
    instance.close()


def _ask(queries: InstanceQueries) -> None:
    for name in ASKED:
        text = query_text(name)
        queries.sql(text, {each: value for each, value in GIVEN.items() if f"${each}" in text})


def main() -> None:
    """Prints a table."""
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as place:
        for number in range(2 * ROUNDS + 2):
            cache = (f"{place}/cache", NO_CACHE)[number % 2]
            folder = Path(place, str(number))
            folder.mkdir()
            with mock.patch.dict("os.environ", XDG_CACHE_HOME=cache):
                _round(folder, lambda what, cache=cache: times.setdefault((what, cache), []))  # type: ignore[misc]
    for what in dict.fromkeys(what for what, _ in times):
        kept, made = (statistics.median(times[what, cache][1:]) for cache in (f"{place}/cache", NO_CACHE))
        print(f"{what}: {kept:.3f} s kept, {made:.3f} s made, {made / kept:.1f} times")


if __name__ == "__main__":
    main()
