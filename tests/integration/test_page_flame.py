"""Flame graphs: the root has the bytes of the curve at the same event, every node those of its blocks."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from block_logs import FRAMES, alive_after, frame_rows, random_log
from constructed import empty_database, store_logs, store_rows
from page_answers import Answers
from rankmem_aggregator.page.reading import facts_of
from rankmem_protos.errors import Code, RankmemError
from served import served

Row = dict[str, Any]
LOGS = {rank: random_log(rank + 50, 40, rank=rank, device="cuda:0") for rank in range(4)}


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "flame.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, list(LOGS.values()))
        store_rows(connection, "stack_frame", frame_rows())
    return path


@pytest.fixture(scope="module")
def page(database: Path) -> Iterator[Answers]:
    answers = Answers(database)
    yield answers
    answers.close()


def _path(block: Row, by: str) -> tuple[str, ...]:
    if by == "operator":
        names = [] if block["operator"] is None else [block["operator"]]
    elif by == "module":
        names = [] if block["module"] is None else block["module"].split(".")
    else:
        stack = block.get("forward_stack_id") or block["stack_id"]
        names = [f"{file}:{line} {function}" for file, line, function in reversed(FRAMES.get(stack or 0, []))]
    without = {"line": "no stack recorded", "module": "no module", "operator": "no operator"}[by]
    return tuple(names) or ("before the recording" if block["preexisting"] else without,)


def _drawn(answer: Any) -> dict[tuple[str, ...], tuple[int, int]]:
    """Bytes and blocks of each path of names below the root."""
    rows = answer.to_pylist()
    paths: list[tuple[str, ...]] = []
    for row in rows:
        paths.append(() if row["parent"] < 0 else (*paths[row["parent"]], row["name"]))
    assert len(set(paths)) == len(paths)
    return {path: (row["bytes"], row["blocks"]) for path, row in zip(paths, rows, strict=True)}


@given(
    st.sampled_from(sorted(LOGS)),
    st.integers(0, 70),
    st.sampled_from(("line", "module", "operator")),
    st.booleans(),
    st.booleans(),
)
def test_every_node_has_the_bytes_of_the_blocks_below_it(
    page: Answers, rank: int, seq: int, by: str, inverted: bool, category: bool
) -> None:
    answer = page.ask("flame", rank=rank, seq=seq, by=by, inverted=int(inverted), category=int(category))
    bytes_of: Counter[tuple[str, ...]] = Counter()
    blocks_of: Counter[tuple[str, ...]] = Counter()
    for block in alive_after(LOGS[rank], seq):
        path = _path(block, by)
        path = path[::-1] if inverted else path
        path = (*path, block["category"]) if category else path
        for depth in range(len(path) + 1):
            bytes_of[path[:depth]] += block["size_bytes"]
            blocks_of[path[:depth]] += 1
    expected = {path: (bytes_of[path], blocks_of[path]) for path in bytes_of}
    assert _drawn(answer) == (expected or {(): (0, 0)})


@pytest.mark.parametrize("rank", sorted(LOGS))
def test_the_root_is_the_curve_at_the_same_event(page: Answers, rank: int) -> None:
    """As memray#757 is not: its flame graph and its curve disagreed over one range."""
    for event in LOGS[rank].events[::9]:
        for by in ("line", "module", "operator"):
            answer = page.ask("flame", rank=rank, seq=event["seq"], by=by)
            assert answer["bytes"][0].as_py() == event["requested_bytes"] == facts_of(answer)["held_bytes"]


@pytest.mark.parametrize("which", ["made", "freed", "touching", "kept"])
def test_a_range_has_the_bytes_of_its_table(page: Answers, which: str) -> None:
    asked = {"rank": 2, "which": which, "from_": 30, "to": 200}
    total = page.ask("blocks/total", **asked).to_pylist()[0]
    answer = page.ask("flame", **asked)
    assert (answer["bytes"][0].as_py(), answer["blocks"][0].as_py()) == (total["bytes"], total["num_blocks"])
    assert total["num_blocks"]


def test_a_picked_frame_leaves_its_bytes(page: Answers) -> None:
    whole = _drawn(page.ask("flame", rank=1))
    wanted = sum(size for path, (size, _) in whole.items() if path and path[-1] == "src/train.py:40 main")
    assert wanted
    picked = page.ask("flame", rank=1, pick="frame:src/train.py%3A40%20main")
    assert picked["bytes"][0].as_py() == wanted


def test_several_ranks_stand_each_at_its_own_peak(page: Answers) -> None:
    answer = page.ask("flame", ranks="0,1,2,3,3")
    peaks = [max(event["requested_bytes"] for event in log.events) for log in LOGS.values()]
    assert answer["bytes"][0].as_py() == sum(peaks) == facts_of(answer)["held_bytes"]
    assert facts_of(answer)["ranks"] == 4


def test_the_job_stands_at_its_peak(page: Answers) -> None:
    answer = page.ask("flame", job="cuda")
    peak = page.queries.job_peak().to_pylist()
    assert answer["bytes"][0].as_py() == peak[0]["job_peak_bytes"] == sum(r["requested_bytes"] for r in peak)


def test_the_sql_of_a_flame_graph_gives_its_bytes(page: Answers) -> None:
    answer = page.ask("flame", rank=3, pick="operator:aten%3A%3Amm")
    again = page.queries.sql(facts_of(answer)["sql"])
    assert sum(again["bytes"].to_pylist()) == answer["bytes"][0].as_py() > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"rank": 0, "job": "cuda"},
        {"ranks": "0,1", "seq": 3},
        {"ranks": ",".join(map(str, range(65)))},
        {"rank": 0, "min_share": 0.0004},
        {"rank": 0, "by": "thread"},
        {"job": "cuda", "which": "made"},
    ],
)
def test_what_cannot_be_drawn_is_refused_with_a_hint(page: Answers, wrong: Row) -> None:
    with pytest.raises(RankmemError) as refused:
        page.ask("flame", **wrong)
    assert refused.value.code is Code.INVALID
    assert refused.value.hint


def test_a_device_type_that_no_rank_has_is_not_found(page: Answers) -> None:
    with pytest.raises(RankmemError, match="no rank has a share on npu") as refused:
        page.ask("flame", job="npu")
    assert refused.value.code is Code.NOT_FOUND
    assert "cuda" in refused.value.hint


def test_an_aggregator_answers_as_the_file_does(page: Answers, database: Path, tmp_path: Path) -> None:
    """Its sandbox allows what the statements of blocks call."""
    shutil.copy(database, tmp_path / "job.duckdb")
    asked: list[tuple[str, Row]] = [
        ("flame", {"rank": 1, "category": 1, "pick": "frame:src/train.py%3A40%20main;within:net"}),
        ("flame", {"job": "cuda"}),
        ("blocks", {"rank": 1, "q": "net mm", "sort": "-line", "pick": "line:src/model.py%3A7"}),
        ("blocks", {"rank": 1, "which": "kept", "sort": "address", "after": 0, "to": 500}),
        ("blocks/total", {"rank": 1, "which": "touching"}),
        ("inefficient", {"rank": 1, "kind": "late"}),
    ]
    with served(tmp_path) as address:
        remote = Answers(address)
        answers = [remote.ask(path, **parameters).to_pylist() for path, parameters in asked]
        remote.close()
    assert answers == [page.ask(path, **parameters).to_pylist() for path, parameters in asked]
