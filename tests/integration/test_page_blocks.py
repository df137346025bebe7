"""The table of blocks: the same rows as loops over the log find, whatever is asked, page by page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from block_logs import LINES, OFFSET_NS, alive_after, frame_rows, lives, meaning, random_log
from constructed import BASE_NS, RankLog, empty_database, store_logs, store_rows
from page_answers import Answers
from rankmem_aggregator.page.answers.blocks import SORTS
from rankmem_aggregator.page.reading import facts_of
from rankmem_protos.errors import Code, RankmemError

Row = dict[str, Any]
LOGS = {rank: random_log(rank + 1, 40, rank=rank, device=f"cuda:{rank}") for rank in range(4)}
ALL = -(2**60), 2**60


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    path = str(tmp_path_factory.mktemp("page") / "blocks.duckdb")
    with empty_database(path) as connection:
        store_logs(connection, [*LOGS.values(), _insight_log()])
        store_rows(connection, "stack_frame", frame_rows())
    answers = Answers(path)
    yield answers
    answers.close()


def _insight_log() -> RankLog:
    """Of rank 9: MindStudio Insight's example of a range from 100 to 200, by hand."""
    log = RankLog(rank=9, ended=10_000, offset_ns=OFFSET_NS)
    log.preexisting("older", 1_000, device="npu:0")
    for name, size, at in (("before", 10, 50), ("kept", 300, 100), ("gone", 50, 120), ("late", 70, 200)):
        log.alloc(name, size, at=at, device="npu:0")
        if name == "kept":
            log.free("before", at=110)
        if name == "gone":
            log.free("gone", at=180)
    log.free("late", at=201)
    log.alloc("after", 5, at=250, device="npu:0")
    return log


def _since_start(block: Row, name: str) -> int | None:
    value = block.get(name)
    return None if value is None else value - OFFSET_NS


def _in(value: int | None, low: int | None, high: int | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


def _expected(log: RankLog, asked: Row) -> list[Row]:
    """The blocks that fit, as loops over the log find them, with what a table shows of them."""
    low, high = asked.get("from_"), asked.get("to")
    low, high = ALL[0] if low is None else low, ALL[1] if high is None else high
    if asked.get("which", "alive") == "alive":
        found = alive_after(log, asked["seq"])
        at = max(e["time_ns"] for e in log.events if e["seq"] <= asked["seq"]) - BASE_NS
    else:
        known = high + BASE_NS
        found = [b | {"category": meaning(log, b, lambda row: row["time_ns"] <= known)} for b in lives(log)]
        at = log.events[-1]["time_ns"] - BASE_NS if asked.get("to") is None else high
    rows = []
    for block in found:
        made, freed = _since_start(block, "allocated_ns"), _since_start(block, "freed_ns")
        was_made = not block["preexisting"] and made is not None and low <= made <= high
        fits = {
            "alive": True,
            "made": was_made,
            "freed": freed is not None and low <= freed <= high,
            "touching": (made is None or made <= high) and (freed is None or freed >= low),
            "kept": was_made and (freed is None or freed > high),
        }
        line = LINES.get(block.get("stack_id") or 0)
        forward_line = LINES.get(block.get("forward_stack_id") or 0)
        end = at if freed is None else min(at, freed)
        row = block | {
            "line": line,
            "forward_line": forward_line,
            "allocated": made,
            "freed": freed,
            "free_requested": _since_start(block, "free_requested_ns"),
            "age": None if made is None else end - made,
            "life": None if made is None or freed is None else freed - made,
            "size": block["size_bytes"],
            "id": block["allocation_id"],
            "stack": block.get("stack_id"),
        }
        texts = [row[n] for n in ("operator", "module", "category", "line", "forward_line") if row[n]]
        words = asked.get("q", "").lower().split()
        if (
            fits[asked.get("which", "alive")]
            and _in(row["size"], asked.get("size_min"), asked.get("size_max"))
            and _in(row["age"], asked.get("age_min"), asked.get("age_max"))
            and _in(made, asked.get("made_from"), asked.get("made_to"))
            and _in(freed, asked.get("freed_from"), asked.get("freed_to"))
            and all(any(word in text.lower() for text in texts) for word in words)
        ):
            rows.append(row)
    name = asked.get("sort", "-size").removeprefix("-")
    backward = asked.get("sort", "-size").startswith("-")
    rows.sort(key=lambda row: row["id"])
    known_rows = [row for row in rows if row.get(name) is not None]
    unknown_rows = [row for row in rows if row.get(name) is None]
    known_rows.sort(
        key=lambda row: row[name].encode() if isinstance(row[name], str) else row[name], reverse=backward
    )
    if backward:  # equals stay by id
        values = list(dict.fromkeys(row[name] for row in known_rows))
        known_rows = [
            row
            for value in values
            for row in sorted((r for r in known_rows if r[name] == value), key=lambda r: r["id"])
        ]
    return known_rows + unknown_rows


def _pages(page: Answers, asked: Row) -> list[Row]:
    """All pages, one after the other."""
    rows: list[Row] = []
    after = None
    for _ in range(20):
        answer = page.ask("blocks", **asked, after=after)
        rows += answer.to_pylist()
        after = facts_of(answer)["after"]
        if after is None:
            return rows
        assert answer.num_rows == asked["limit"]
    raise AssertionError("it never ends")


_small = st.none() | st.integers(0, 450)
_asked = st.fixed_dictionaries(
    {
        "rank": st.sampled_from(sorted(LOGS)),
        "sort": st.sampled_from(SORTS),
        "limit": st.sampled_from((10, 11, 40)),
    },
    optional={
        "q": st.sampled_from(("mm", "ADD net", "layers.1", "src/model", "torch", "activation mm", "nothing")),
        "size_min": st.sampled_from((64, 65, 512)),
        "size_max": st.sampled_from((64, 512, 4095)),
        "age_min": st.integers(0, 200),
        "age_max": st.integers(0, 400),
        "made_from": st.integers(0, 300),
        "made_to": st.integers(0, 400),
        "freed_from": st.integers(0, 300),
        "freed_to": st.integers(0, 400),
    },
)
_life = st.one_of(
    st.fixed_dictionaries({"which": st.just("alive"), "seq": st.integers(0, 80)}),
    st.tuples(st.sampled_from(("made", "freed", "touching", "kept")), _small, _small).map(
        lambda given: {
            "which": given[0],
            "from_": given[1],
            "to": None if given[2] is None else (given[1] or 0) + 1 + given[2],
        }
    ),
)


@example({"rank": 0, "sort": "-free_requested", "limit": 10}, {"which": "touching"})
@example({"rank": 1, "sort": "module", "limit": 10}, {"which": "touching"})
@example({"rank": 2, "sort": "-module", "limit": 10}, {"which": "touching"})
@given(_asked, _life)
def test_pages_have_every_block_that_fits_once_in_any_order(page: Answers, asked: Row, life: Row) -> None:
    asked = {name: value for name, value in (asked | life).items() if value is not None}
    expected = _expected(LOGS[asked["rank"]], asked)
    rows = _pages(page, asked)
    assert [row["allocation_id"] for row in rows] == [row["id"] for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        same = (
            *("size_bytes", "category", "module", "phase", "step", "line", "forward_line", "annotation"),
            *("attribution", "like_id"),
        )
        assert {name: row[name] for name in same} == {name: wanted.get(name) for name in same}
        assert (row["allocated_ns"], row["freed_ns"]) == (wanted["allocated"], wanted["freed"])
        assert (row["age_ns"], row["life_ns"]) == (wanted["age"], wanted["life"])
    del asked["sort"], asked["limit"]
    total = page.ask("blocks/total", **asked).to_pylist()[0]
    sizes = [row["size_bytes"] for row in rows]
    assert total == {
        "num_blocks": len(sizes),
        "bytes": sum(sizes),
        "largest_bytes": max(sizes, default=None),
        "smallest_bytes": min(sizes, default=None),
    }


@pytest.mark.parametrize("rank", sorted(LOGS))
def test_what_is_alive_adds_up_to_the_curve_at_every_event(page: Answers, rank: int) -> None:
    for event in LOGS[rank].events[::7]:
        asked = {"rank": rank, "seq": event["seq"]}
        total = page.ask("blocks/total", **asked)
        assert total["bytes"][0].as_py() == event["requested_bytes"] == facts_of(total)["held_bytes"]


def test_without_a_position_it_is_the_peak(page: Answers) -> None:
    log = LOGS[1]
    peak = max(log.events, key=lambda event: (event["requested_bytes"], -event["seq"]))
    facts = page.facts("blocks", rank=1)
    assert (facts["seq"], facts["held_bytes"]) == (peak["seq"], peak["requested_bytes"])


def test_kept_is_memrays_leaked_and_has_insights_three_figures(page: Answers) -> None:
    """Made within the range and not freed by its end; unreleased in all, the largest, the smallest."""
    row = page.ask("blocks/total", rank=9, which="kept", from_=100, to=200).to_pylist()[0]
    assert row == {"num_blocks": 2, "bytes": 370, "largest_bytes": 300, "smallest_bytes": 70}
    rows = page.ask("blocks", rank=9, which="kept", from_=100, to=201).to_pylist()
    assert [row["size_bytes"] for row in rows] == [300]


@pytest.mark.parametrize(
    ("pick", "fits"),
    [
        ("category:activation;category:input", lambda row: row["category"] in ("activation", "input")),
        ("operator:", lambda row: row["operator"] is None and not row["preexisting"]),
        ("operator:before%20the%20recording", lambda row: row["operator"] is None and row["preexisting"]),
        ("module:net.layers.1", lambda row: row["module"] == "net.layers.1"),
        ("within:net.layers.1", lambda row: row["module"] in ("net.layers.1", "net.layers.1.mlp")),
        ("step:0;phase:forward", lambda row: row.get("step") == 0 and row["phase"] == "forward"),
        ("stream:7", lambda row: row.get("stream") == 7),
        ("component:pytorch", lambda row: True),
        ("annotation:a%3Bb%3Ac", lambda row: row.get("annotation") == "a;b:c"),
        ("block:0", lambda row: row["id"] == 0),
        ("stack:2", lambda row: 2 in (row["stack_id"], row.get("forward_stack_id"))),
        ("line:src/model.py%3A7", lambda row: _origin(row) in (2, 3)),
        ("line:", lambda row: _origin(row) is None and not row["preexisting"]),
        ("frame:src/train.py%3A40%20main", lambda row: _origin(row) in (1, 2, 3)),
        ("frame:src/train.py%3A40%20main;line:src/train.py%3A10", lambda row: _origin(row) == 1),
        ("frame:nobody", lambda row: False),
    ],
)
def test_a_pick_leaves_the_blocks_of_its_groups(page: Answers, pick: str, fits: Any) -> None:
    for rank, log in LOGS.items():
        asked = {"rank": rank, "which": "touching"}
        wanted = [row["id"] for row in _expected(log, asked) if fits(row)]
        rows = page.ask("blocks", **asked, pick=pick, limit=1000).to_pylist()
        assert [row["allocation_id"] for row in rows] == wanted
        assert page.ask("blocks/total", **asked, pick=pick)["num_blocks"][0].as_py() == len(wanted)


def _origin(row: Row) -> int | None:
    found: int | None = row.get("forward_stack_id") or row["stack_id"]
    return found


def test_the_sql_of_a_page_gives_its_rows(page: Answers) -> None:
    answer = page.ask(
        "blocks", rank=2, which="made", pick=f"line:{quote('src/model.py:7')}", limit=10, q="net"
    )
    again = page.queries.sql(facts_of(answer)["sql"])
    assert again["allocation_id"].to_pylist()[:10] == answer["allocation_id"].to_pylist()


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"after": 12345}, Code.NOT_FOUND),
        ({"limit": 9}, Code.INVALID),
        ({"limit": 1001}, Code.INVALID),
        ({"sort": "size_bytes"}, Code.INVALID),
        ({"which": "leaked"}, Code.INVALID),
        ({"which": "made", "from_": 5, "to": 5}, Code.INVALID),
        ({"q": "a b c d e"}, Code.INVALID),
        ({"pick": "colour:red"}, Code.INVALID),
        ({"rank": 77}, Code.NOT_FOUND),
    ],
)
def test_what_cannot_be_asked_is_refused_with_a_hint(page: Answers, wrong: Row, code: Code) -> None:
    with pytest.raises(RankmemError) as refused:
        page.ask("blocks", **({"rank": 0} | wrong))
    assert refused.value.code is code
    assert refused.value.hint
