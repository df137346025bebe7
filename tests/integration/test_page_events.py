"""Events one by one, stacks, steps and annotations, and places to jump to: against the tables themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from busy_rank import DEVICE, busy_database
from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs
from page_reading import PageReader, page_reader
from rankmem_aggregator.page.reading import facts_of
from rankmem_protos.errors import Code, RankmemError

OFFSET_NS = 12_345
WHOSE = f"session_id = '{SESSION}' AND attempt = 0 AND rank = 1 AND device = '{DEVICE}'"
Row = dict[str, Any]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("events") / "busy.duckdb"
    busy_database(path, events=1500, seed=11)
    return path


@pytest.fixture(scope="module")
def page(database: Path) -> Iterator[PageReader]:
    with page_reader(database) as reader:
        yield reader


def asked(database: Path, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    with duckdb.connect(database, read_only=True) as connection:
        return connection.execute(statement, list(values)).fetchall()


@pytest.fixture(scope="module")
def totals(database: Path) -> list[tuple[int, int, int]]:
    """seq, time since the start, requested bytes of every event."""
    rows = asked(
        database, f"SELECT seq, time_ns, requested_bytes FROM memory_event WHERE {WHOSE} ORDER BY seq"
    )
    origin_ns = BASE_NS
    return [(seq, time_ns + OFFSET_NS - origin_ns, value) for seq, time_ns, value in rows]


@pytest.mark.parametrize(("index", "count"), [(700, 101), (3, 40), (1490, 100), (700, 1)])
def test_events_around_one_are_those_of_the_log(
    page: PageReader, totals: list[tuple[int, int, int]], index: int, count: int
) -> None:
    after = count // 2
    answer = page.ask("/events", rank=1, seq=totals[index][0], count=count)
    expected = totals[max(0, index + 1 - (count - after)) : index + 1 + after]
    assert [(row["seq"], row["time_ns"], row["requested"]) for row in answer.to_pylist()] == expected


def test_an_event_has_the_meaning_of_its_block_at_that_event(page: PageReader, database: Path) -> None:
    rows = page.ask("/events", rank=1, count=1000).to_pylist()
    statement = (
        "SELECT category, operator, module, line FROM live_at_seq(?, 0, 1, ?, ?) WHERE allocation_id = ?"
    )
    with duckdb.connect(database, read_only=True) as connection:
        for row in rows[::25]:
            alive_at = row["seq"] if row["action"] == "alloc" else row["seq"] - 1
            block = [SESSION, DEVICE, alive_at, row["allocation_id"]]
            [expected] = connection.execute(statement, block).fetchall()
            told = (row["category"], row["operator"], row["module"], row["line"])
            assert told == expected, row["seq"]


def test_only_the_actions_that_were_asked_for_are_listed(page: PageReader, database: Path) -> None:
    rows = page.ask("/events", rank=1, seq=900, count=50, actions="free_completed,oom").to_pylist()
    expected = asked(
        database,
        f"""(SELECT seq FROM memory_event WHERE {WHOSE} AND action = 'free_completed' AND seq <= 900
             ORDER BY seq DESC LIMIT 25)
            UNION ALL
            (SELECT seq FROM memory_event WHERE {WHOSE} AND action = 'free_completed' AND seq > 900
             ORDER BY seq LIMIT 25) ORDER BY 1""",
    )
    assert [(row["seq"],) for row in rows] == expected


def test_a_time_is_the_last_event_by_then(page: PageReader, totals: list[tuple[int, int, int]]) -> None:
    for at in (totals[0][1] - 5, totals[0][1], totals[400][1], totals[401][1] - 1, totals[-1][1] + 10**9):
        before = [seq for seq, time_ns, _ in totals if time_ns <= at] or [totals[0][0]]
        assert page.facts("/events", rank=1, at=at)["around"] == before[-1]
        assert page.ask("/jump", rank=1, to="time", at=at)["seq"].to_pylist() == [before[-1]]


def test_two_places_at_once_are_refused(page: PageReader) -> None:
    with pytest.raises(RankmemError, match="two places") as caught:
        page.ask("/events", rank=1, seq=4, at=5)
    assert caught.value.code is Code.INVALID


def test_a_stack_is_shown_frame_by_frame(page: PageReader, database: Path) -> None:
    rows = page.ask("/stack", stack_id=2).to_pylist()
    expected = asked(
        database,
        "SELECT ordering, file_path, line_number, function FROM stack_frame WHERE stack_id = 2 ORDER BY 1",
    )
    assert [tuple(row.values())[:4] for row in rows] == expected
    assert page.ask("/stack", stack_id=-(2**63)).num_rows == 0


def higher_after(totals: list[tuple[int, int, int]], now: int) -> int | None:
    """The first later event that stands higher, followed as long as memory rises."""
    values = [value for _, _, value in totals]
    place = next((i for i in range(now + 1, len(values)) if values[i] > values[now]), None)
    if place is None:
        return None
    best = place
    while place + 1 < len(values) and values[place + 1] >= values[place]:
        place += 1
        best = place if values[place] > values[best] else best
    return totals[best][0]


def higher_before(totals: list[tuple[int, int, int]], now: int) -> int | None:
    """The same, backwards."""
    values = [value for _, _, value in totals]
    place = next((i for i in range(now - 1, -1, -1) if values[i] > values[now]), None)
    if place is None:
        return None
    while place > 0 and values[place - 1] >= values[place]:
        place -= 1
    return totals[place][0]


def test_the_next_and_the_previous_higher_peak_are_those_of_the_events(
    page: PageReader, totals: list[tuple[int, int, int]]
) -> None:
    peak = max(range(len(totals)), key=lambda i: (totals[i][2], -i))
    for now in (0, 1, 300, 750, peak - 1, peak, peak + 1, len(totals) - 1):
        for to, expected in (
            ("next_higher", higher_after(totals, now)),
            ("previous_higher", higher_before(totals, now)),
        ):
            found = page.ask("/jump", rank=1, to=to, seq=totals[now][0])["seq"].to_pylist()
            assert found == ([] if expected is None else [expected]), (to, now)
    assert page.ask("/jump", rank=1, to="peak")["seq"].to_pylist() == [totals[peak][0]]


def test_the_event_beside_one_is_the_next_in_the_log(
    page: PageReader, totals: list[tuple[int, int, int]]
) -> None:
    for now in (0, 63, 64, 700, len(totals) - 1):
        after = [totals[now + 1][0]] if now + 1 < len(totals) else []
        before = [totals[now - 1][0]] if now else []
        assert page.ask("/jump", rank=1, to="next_event", seq=totals[now][0])["seq"].to_pylist() == after
        assert page.ask("/jump", rank=1, to="previous_event", seq=totals[now][0])["seq"].to_pylist() == before


def test_a_step_is_shown_whole_with_the_event_at_which_it_stood_highest(
    page: PageReader, database: Path, totals: list[tuple[int, int, int]]
) -> None:
    ends = dict(asked(database, "SELECT step, ended_ns FROM step WHERE rank = 1"))
    now = next(i for i, (_, at, _) in enumerate(totals) if at >= ends[10] + OFFSET_NS - BASE_NS)
    for to, step in (("next_step", 12), ("previous_step", 10), ("step", 5)):
        given = {"step": 5} if to == "step" else {"seq": totals[now][0]}
        [row] = page.ask("/jump", rank=1, to=to, **given).to_pylist()
        begin, end = (ends[step + k] + OFFSET_NS - BASE_NS for k in (-1, 0))
        assert (row["step"], row["begin_ns"], row["end_ns"]) == (step, begin, end)
        last = asked(database, f"SELECT peak_seq FROM step_bucket WHERE {WHOSE} AND step = {step}")
        assert (row["seq"],) == last[0]
    assert page.ask("/jump", rank=1, to="step", step=10**6).num_rows == 0


def test_out_of_memory_errors_are_visited_in_turn(tmp_path: Path) -> None:
    log = RankLog(ended=SECOND_NS)
    log.alloc("a", 10, at=1, device=DEVICE)
    first = log.oom(500, at=2)
    log.alloc("b", 10, at=3, device=DEVICE)
    second = log.oom(600, at=4)
    with empty_database(str(tmp_path / "oom.duckdb")) as connection:
        store_logs(connection, [log])
    with page_reader(tmp_path / "oom.duckdb") as page:
        for seq, expected in ((None, first), (first, second), (second, first)):
            assert page.ask("/jump", rank=0, to="oom", seq=seq)["seq"].to_pylist() == [expected]


def test_a_place_that_is_no_event_is_refused_with_what_to_give(page: PageReader) -> None:
    with pytest.raises(RankmemError, match="no event") as caught:
        page.ask("/jump", rank=1, to="here", seq=10**9)
    assert caught.value.code is Code.NOT_FOUND
    for to in ("time", "step"):
        with pytest.raises(RankmemError, match="is missing"):
            page.ask("/jump", rank=1, to=to)


def test_steps_and_annotations_touch_the_range_and_short_ones_are_counted(
    page: PageReader, database: Path
) -> None:
    begin, end = SECOND_NS // 2, 2 * SECOND_NS
    answer = page.ask("/spans", rank=1, from_=begin, to=end, px=100)
    rows = answer.to_pylist()
    marked = asked(
        database,
        "SELECT name, started_ns + ?, ended_ns + ? FROM marker WHERE ended_ns - started_ns >= ? "
        "AND started_ns + ? <= ? AND ended_ns + ? >= ? ORDER BY 2",
        OFFSET_NS - BASE_NS,
        OFFSET_NS - BASE_NS,
        (end - begin) // 100,
        *(OFFSET_NS - BASE_NS, end),
        *(OFFSET_NS - BASE_NS, begin),
    )
    shown = [(r["name"], r["begin_ns"], r["end_ns"]) for r in rows if r["kind"] == "annotation"]
    assert shown == marked
    assert {row["left_out"] for row in rows if row["kind"] == "annotation"} == {1}
    steps = [row for row in rows if row["kind"] == "step"]
    assert steps
    assert all(row["begin_ns"] <= end and row["end_ns"] >= begin for row in steps)
    assert facts_of(answer)["source"] == "step, marker"
