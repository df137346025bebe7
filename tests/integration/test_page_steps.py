"""The page's answers about steps: who grows, by how much, and which line keeps its blocks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from constructed import SESSION, RankLog, empty_database, store_logs, store_rows
from page_server import PageClient, served_page
from page_steps_story import (
    LEAK_BYTES,
    LEAKING_RANK,
    MIB,
    RANKS,
    RING_STEPS,
    STEPS,
    frames,
    make_story,
    story_logs,
)
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.server import aggregator as server
from rankmem_protos.errors import Code, RankmemError


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("steps") / "story.duckdb"
    make_story(path)
    return path


@pytest.fixture(scope="module")
def client(story: Path) -> Iterator[PageClient]:
    with served_page(story) as served:
        yield served


def ask(client: PageClient, route: str, **parameters: Any) -> list[dict[str, Any]]:
    return list(client.ask(f"s/{SESSION}/{route}", **parameters).to_pylist())


def facts(client: PageClient, route: str, **parameters: Any) -> dict[str, Any]:
    return client.facts(f"s/{SESSION}/{route}", **parameters)


def test_the_story_has_a_block_for_each_of_its_allocations() -> None:
    for log in story_logs():
        assert len(log.allocations) == sum(event["action"] == "alloc" for event in log.events)


def test_the_steps_of_a_rank_are_the_command_lines(client: PageClient, story: Path) -> None:
    rows = ask(client, "steps", rank=3)
    origin_ns = int(facts(client, "steps", rank=3)["origin_ns"])
    with connect(story) as queries:
        expected = queries.steps(SESSION, rank=3).to_pylist()
    for row in expected:
        for name in ("started_ns", "ended_ns", "peak_time_ns"):
            row[name] = None if row[name] is None else row[name] - origin_ns
    assert rows == expected
    assert len(rows) == STEPS


def test_the_last_steps_are_kept_where_there_are_more_than_asked_for(client: PageClient) -> None:
    assert [row["step"] for row in ask(client, "steps", rank=3, limit=3)] == [21, 22, 23]
    told = facts(client, "steps", rank=3, limit=3)
    assert (told["num_rows"], told["exact"]) == (STEPS, False)


@pytest.mark.parametrize("figure", ["peak", "end", "growth"])
def test_each_cell_is_the_step_of_the_base_tables(client: PageClient, story: Path, figure: str) -> None:
    column = "peak_bytes" if figure == "peak" else "last_bytes"
    with duckdb.connect(str(story), read_only=True) as connection:
        found = connection.execute(f"SELECT rank, step, {column} FROM step_bucket ORDER BY ALL").fetchall()
    expected = np.array([value for _, _, value in found]).reshape(RANKS, STEPS)
    if figure == "growth":
        expected = np.diff(expected, axis=1)
    answer = client.ask(f"s/{SESSION}/step_heat", figure=figure)
    told = facts(client, "step_heat", figure=figure)
    values = np.array([row[-expected.shape[1] :] for row in answer["values"].to_pylist()])
    assert (values == expected).all()
    cells = np.array([row[-expected.shape[1] :] for row in answer["cells"].to_pylist()])
    low, high = told["low_bytes"], told["high_bytes"]
    assert (cells == 1 + (expected.clip(low, high) - low) * 254 // (high - low)).all()
    assert answer["cells"].to_pylist()[0][0] == (0 if figure == "growth" else cells[0][0])
    assert told["first_steps"] == told["last_steps"] == list(range(STEPS))


def test_what_leaks_is_what_rankmem_leaks_says_line_by_line(client: PageClient, story: Path) -> None:
    with connect(story) as queries:
        expected = queries.leaks(SESSION)
    answer = client.ask(f"s/{SESSION}/insight/leaks")
    assert answer.to_pylist() == expected.rows.to_pylist()
    told = facts(client, "insight/leaks")["insight"]
    assert (told["verdict"], told["sentence"]) == (expected.verdict, expected.sentence)
    assert told["certainty"] == expected.certainty == "suspected", "24 steps are few"
    assert told["figures"] == json.loads(json.dumps(dict(expected.figures)))
    (line,) = answer.to_pylist()
    assert (line["line"], line["bytes_per_step"]) == ("metrics.py:44", LEAK_BYTES)
    (device,) = told["figures"]["devices"]
    assert (device["rank"], device["bytes_per_step"]) == (LEAKING_RANK, LEAK_BYTES)


def test_more_steps_than_bins_are_pooled_by_their_highest_and_their_last(client: PageClient) -> None:
    one = {row["rank"]: row["values"] for row in ask(client, "step_heat", figure="peak")}
    few = ask(client, "step_heat", figure="peak", bins=5)
    ends = {row["rank"]: row["values"] for row in ask(client, "step_heat", figure="end")}
    pooled_ends = ask(client, "step_heat", figure="end", bins=5)
    told = facts(client, "step_heat", figure="peak", bins=5)
    spans = list(zip(told["first_steps"], told["last_steps"], strict=True))
    assert len(spans) == 5
    assert (spans[0][0], spans[-1][1]) == (0, STEPS - 1)
    assert not told["exact"]
    for row in few:
        assert row["values"] == [max(one[row["rank"]][first : last + 1]) for first, last in spans]
    for row in pooled_ends:
        assert row["values"] == [ends[row["rank"]][last] for _, last in spans]


def test_a_bin_shows_what_its_last_step_left_not_the_most(tmp_path: Path) -> None:
    log = RankLog()
    for step in range(6):
        log.alloc(f"x{step}", 100 if step % 2 == 0 else 1, at=100 * step)
        if step % 2:
            log.free(f"x{step - 1}", at=100 * step + 1)
        log.step_ends(step, at=100 * step + 50)
        if step == 3:
            log.alloc("more", 5, at=100 * step + 60)
            log.step_ends(step, at=100 * step + 70, optimizer="Adam")  # a step that two optimizers end
    with empty_database(str(tmp_path / "falls.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "falls.duckdb") as client:
        assert [row["values"] for row in ask(client, "step_heat", figure="end", bins=3)] == [[1, 7, 8]]
        (own,) = ask(client, "step_heat", figure="end")
        assert own["values"] == [row["end_bytes"] for row in ask(client, "steps", rank=0)]
        assert facts(client, "insight/leaks")["insight"]["verdict"] == "cannot tell", "six steps are too few"


def kept_oracle(rank: int, keep: int, since: int) -> dict[tuple[str, int], tuple[int, int, int, int]]:
    """By line: bytes alive at the end, bytes kept in all, and their blocks: step by step, block by block."""
    (log,) = [log for log in story_logs() if log.rank == rank]
    ends = [row["seq"] for row in log.steps]
    lines = {
        row["stack_id"]: (row["file_path"], row["line_number"]) for row in frames() if not row["ordering"]
    }
    found: dict[tuple[str, int], Counter[str]] = {}
    for block in log.allocations.values():
        made = next((step for step, end in enumerate(ends) if block["allocation_id"] <= end), None)
        if made is None or made < since or made + keep >= len(ends):
            continue
        gone = block.get("freed_seq", float("inf"))
        if gone <= ends[made + keep]:
            continue
        line = lines[block.get("forward_stack_id") or block["stack_id"]]
        count = found.setdefault(line, Counter())
        count.update(kept=block["size_bytes"], kept_blocks=1)
        if gone > ends[-1]:
            count.update(alive=block["size_bytes"], alive_blocks=1)
    return {line: (n["alive"], n["alive_blocks"], n["kept"], n["kept_blocks"]) for line, n in found.items()}


@pytest.mark.parametrize(("rank", "keep", "since"), [(LEAKING_RANK, 4, 5), (0, 1, 0), (LEAKING_RANK, 2, 0)])
def test_what_stays_is_what_a_walk_over_all_blocks_finds(
    client: PageClient, rank: int, keep: int, since: int
) -> None:
    rows = ask(client, "step_kept", rank=rank, keep=keep, since=since)
    names = ("alive_bytes", "alive_blocks", "kept_bytes", "kept_blocks")
    found = {row["group_name"]: tuple(row[name] for name in names) for row in rows}
    expected = kept_oracle(rank, keep, since)
    assert found == {f"{path}:{line}": figures for (path, line), figures in expected.items()}
    assert found, "nothing was compared"


@pytest.mark.parametrize(
    ("asked", "ranks"),
    [({"ranks": "0,5,9"}, (0, 5, 9)), ({"group": "pp=1"}, (4, 5, 6, 7)), ({"group": "all"}, range(RANKS))],
)
def test_what_stays_on_several_ranks_is_the_sum_of_what_stays_on_each(
    client: PageClient, asked: dict[str, str], ranks: Iterable[int]
) -> None:
    expected: dict[tuple[str, int], Counter[str]] = {}
    names = ("alive_bytes", "alive_blocks", "kept_bytes", "kept_blocks")
    for rank in ranks:
        for line, figures in kept_oracle(rank, 2, 3).items():
            expected.setdefault(line, Counter()).update(dict(zip(names, figures, strict=True)), num_ranks=1)
    rows = ask(client, "step_kept", keep=2, since=3, **asked)
    found = {row["group_name"]: {name: row[name] for name in (*names, "num_ranks")} for row in rows}
    assert found == {
        f"{path}:{line}": {name: count[name] for name in (*names, "num_ranks")}
        for (path, line), count in expected.items()
    }
    told = facts(client, "step_kept", **asked)
    assert (told["ranks"], told["rank"]) == (len(list(ranks)), None)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"ranks": "0,5", "group": "pp=1"}, Code.INVALID),
        ({"ranks": "0,99"}, Code.NOT_FOUND),
        ({"group": "pp=9"}, Code.NOT_FOUND),
        ({"group": "xx=9"}, Code.INVALID),
        ({"group": "pp=1", "attempt": 4}, Code.NOT_FOUND),
    ],
)
def test_ranks_that_are_not_there_are_refused(client: PageClient, asked: dict[str, str], code: Code) -> None:
    with pytest.raises(RankmemError) as refused:
        ask(client, "step_kept", **asked)
    assert refused.value.code is code
    assert refused.value.hint


def test_the_leaking_line_of_the_leaking_rank_comes_first_without_being_asked_for(client: PageClient) -> None:
    for keep in (1, 2, 4):
        first = ask(client, "step_kept", keep=keep)[0]
        assert (first["group_name"], first["function"]) == ("metrics.py:44", "log_activations")
        assert first["alive_bytes"] == first["kept_bytes"] == first["looked_at"] * LEAK_BYTES
    told = facts(client, "step_kept")
    assert (told["rank"], told["grows_most"]) == (LEAKING_RANK, True)
    assert facts(client, "steps")["rank"] == LEAKING_RANK


def test_a_ring_is_no_leak(client: PageClient) -> None:
    def lines(keep: int) -> set[str]:
        return {row["group_name"] for row in ask(client, "step_kept", rank=0, keep=keep)}

    assert lines(RING_STEPS - 1) == {"data.py:12"}
    assert lines(RING_STEPS) == set()


@pytest.mark.parametrize(
    ("by", "first"), [("operator", "aten::clone"), ("category", "unknown"), ("phase", "other")]
)
def test_what_stays_is_grouped_as_asked(client: PageClient, by: str, first: str) -> None:
    rows = ask(client, "step_kept", by=by)
    assert rows[0]["group_name"] == first
    assert rows[0]["function"] is None


def test_the_statements_shown_give_the_rows_by_themselves(client: PageClient, story: Path) -> None:
    with connect(story) as queries:
        kept = client.ask(f"s/{SESSION}/step_kept", by="operator", keep=1)
        assert queries.sql(facts(client, "step_kept", by="operator", keep=1)["sql"]).equals(
            kept.replace_schema_metadata()
        )
        cells = queries.sql(facts(client, "step_heat", figure="peak")["sql"])
    values = [row["values"] for row in ask(client, "step_heat", figure="peak")]
    assert cells["peak_bytes"].to_pylist() == [value for row in values for value in row]


def test_frees_told_later_and_meanings_that_change_count(tmp_path: Path) -> None:
    log = RankLog()
    for step in range(12):
        at = 100 * step
        log.alloc(f"kept{step}", 10, at=at, category="unknown", operator="aten::clone")
        log.means(f"kept{step}", "activation", at=at + 1)
        log.alloc(f"late{step}", 1000, at=at + 2, category="temporary", operator="aten::mm")
        if step >= 1:
            log.free(f"late{step - 1}", at=at + 3, told_later=True)
        log.step_ends(step, at=at + 50)
    with empty_database(str(tmp_path / "later.duckdb")) as connection:
        store_logs(connection, [log])
        store_rows(connection, "stack_frame", frames())
    with served_page(tmp_path / "later.duckdb") as client:
        (row,) = ask(client, "step_kept", by="category", keep=1)
        assert (row["group_name"], row["alive_bytes"], row["looked_at"]) == ("activation", 90, 9)
        assert facts(client, "step_kept", by="category", keep=1)["since"] == 2


def test_the_last_attempt_counts_unless_another_is_asked_for(tmp_path: Path) -> None:
    logs = []
    for attempt, size in ((0, 7 * MIB), (1, 3 * MIB)):
        log = RankLog(attempt=attempt, started=attempt * 10_000, ended=attempt * 10_000 + 5000)
        for step in range(12):
            log.alloc(f"x{step}", size, at=log.started + 100 * step, operator="aten::clone")
            log.step_ends(step, at=log.started + 100 * step + 50)
        logs.append(log)
    with empty_database(str(tmp_path / "two.duckdb")) as connection:
        store_logs(connection, logs)
    with served_page(tmp_path / "two.duckdb") as client:
        assert ask(client, "step_heat", figure="end")[0]["values"][0] == 3 * MIB
        assert ask(client, "step_heat", figure="end", attempt=0)[0]["values"][0] == 7 * MIB
        told = facts(client, "step_kept")
        assert (told["attempt"], told["grows_most"]) == (1, True)
        for attempt, size in ((0, 7 * MIB), (1, 3 * MIB)):
            steps = ask(client, "steps", attempt=attempt)
            assert {row["attempt"] for row in steps} == {attempt}
            assert [row["end_bytes"] for row in steps] == [size * (step + 1) for step in range(12)]
            for chosen in ({"rank": 0}, {"ranks": "0"}, {"group": "all"}):
                (kept,) = ask(client, "step_kept", attempt=attempt, keep=1, since=0, by="category", **chosen)
                assert kept["alive_bytes"] == 11 * size
        assert len(ask(client, "steps", rank=0)) == 24
        with connect(tmp_path / "two.duckdb") as queries:
            shown = queries.sql(facts(client, "steps", rank=0, attempt=0)["sql"])
        assert shown["step"].to_pylist() == list(range(12))
        assert {row["attempt"] for row in ask(client, "steps", rank=0)} == {0, 1}
        first = ask(client, "steps", rank=0, attempt=0)
        assert first == [row for row in ask(client, "steps", rank=0) if row["attempt"] == 0] != []


def test_a_session_without_steps_says_so(tmp_path: Path) -> None:
    log = RankLog()
    log.alloc("x", 5 * MIB, at=10)
    with empty_database(str(tmp_path / "none.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "none.duckdb") as client:
        assert ask(client, "step_heat", figure="peak") == []
        assert ask(client, "steps", rank=0) == []
        assert ask(client, "steps") == []
        assert ask(client, "step_kept") == []
        assert facts(client, "step_kept")["last_step"] is None
    with empty_database(str(tmp_path / "empty.duckdb")) as connection:
        store_logs(connection, [RankLog()])
    with served_page(tmp_path / "empty.duckdb") as client:
        with pytest.raises(RankmemError, match="no rank has events") as refused:
            ask(client, "step_kept")
        assert refused.value.code is Code.NOT_FOUND


@pytest.mark.long
def test_an_aggregator_answers_as_the_file_does(tmp_path: Path) -> None:
    path = tmp_path / "story.duckdb"
    make_story(path, ranks=3, steps=12)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("peak", {}),
        ("peak_held", {"of": "host", "by": "line", "groups": 2}),
        ("steps", {}),
        ("step_heat", {"figure": "growth"}),
        ("step_kept", {"keep": 1}),
        ("step_kept", {"keep": 1, "by": "category", "rank": 1}),
        ("fit", {"size_gib": 3}),
    ]
    with served_page(path) as client:
        local = [client.ask(f"s/{SESSION}/{route}", **given).to_pylist() for route, given in asked]
    config = AggregatorConfig(database_path=path, listen="127.0.0.1:0")
    with server.open(config) as running, served_page(running.address) as client:
        remote = [client.ask(f"s/{SESSION}/{route}", **given).to_pylist() for route, given in asked]
    assert remote == local
    assert all(local), "each has rows"
