"""MindStudio's recordings of any actions: records, blocks and what is alive, held against the story."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ascend_files import MB, Block, Story, store_parts, write_csvs, write_database
from constructed import SESSION, clear, empty_database
from rankmem_imports.formats import FORMATS
from rankmem_imports.recording import Identity
from repetitions import examples

ACTIONS = ("malloc", "free", "wait", "back", "older", "ge", "ge_free", "workspace")
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(1, 6), st.sampled_from((0, 10, 700))),
    min_size=1,
    max_size=40,
)
RECORDS = (
    "SELECT i.value, r.* EXCLUDE (sessionId, attempt, rankId, component) FROM mindstudio.MEMORY_RECORD AS r "
    "JOIN mindstudio.STRING_IDS AS i ON i.id = r.component"
)
BLOCKS = (
    "SELECT replace(i.value, 'cann::', ''), o.* EXCLUDE (sessionId, attempt, rankId, name) "
    "FROM mindstudio.OP_MEMORY AS o JOIN mindstudio.STRING_IDS AS i ON i.id = o.name"
)
ALIVE = (
    "SELECT count(*) FILTER (WHERE e.requested_bytes <> l.bytes) FROM memory_event AS e, LATERAL ("
    "SELECT coalesce(sum(size_bytes), 0) AS bytes FROM allocation_record AS a WHERE a.allocation_id <= e.seq "
    "AND (a.freed_seq IS NULL OR a.freed_seq > e.seq)) AS l"
)


def told(steps: list[tuple[str, int, int]]) -> Story:
    """The story of these actions; what cannot be done is left out."""
    story = Story(base=64 * MB)
    live = [story.malloc("aten::first", 512)]  # of a graph engine alone there is no sum
    waiting: list[Block] = []
    graph: list[Block] = []
    for number, (action, size, gap) in enumerate(steps):
        story.gap = gap
        if action == "malloc":
            live.append(story.malloc(f"aten::op{size}", size * 512, stream=90 + size % 2))
        elif action == "free" and live:
            story.free(live.pop(size % len(live)))
        elif action == "wait" and live:
            waiting.append(live.pop(size % len(live)))
            story.free(waiting[-1], waits=True)
        elif action == "back" and waiting:
            story.give_back(waiting.pop(0))
        elif action == "older":
            story.free_older(size * 7000)
        elif action == "ge":
            graph.append(story.ge_malloc(f"Conv{number}", size * 3000))
        elif action == "ge_free" and graph:
            story.ge_free(graph.pop())
        elif action == "workspace":
            story.grow_workspace(size * 999)
    return story


@pytest.fixture(scope="module")
def database() -> Any:
    with empty_database() as connection:
        yield connection


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: tuple((value is None, value) for value in row))


@pytest.mark.parametrize("form", ["db", "csv"])
@examples(0.25)
@given(steps=STEPS)
def test_any_story_comes_back(
    database: duckdb.DuckDBPyConnection, form: str, steps: list[tuple[str, int, int]]
) -> None:
    story = told(steps)
    clear(database)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if form == "db":
            write_database(story, folder / "x.db")
        else:
            write_csvs(story, folder)
        reader = FORMATS["mindstudio"]
        path = folder / ("x.db" if form == "db" else "memory_record.csv")
        [recording] = reader.open(reader.files(path))
        store_parts(database, recording, Identity(SESSION, 0, 0))
    assert in_order(database.execute(RECORDS).fetchall()) == in_order(story.told(with_apps=False))
    rows = [block.row(0) for block in story.blocks]
    assert in_order(database.execute(BLOCKS).fetchall()) == in_order(rows)
    assert database.execute(ALIVE).fetchone() == (0,)
