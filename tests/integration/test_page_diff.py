"""Two sides compared: equal to plain SQL over the base tables, empty against itself, and antisymmetric."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from constructed import BASE_NS, SESSION, RankLog, empty_database, store_logs
from page_server import PageClient, served_page
from rankmem_aggregator.page.answers import flame as flame_answers
from rankmem_aggregator.page.job_shares import PEAK_S
from rankmem_aggregator.page.pool import QUESTION_S
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.query.local import LocalQueries
from rankmem_aggregator.sql import page_text
from rankmem_protos.errors import Code, RankmemError

SECOND = 1_000_000_000
MIB = 1 << 20
OTHER = "0SESSION0002"


def log_of(rank: int, *, session_id: str = SESSION, keeps: int = 0) -> RankLog:
    """Three steps; each makes two activations and frees one of them late; some keep a tensor a step."""
    log = RankLog(
        rank=rank,
        session_id=session_id,
        ended=20 * SECOND,
        host_uid=f"host-{rank // 2}",
        offset_ns=rank * 1000,
    )
    log.coordinates = {"pp": rank // 2}
    log.preexisting("old", 5 * MIB)
    log.alloc("weight", (8 + rank) * MIB, at=SECOND, category="parameter", operator="aten::empty")
    for step in range(3):
        at = (2 + 3 * step) * SECOND
        log.alloc(f"x{step}", 4 * MIB, at=at, category="activation", operator="aten::mm", step=step)
        log.alloc(f"y{step}", 2 * MIB, at=at + SECOND, category="activation", operator="aten::add", step=step)
        if keeps:
            log.alloc(f"k{step}", keeps, at=at + SECOND, operator="aten::clone", step=step)
        log.free(f"x{step}", at=at + 2 * SECOND, told_later=True)
        log.free(f"y{step}", at=at + 2 * SECOND)
        log.step_ends(step, at=at + 2 * SECOND + 1)
    log.means("weight", "optimizer_state", at=19 * SECOND)
    return log


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("diff") / "two.duckdb"
    logs = [log_of(rank, keeps=MIB if rank == 3 else 0) for rank in range(4)]
    logs += [log_of(rank, session_id=OTHER) for rank in range(4)]
    with empty_database(str(found)) as connection:
        store_logs(connection, logs)
    return found


@pytest.fixture(scope="module")
def client(path: Path) -> Iterator[PageClient]:
    with served_page(path) as served:
        yield served


def rows_of(client: PageClient, a: str, b: str, by: str = "category") -> dict[str, tuple[int, int]]:
    found = client.ask(f"s/{SESSION}/diff", a=a, b=b, by=by, device_type="cpu").to_pylist()
    assert all(row["difference_bytes"] == row["b_bytes"] - row["a_bytes"] for row in found)
    return {row["group_name"]: (row["a_bytes"], row["b_bytes"]) for row in found}


SIDES = [
    "/3/peak", "/all/peak", "/pp=1/peak", "/host=name-of-host-0/peak", "/2/job", f"/1/time={8 * SECOND}",
    "/0/seq=4", "/all/step=1", f"/3/made=0:{9 * SECOND}", f"/all/kept=0:{9 * SECOND}", f"{OTHER}/all/peak",
]  # fmt: skip


@pytest.mark.parametrize("side", SIDES)
def test_a_side_against_itself_does_not_differ(client: PageClient, side: str) -> None:
    answer = client.ask(f"s/{SESSION}/diff", a=side, b=side, device_type="cpu")
    assert facts_of(answer)["different"] == 0
    assert facts_of(answer)["a"]["bytes"] > 0
    assert set(answer["difference_bytes"].to_pylist()) == {0}


@pytest.mark.parametrize("by", ["category", "operator", "step"])
def test_the_sides_turned_round_give_the_same_with_another_sign(client: PageClient, by: str) -> None:
    for a, b in itertools.pairwise(SIDES):
        there, back = rows_of(client, a, b, by), rows_of(client, b, a, by)
        assert {name: (y, x) for name, (x, y) in there.items()} == back


def test_a_rank_that_keeps_a_tensor_each_step_differs_by_these(client: PageClient) -> None:
    differs = {
        name: b - a for name, (a, b) in rows_of(client, "/2/peak", "/3/peak", "operator").items() if a != b
    }
    assert differs == {"aten::clone": 3 * MIB, "aten::empty": MIB}


def test_a_job_against_one_without_the_leak_differs_by_the_leak_alone(client: PageClient) -> None:
    differs = {
        n: b - a
        for n, (a, b) in rows_of(client, "/all/peak", f"{OTHER}/all/peak", "operator").items()
        if a != b
    }
    assert differs == {"aten::clone": -3 * MIB}


def naive(path: Path, alive: str, ranks: str = "true") -> dict[str, int]:
    """Bytes by category by one plain statement over the base tables; ``alive`` may name seq and times."""
    statement = f"""
        WITH ended AS (
            SELECT r.*, coalesce(r.freed_seq, e.freed_seq) AS end_seq,
                coalesce(r.freed_ns, e.freed_ns) + i.clock_offset_ns AS end_ns,
                r.allocated_ns + i.clock_offset_ns AS begin_ns, i.pp
            FROM allocation_record AS r
            LEFT JOIN allocation_end AS e USING (session_id, attempt, rank, device, allocation_id)
            JOIN rank_info AS i USING (session_id, attempt, rank)
            WHERE r.session_id = '{SESSION}'
        )
        SELECT CASE WHEN preexisting THEN 'before the recording' ELSE coalesce(category, 'unknown') END
            AS name, sum(size_bytes)::BIGINT
        FROM ended WHERE ({alive}) AND ({ranks}) GROUP BY name"""
    with duckdb.connect(str(path), read_only=True) as connection:
        return dict(connection.execute(statement).fetchall())


def test_an_instant_equals_plain_sql(client: PageClient, path: Path) -> None:
    at = BASE_NS + 8 * SECOND  # the session's start is BASE_NS; rank 3 is 3 us off
    held = naive(path, f"(preexisting OR begin_ns <= {at}) AND (end_ns IS NULL OR end_ns > {at})", "pp = 1")
    found = rows_of(client, f"/pp=1/time={8 * SECOND}", f"/pp=1/time={8 * SECOND}")
    assert {name: a for name, (a, _) in found.items()} == held


def test_a_range_equals_plain_sql(client: PageClient, path: Path) -> None:
    first, last = BASE_NS + 3 * SECOND, BASE_NS + 9 * SECOND
    inside = f"NOT preexisting AND begin_ns BETWEEN {first} AND {last}"
    spec = f"={3 * SECOND}:{9 * SECOND}"
    made, kept = zip(
        *rows_of(client, f"/all/made{spec}", f"/all/kept{spec}", "operator").values(), strict=True
    )
    assert sum(made) == sum(naive(path, inside).values())
    assert sum(kept) == sum(naive(path, f"{inside} AND (end_ns IS NULL OR end_ns > {last})").values())


def test_the_panels_statement_gives_its_rows(client: PageClient, path: Path) -> None:
    from rankmem_aggregator import connect

    for a, b in itertools.pairwise(SIDES):
        answer = client.ask(f"s/{SESSION}/diff", a=a, b=b, device_type="cpu")
        with connect(path) as queries:
            assert queries.sql(facts_of(answer)["sql"]).to_pylist() == answer.to_pylist()


@pytest.mark.parametrize(
    "side",
    ["", "/", "//", "/all/peak/", "/-1/peak", "/all/seq=3", "/all/time=", "/all/time=1e3", "/all/made=5:5",
     "/xx=1/peak", "/pp=/peak", "/all/made=9:1", "/all/peak=1", f"/{2**63}/peak", "/all/step=-1",
     "/host=\0/peak", "/all/" + "p" * 7000],
)  # fmt: skip
def test_a_side_that_is_none_is_refused_with_its_value(client: PageClient, side: str) -> None:
    with pytest.raises(RankmemError) as refused:
        client.ask(f"s/{SESSION}/diff", a=side, b="/all/peak")
    assert refused.value.code is Code.INVALID
    assert refused.value.hint


@pytest.mark.parametrize("side", ["/99/peak", "/pp=99/peak", "NOSESSION/all/peak", f"{OTHER}/99/step=1"])
def test_ranks_or_a_session_that_do_not_exist_are_not_found(client: PageClient, side: str) -> None:
    with pytest.raises(RankmemError) as refused:
        client.ask(f"s/{SESSION}/diff", a=side, b="/all/peak")
    assert refused.value.code is Code.NOT_FOUND


def facts(client: PageClient, side: str) -> dict[str, Any]:
    return dict(client.facts(f"s/{SESSION}/diff", a=side, b=side, device_type="cpu")["a"])


def test_a_side_says_how_many_ranks_it_has(client: PageClient) -> None:
    assert facts(client, "/all/peak")["num_ranks"] == 4
    assert facts(client, "/pp=1/peak")["num_ranks"] == 2
    assert facts(client, "/all/step=9") | {"session": ""} == {
        "session": "",
        "bytes": 0,
        "blocks": 0,
        "num_ranks": 0,
    }


def flame(client: PageClient, a: str, b: str, by: str = "operator") -> dict[tuple[str, ...], tuple[int, int]]:
    rows = client.ask(
        f"s/{SESSION}/diff_flame", a=a, b=b, by=by, device_type="cpu", min_share=0.0005
    ).to_pylist()
    paths: list[tuple[str, ...]] = []
    for row in rows:
        paths.append((*paths[row["parent"]], row["name"]) if row["parent"] >= 0 else ())
    return {path: (row["a_bytes"], row["b_bytes"]) for path, row in zip(paths, rows, strict=True)}


def test_the_flame_graph_of_both_sides_adds_up_to_the_bars(client: PageClient) -> None:
    for a, b in itertools.pairwise(SIDES):
        nodes = flame(client, a, b)
        bars = rows_of(client, a, b, "operator")
        assert nodes[()] == tuple(sum(bar[i] for bar in bars.values()) for i in (0, 1)), (a, b)
        for name, pair in bars.items():
            if name.startswith("aten"):
                assert nodes[(name,)] == pair, (a, b, name)


def test_the_flame_graph_turned_round_has_the_sides_exchanged(client: PageClient) -> None:
    for a, b in itertools.pairwise(SIDES):
        there, back = flame(client, a, b), flame(client, b, a)
        assert {path: (y, x) for path, (x, y) in there.items()} == back
    for a, b in flame(client, "/all/peak", "/all/peak").values():
        assert a == b


def test_sides_without_such_ranks_are_not_found_in_the_flame_graph_either(client: PageClient) -> None:
    with pytest.raises(RankmemError) as refused:
        client.ask(f"s/{SESSION}/diff_flame", a="/99/peak", b="/all/peak")
    assert refused.value.code is Code.NOT_FOUND


def blocks_only_in_one(client: PageClient, a: str, b: str) -> dict[tuple[Any, ...], int]:
    answer = client.ask(f"s/{SESSION}/diff_blocks", a=a, b=b, device_type="cpu", limit=1000)
    rows = answer.to_pylist()
    facts = facts_of(answer)
    assert facts["num_kinds"] == len(rows)
    assert facts["only_a_blocks"] == sum(row["only_a"] for row in rows)
    assert facts["only_b_bytes"] - facts["only_a_bytes"] == sum(row["difference_bytes"] for row in rows)
    assert all(bool(row["only_a"]) != bool(row["only_b"]) for row in rows)
    return {
        (row["operator"], row["category"], row["size_bytes"]): row["only_b"] - row["only_a"] for row in rows
    }


def test_blocks_only_in_one_are_those_without_a_like_on_the_other(client: PageClient) -> None:
    assert blocks_only_in_one(client, "/3/peak", f"{OTHER}/3/peak") == {("aten::clone", "unknown", MIB): -3}
    # Weights of 8, 9 and 10 MiB; the rest is alike.
    assert blocks_only_in_one(client, f"/0/time={SECOND + 5000}", f"/2/time={SECOND + 5000}") == {
        ("aten::empty", "parameter", 8 * MIB): -1,
        ("aten::empty", "parameter", 10 * MIB): 1,
    }
    # Nothing of the steps is left at the end.
    assert blocks_only_in_one(client, f"/0/time={2 * SECOND + 5000}", f"/0/time={39 * SECOND // 2}") == {
        ("aten::mm", "activation", 4 * MIB): -1
    }


@pytest.mark.parametrize(("a", "b"), list(itertools.pairwise(SIDES)))
def test_blocks_only_in_one_add_up_to_the_bars_and_turn_round(client: PageClient, a: str, b: str) -> None:
    there, back = blocks_only_in_one(client, a, b), blocks_only_in_one(client, b, a)
    assert there == {kind: -count for kind, count in back.items()}
    assert not blocks_only_in_one(client, a, a)
    bars = rows_of(client, a, b)
    expected = sum(bar[1] - bar[0] for bar in bars.values())
    assert sum(kind[2] * count for kind, count in there.items()) == expected


def test_of_many_kinds_the_largest_come_first(client: PageClient) -> None:
    answer = client.ask(f"s/{SESSION}/diff_blocks", a="/0/peak", b="/3/peak", device_type="cpu", limit=1)
    assert facts_of(answer)["num_kinds"] == 3
    assert answer["size_bytes"].to_pylist() == [11 * MIB]
    with pytest.raises(RankmemError) as refused:
        client.ask(f"s/{SESSION}/diff_blocks", a="/99/peak", b="/all/peak")
    assert refused.value.code is Code.NOT_FOUND


def test_what_several_diagrams_begin_with_is_looked_for_once(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The events of an instant, for both sides and three diagrams; the job's peak for all that need it."""
    copy = tmp_path / "copy.duckdb"
    shutil.copyfile(path, copy)
    asked: list[str] = []
    run = LocalQueries.sql

    def noted(self: LocalQueries, text: str, parameters: Any = None) -> pa.Table:
        asked.append(text)
        return run(self, text, parameters)

    monkeypatch.setattr(LocalQueries, "sql", noted)
    with served_page(copy) as client:
        for route in ("diff", "diff_blocks", "diff_flame"):
            rows = client.ask(f"s/{SESSION}/{route}", a=f"/0/time={SECOND}", b=f"/3/time={SECOND}")
            assert rows.num_rows
        assert asked.count(page_text("side_points_time")) == 1
        asked.clear()
        sides = {"a": "/all/job", "b": f"{OTHER}/all/job"}
        job = [
            ("diff", sides), ("diff_blocks", sides), ("diff_flame", sides), ("flame", {"job": "cpu"}),
            ("flame", {"job": "cpu", "by": "operator"}), ("peak", {}), ("peak_held", {}),
        ]  # fmt: skip
        for route, parameters in job:
            client.ask(f"s/{SESSION}/{route}", **parameters)
    searches = [text for text in asked if "job_peak($session)" in text and "shares" not in text]
    assert len(searches) == 2, "one for each of the two sessions"


def test_the_flame_graph_of_a_job_may_take_as_long_as_its_peak() -> None:
    [route] = [each for each in flame_answers.ROUTES if each.path == "/flame"]
    assert route.seconds(flame_answers.FlameAsked(job="cpu")) == PEAK_S
    assert route.seconds(flame_answers.FlameAsked(rank=0)) == QUESTION_S < PEAK_S
