"""The curve of a rank and its groups: every row against plain loops over the rows of memory_event."""

from __future__ import annotations

import random
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from busy_rank import DEVICE, busy_database
from constructed import SESSION, RankLog, empty_database, store_logs, store_rows
from page_reading import PageReader, page_reader
from rankmem_aggregator.page import coarse_groups
from rankmem_aggregator.page import columns as page_columns
from rankmem_aggregator.page.answers import groups
from rankmem_aggregator.page.columns import UNKNOWN, columns_of
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.store import schema
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.tables import TABLES
from repetitions import long_but, long_but_one_in
from summary_passes import summarise

OFFSET_NS = 12_345
Point = tuple[int, int, int | None, int | None]
"""seq, time on the common clock, requested, reserved."""


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("curve") / "busy.duckdb"
    busy_database(path)
    return path


@pytest.fixture(scope="module")
def page(database: Path) -> Iterator[PageReader]:
    with page_reader(database) as reader:
        yield reader


@pytest.fixture(scope="module")
def points(database: Path) -> list[Point]:
    """All events of rank 1, and what is older than its recording."""
    with duckdb.connect(database, read_only=True) as connection:
        return connection.execute(
            f"SELECT seq, time_ns + {OFFSET_NS}, requested_bytes, reserved_bytes FROM memory_event "
            f"WHERE rank = 1 UNION ALL SELECT seq, time_ns + {OFFSET_NS}, requested_bytes, NULL "
            "FROM held_before WHERE rank = 1 ORDER BY 1"
        ).fetchall()


def random_ranges(points: list[Point], page: PageReader, count: int, seed: int) -> Iterator[dict[str, int]]:
    """Ranges of all lengths, some of which begin or end at an event, and numbers of pixels."""
    rng = random.Random(seed)
    origin_ns = page.session.origin_ns
    first, last = points[0][1] - origin_ns, points[-1][1] - origin_ns
    for _ in range(count):
        length = int((last - first) * rng.random() ** rng.choice((1, 8, 20))) + 1
        begin = rng.choice((rng.randrange(first - 1000, last), rng.choice(points)[1] - origin_ns))
        yield {"from_": begin, "to": begin + length, "px": rng.randrange(1, 300)}


def highest_and_lowest(
    points: list[Point], figure: int, begin_ns: int, end_ns: int, times: list[int]
) -> tuple[int | None, int | None]:
    """Of the steps from begin to before end: what stood at the beginning counts unless an event is there."""
    first, last = bisect_left(times, begin_ns), bisect_left(times, end_ns)
    values = [value for point in points[first:last] if (value := point[figure]) is not None]
    if first and times[min(first, len(times) - 1)] != begin_ns:
        values += [value for value in (points[first - 1][figure],) if value is not None]
    return (max(values), min(values)) if values else (None, None)


@pytest.mark.parametrize("figure", long_but(["requested", "reserved"], "requested"))
def test_highest_and_lowest_of_each_row_are_those_of_the_events(
    page: PageReader, points: list[Point], figure: str
) -> None:
    times = [point[1] for point in points]
    drawn = set()
    for asked in random_ranges(points, page, 100, seed=len(figure)):
        answer = page.ask("/curve", rank=1, **asked)
        facts = facts_of(answer)
        drawn.add(facts["drawn"])
        begins = [begin + page.session.origin_ns for begin in answer["time_ns"].to_pylist()]
        ends = [*begins[1:], asked["to"] + page.session.origin_ns + 1]
        if facts["drawn"] == "events":
            inside = [p for p in points if begins and begins[0] <= p[1] < ends[-1]]
            assert [p[0] for p in inside if p[2] is not None] == [
                seq
                for seq, action in zip(answer["seq"].to_pylist(), answer["action"].to_pylist(), strict=True)
                if action is not None
            ] or not inside
            continue
        width = (asked["to"] - asked["from_"]) // asked["px"] + 1
        assert all((begin - page.session.origin_ns - asked["from_"]) % width == 0 for begin in begins)
        assert len(begins) <= asked["px"]
        if figure not in answer.column_names:
            continue
        highs, lows = answer[figure].to_pylist(), answer[f"{figure}_low"].to_pylist()
        for i, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            expected = highest_and_lowest(points, 2 if figure == "requested" else 3, begin, end, times)
            assert (highs[i], lows[i]) == expected, (asked, i)
    assert drawn == {"events", "highest and lowest"}


def test_what_is_new_since_an_instant_goes_on_where_the_rows_before_it_end(
    page: PageReader, points: list[Point]
) -> None:
    drawn = set()
    for number, asked in enumerate(random_ranges(points, page, 40, seed=3)):
        whole = page.ask("/curve", rank=1, **asked)
        since = asked["from_"] + (asked["to"] - asked["from_"]) * (number % 5) // 4
        part = page.ask("/curve", rank=1, **asked, since=since)
        begin = facts_of(part)["since_ns"]
        before = [time for time in whole["time_ns"].to_pylist() if time < begin]
        assert begin <= since
        assert part.to_pylist() == whole.to_pylist()[len(before) :]
        drawn.add(facts_of(part)["drawn"])
    assert drawn == {"events", "highest and lowest"}


def test_every_event_drawn_has_its_own_action_size_address_and_total(
    page: PageReader, database: Path, points: list[Point]
) -> None:
    origin_ns = page.session.origin_ns
    at = points[2000][1] - origin_ns
    answer = page.ask("/curve", rank=1, from_=at, to=points[2050][1] - origin_ns, px=100)
    with duckdb.connect(database, read_only=True) as connection:
        expected = connection.execute(
            f"SELECT seq, time_ns + {OFFSET_NS - origin_ns}, action, size_bytes, requested_bytes "
            "FROM memory_event WHERE rank = 1 AND seq BETWEEN ? AND ? ORDER BY seq",
            [points[2000][0], points[2050][0]],
        ).fetchall()
    columns = ("seq", "time_ns", "action", "size_bytes", "requested")
    rows = [tuple(row[name] for name in columns) for row in answer.to_pylist() if row["action"] is not None]
    assert facts_of(answer)["note"] == "every event is drawn"
    assert [row for row in rows if row[0] <= points[2050][0]][: len(expected)] == expected


LONGER = """
SELECT
    * REPLACE (
        min(seq_first) OVER whole AS seq_first, min(first_ns) OVER whole AS first_ns,
        max(seq_last) OVER whole AS seq_last, max(last_ns) OVER whole AS last_ns,
        (sum(events) OVER whole)::BIGINT AS events,
        last_value(requested_last_bytes) OVER whole AS requested_last_bytes
    )
FROM memory_bucket
WINDOW
    whole_of AS (PARTITION BY session_id, attempt, rank, device, seq_first // 4096),
    whole AS (whole_of ORDER BY seq_first ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)
QUALIFY row_number() OVER (whole_of ORDER BY requested_peak_bytes DESC, requested_peak_seq) = 1
"""
"""The buckets of a log of which the summaries alone were sent at first, but for the allocator's figures."""


@pytest.fixture(scope="module", params=["64 events", "4,096 events"])
def bucketed(request: pytest.FixtureRequest, database: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = database
    if request.param != "64 events":
        path = tmp_path_factory.mktemp("longer") / "longer.duckdb"
        shutil.copy(database, path)
        with duckdb.connect(str(path)) as connection:
            rows = connection.sql(LONGER).to_arrow_table().to_pylist()
            connection.execute(f"DELETE FROM {schema.stored_name(TABLES['memory_bucket'])}")
            store_rows(connection, "memory_bucket", rows)
    with page_reader(path) as reader:
        yield reader


def test_buckets_give_the_highest_of_each_row_and_no_lowest(
    bucketed: PageReader, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = bucketed
    monkeypatch.setattr(page_columns, "COLUMN_EVENTS_MAX", 0)
    reading = page.reading()
    track = reading.track(1, None, DEVICE)
    origin_ns = page.session.origin_ns
    seqs = [point[0] for point in points]
    num_buckets = 0
    for asked in random_ranges(points, page, 40, seed=3):
        begin_ns, end_ns = asked["from_"] + origin_ns, asked["to"] + origin_ns
        found = columns_of(reading, track, begin_ns, end_ns, asked["px"])
        if found.drawn == "events":
            continue
        num_buckets += 1
        assert not found.low
        before = bisect_left([point[1] for point in points], begin_ns)
        for i, (last_seq, high) in enumerate(zip(found.last_seq, found.high["requested"], strict=True)):
            after = bisect_right(seqs, last_seq)
            own = [point[2] for point in points[before:after]]
            held = [points[before - 1][2]] if before else []
            # A row begins with its first event; a row without an event holds what was there.
            assert high in (max(own, default=-1), max([*own, *held], default=-1)), (asked, i)
            if own:
                assert high >= max(own)
            before = max(before, after)
        inside = [point for point in points if begin_ns <= point[1] <= end_ns]
        assert before == bisect_right([point[1] for point in points], end_ns) or not inside
    assert num_buckets > 8


@pytest.mark.parametrize(
    "by", ["category", "phase", "module", "operator", "line", "step", "annotation", "stream", "component"]
)
def test_groups_add_up_to_the_curve_in_every_row(page: PageReader, points: list[Point], by: str) -> None:
    for asked in random_ranges(points, page, 12 if by == "category" else 4, seed=len(by)):
        answer = page.ask("/groups", rank=1, by=by, **asked)
        names = facts_of(answer)["groups"]
        total = answer["requested"].to_numpy(zero_copy_only=False)
        assert facts_of(answer)["difference_bytes"] == 0
        summed = sum((answer[f"g{i}"].to_numpy(zero_copy_only=False) for i in range(len(names))), np.zeros(1))
        assert np.array_equal(total, np.broadcast_to(summed, total.shape)), asked
        if by == "category":
            assert page.ask("/curve", rank=1, **asked)["requested"].equals(answer["requested"])


@pytest.mark.parametrize("by", ["category", "operator", "line"])
def test_groups_of_a_row_are_those_of_the_blocks_alive_then(
    page: PageReader, database: Path, points: list[Point], by: str
) -> None:
    origin_ns = page.session.origin_ns
    span = {"from_": points[0][1] - origin_ns, "to": points[-1][1] - origin_ns}
    answer = page.ask("/groups", rank=1, by=by, px=40, **span)
    names = facts_of(answer)["groups"]
    rows = answer.to_pylist()
    with duckdb.connect(database, read_only=True) as connection:
        for row in rows[:: len(rows) // 12]:
            alive = connection.execute(
                f"""SELECT coalesce(group_of_block('{by}', b), 'none'), sum(size_bytes)::BIGINT FROM (
                        SELECT a.* REPLACE (coalesce(s.line, a.line) AS line)
                        FROM live_at_seq(?, 0, 1, ?, ?) AS a LEFT JOIN stack AS s USING (stack_id)
                    ) AS b GROUP BY 1""",
                [SESSION, DEVICE, row["seq"]],
            ).fetchall()
            shown = {name: row[f"g{i}"] for i, name in enumerate(names) if row[f"g{i}"]}
            kept = {name: size for name, size in alive if name in names}
            others = sum(size for name, size in alive if name not in names)
            assert shown == kept | ({"others": others} if others else {}), row["time_ns"]


PICKS = {
    "category:activation": "category = 'activation'",
    "category:activation;category:gradient;within:a": (
        "category IN ('activation', 'gradient') AND (module || '.') ^@ 'a.'"
    ),
    "operator:aten%3A%3Aop3;operator:": (
        "coalesce(operator, if(preexisting, 'before the recording', '')) IN ('aten::op3', '')"
    ),
    "category:unknown": "category = 'unknown'",
    "stream:no such": "false",
}


@pytest.mark.parametrize("by", ["category", "module"])
@pytest.mark.parametrize("pick", long_but_one_in(PICKS, 2))
def test_groups_of_what_is_picked_are_those_of_the_picked_blocks_alive_then(
    page: PageReader, database: Path, points: list[Point], by: str, pick: str
) -> None:
    origin_ns = page.session.origin_ns
    span = {"from_": points[0][1] - origin_ns, "to": points[-1][1] - origin_ns}
    answer = page.ask("/groups", rank=1, by=by, px=40, pick=pick, **span)
    facts = facts_of(answer)
    assert (facts["picked"], facts["too_many"], facts["difference_bytes"]) == (True, False, 0)
    whole = page.ask("/curve", rank=1, px=40, **span)
    assert answer["requested"].equals(whole["requested"]), "the lines are those of all blocks"
    rows = answer.to_pylist()
    num_seen = 0
    with duckdb.connect(database, read_only=True) as connection:
        for row in rows[:: len(rows) // 12]:
            alive = connection.execute(
                f"""SELECT coalesce(group_of_block('{by}', b), 'none'), sum(size_bytes)::BIGINT
                    FROM live_at_seq(?, 0, 1, ?, ?) AS b WHERE {PICKS[pick]} GROUP BY 1""",
                [SESSION, DEVICE, row["seq"]],
            ).fetchall()
            shown = {name: row[f"g{i}"] for i, name in enumerate(facts["groups"]) if row[f"g{i}"]}
            assert shown == dict(alive), row["time_ns"]
            num_seen += len(shown)
    assert num_seen > 8 or pick == "stream:no such"


def test_where_picked_blocks_are_too_many_to_read_there_are_no_groups(
    page: PageReader, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "GROUP_EVENTS_MAX", 10)
    origin_ns = page.session.origin_ns
    span = {"from_": points[0][1] - origin_ns, "to": points[-1][1] - origin_ns}
    answer = page.ask("/groups", rank=1, by="line", px=40, pick="category:activation", **span)
    facts = facts_of(answer)
    assert (facts["groups"], facts["too_many"]) == ([], True)
    assert answer["requested"].equals(page.ask("/curve", rank=1, px=40, **span)["requested"])


def test_a_group_that_rose_and_fell_within_a_range_of_the_summaries_paints_nothing_beside(
    tmp_path: Path,
) -> None:
    """Summaries have the highest of 1,024 positions; as steps over a short time that would be a rectangle."""
    log = RankLog(ended=3_000)
    log.alloc("kept", 500, at=0, category="parameter")
    for i in range(1000):
        log.alloc(f"s{i}", 10, at=1 + i, category="temporary" if i == 500 else "activation")
        log.free(f"s{i}", at=1 + i)
    with empty_database(str(tmp_path / "trap.duckdb")) as connection:
        store_logs(connection, [log])
        connection.execute(
            "INSERT INTO group_bucket (session_id, attempt, rank, device, group_by, group_name, seq_first, "
            "seq_last, peak_bytes, peak_seq, peak_ns, last_bytes, last_ns) SELECT session_id, attempt, rank, "
            "device, 'category', 'temporary', 1, 1023, 10, 1001, max(time_ns), 10, max(time_ns) "
            "FROM memory_event GROUP BY ALL"
        )
    with page_reader(tmp_path / "trap.duckdb") as page:
        answer = page.ask("/groups", rank=0, by="category", from_=450, to=550, px=100)
    place = facts_of(answer)["groups"].index("temporary")
    held = [(row["time_ns"], row[f"g{place}"]) for row in answer.to_pylist() if row[f"g{place}"]]
    assert [size for _, size in held] == [10]
    assert held[0][0] == 501


def test_more_than_twelve_groups_are_the_largest_and_the_others(
    page: PageReader, points: list[Point]
) -> None:
    origin_ns = page.session.origin_ns
    facts = page.facts(
        "/groups", rank=1, by="operator", px=50, from_=points[0][1] - origin_ns, to=points[-1][1] - origin_ns
    )
    assert len(facts["groups"]) == 13
    assert facts["groups"][-1] == "others"


def test_a_curve_begins_and_ends_with_its_process(page: PageReader, points: list[Point]) -> None:
    origin_ns = page.session.origin_ns
    first, last = points[0][1] - origin_ns, points[-1][1] - origin_ns
    answer = page.ask("/curve", rank=1, from_=first - 5 * 10**9, to=last + 10**9, px=50)
    assert answer["time_ns"][0].as_py() > first - 10**9
    assert facts_of(answer)["ended_ns"] == last + 1_000_000
    assert page.ask("/curve", rank=1, from_=first - 10**9, to=first - 1, px=50).num_rows == 0


def test_what_a_device_held_before_its_first_event_counts(tmp_path: Path) -> None:
    log = RankLog(ended=10_000)
    log.preexisting("old", 700, device=DEVICE)
    log.free("old", at=5_000)
    with empty_database(str(tmp_path / "older.duckdb")) as connection:
        store_logs(connection, [log])
        # As the ingest counts it: the log begins with the older blocks, of which memory_event has no row.
        connection.execute(
            "UPDATE packed.memory_bucket SET requested_peak_bytes = 700, requested_peak_seq = -1, "
            "requested_peak_ns = -4000"
        )
    with page_reader(tmp_path / "older.duckdb") as page:
        rows = page.ask("/curve", rank=0, from_=0, to=10_000).to_pylist()
        assert [(row["time_ns"], row["requested"]) for row in rows] == [(1_000, 700), (5_000, 0)]
        groups = page.ask("/groups", rank=0, from_=2_000, to=4_000)
        assert groups["g0"].to_pylist() == [700]


def test_host_memory_has_one_figure_also_where_its_buckets_repeat_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RankLog(ended=10_000_000)
    for i in range(400):
        log.alloc(f"b{i}", 10, at=i * 1000)
    with empty_database(str(tmp_path / "cpu.duckdb")) as connection:
        store_logs(connection, [log])
        connection.execute(
            "UPDATE packed.memory_bucket SET allocated_peak_bytes = 0, allocated_last_bytes = 0, "
            "active_peak_bytes = 0, active_last_bytes = 0, reserved_peak_bytes = 0, reserved_last_bytes = 0"
        )
    with page_reader(tmp_path / "cpu.duckdb") as page:
        for most in (10**6, 0):
            monkeypatch.setattr(page_columns, "COLUMN_EVENTS_MAX", most)
            for px in (10, 4000):
                assert page.facts("/curve", rank=0, from_=200_000, to=300_000, px=px)["figures"] == [
                    "requested"
                ]


def test_too_many_events_for_groups_are_refused_with_what_to_do(
    page: PageReader, points: list[Point], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_aggregator.page.answers.groups.GROUP_EVENTS_MAX", 10)
    with pytest.raises(RankmemError, match="events of the rank") as caught:
        page.ask("/groups", rank=1, by="operator", from_=0, to=10**10)
    assert caught.value.code is Code.EXHAUSTED
    assert "shorter range" in caught.value.hint


@pytest.mark.parametrize("by", ["category", "phase", "stream", "component"])
def test_groups_from_summaries_are_those_of_the_blocks_at_the_ends_of_their_ranges(
    database: Path, tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "summarised.duckdb"
    shutil.copy(database, path)
    with duckdb.connect(path) as connection:
        [(last,)] = connection.execute("SELECT max(seq) FROM memory_event WHERE rank = 1").fetchall()
        summarise(connection, RankLog(rank=1), [last // 2, last + 10], final=True)
    monkeypatch.setattr("rankmem_aggregator.page.answers.groups.GROUP_EVENTS_MAX", 10)
    with page_reader(path) as page:
        answer = page.ask("/groups", rank=1, by=by, from_=0, to=10**10, px=6)
        facts = facts_of(answer)
        reading = page.reading()
        origin_ns = page.session.origin_ns
        found = columns_of(reading, reading.track(1, None, DEVICE), origin_ns, origin_ns + 10**10, 6)
        ends = coarse_groups.ends_of(found.last_seq, -1, last + 10)
        assert facts["coarse"]
        assert facts["source"] == "group_bucket"
        checked = 0
        for row, end in zip(answer.to_pylist(), ends, strict=True):
            shown = {name: row[f"g{i}"] for i, name in enumerate(facts["groups"]) if row[f"g{i}"]}
            if end == UNKNOWN:
                assert not shown
                continue
            checked += 1
            alive = page.queries.sql(
                f"SELECT coalesce(group_of_block('{by}', a), 'none') AS name, "
                "sum(size_bytes)::BIGINT AS size "
                f"FROM live_at_seq('{SESSION}', 0, 1, '{DEVICE}', {int(end)}) AS a GROUP BY 1"
            )
            expected = {each["name"]: each["size"] for each in alive.to_pylist()}
            assert shown == expected, (row, end)
        assert checked >= 4


def test_a_range_of_the_summaries_longer_than_two_rows_shows_nothing() -> None:
    """The ends are at 1,023 and 2,047; rows 3 and 4 end long after the first and before the second."""
    last_seq = np.array([1000, 1030, 1100, 1200, 1300, 2050, 2050])
    assert coarse_groups.ends_of(last_seq, -1, 5000).tolist() == [
        *(UNKNOWN, 1023, 1023, UNKNOWN, UNKNOWN),
        *(2047, 2047),
    ]
    assert coarse_groups.ends_of(np.array([1030, 2000]), 900, 1500).tolist() == [1023, 1500]


def test_the_statement_of_a_panel_gives_its_rows(page: PageReader, points: list[Point]) -> None:
    origin_ns = page.session.origin_ns
    span: dict[str, Any] = {"from_": points[0][1] - origin_ns, "to": points[-1][1] - origin_ns, "px": 30}
    statement = page.facts("/curve", rank=1, **span)["sql"]
    rows = page.queries.sql(statement)
    answer = page.ask("/curve", rank=1, **span)
    highest = answer["requested"].to_numpy()
    places = {row["place"]: row["requested"] for row in rows.to_pylist()}
    width = (span["to"] - span["from_"]) // span["px"] + 1
    for begin, high in zip(answer["time_ns"].to_pylist(), highest, strict=True):
        place = (begin - span["from_"]) // width
        assert place not in places or high >= places[place]
    assert max(places.values()) == highest.max()
    assert UNKNOWN < 0
