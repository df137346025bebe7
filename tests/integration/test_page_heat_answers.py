"""The heat map, its cells and the odd ranks equal plain SQL over the base tables, and numpy."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs
from page_answers import Answers
from page_server import PageClient, served_page
from page_story import GAP_RANK, LEAK_BYTES, STEPS, mixed_logs, write_logs, write_many, write_story
from rankmem_aggregator import connect
from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.page import rank_matrix
from rankmem_aggregator.page.reading import facts_of
from rankmem_aggregator.store.store import open_store
from rankmem_aggregator.summaries.schedule import Summaries
from rankmem_aggregator.supervision.supervisor import Supervisor
from rankmem_protos.errors import Code, RankmemError

Values = npt.NDArray[np.float64]
HEAT = f"s/{SESSION}/heat"
CELL = f"s/{SESSION}/cell"
RANGES = np.random.default_rng(11)

EVENTS = """
WITH life AS (
    SELECT attempt, rank, clock_offset_ns AS shift, started_at_ns + clock_offset_ns AS started,
        ended_at_ns + clock_offset_ns AS ended
    FROM rank_info
),
event AS (
    SELECT e.attempt, e.rank, e.device, e.seq, e.time_ns + l.shift AS moment, e.{figure}_bytes AS bytes,
        e.action, e.size_bytes
    FROM memory_event AS e JOIN life AS l USING (attempt, rank)
    WHERE e.device LIKE $type || '%' AND e.{figure}_bytes IS NOT NULL
),
point AS (
    SELECT attempt, rank, device, seq, moment, bytes FROM event
    UNION ALL
    SELECT attempt, rank, device, -1, least(any_value(started), min(moment)),
        arg_min(CASE action WHEN 'alloc' THEN bytes - size_bytes ELSE bytes + size_bytes END, seq)
    FROM event JOIN life USING (attempt, rank)
    WHERE '{figure}' = 'requested'
    GROUP BY attempt, rank, device
)
"""
BUCKETS = """
WITH life AS (
    SELECT attempt, rank, clock_offset_ns AS shift, ended_at_ns + clock_offset_ns AS ended FROM rank_info
),
bucket AS (
    SELECT b.*, shift FROM memory_bucket AS b JOIN life USING (attempt, rank) WHERE b.device LIKE $type || '%'
),
point AS (
    SELECT attempt, rank, device, seq_last AS seq, last_ns + shift AS moment, requested_last_bytes AS bytes
    FROM bucket
),
peak AS (SELECT rank, requested_peak_ns + shift AS moment, requested_peak_bytes AS bytes FROM bucket)
"""
MAXIMA = """
, bin AS (
    SELECT k, $from + (k * ($to - $from + 1) + $bins - 1) // $bins AS begin,
        $from + ((k + 1) * ($to - $from + 1) + $bins - 1) // $bins - 1 AS final
    FROM range($bins::BIGINT) AS r(k)
)
SELECT rank, k, max(bytes) AS bytes
FROM (
    SELECT rank, k, bytes FROM point JOIN bin ON moment BETWEEN begin AND final
    UNION ALL
    -- What was known last before the interval, while the process lives.
    SELECT rank, k, arg_max(bytes, seq)
    FROM point JOIN bin ON moment < begin JOIN life USING (attempt, rank)
    WHERE ended IS NULL OR ended >= begin
    GROUP BY attempt, rank, device, k, begin
)
GROUP BY rank, k ORDER BY rank, k
"""


def maxima(path: Path, source: str, from_ns: int, until_ns: int, bins: int) -> tuple[list[int], Values]:
    """By rank and interval the highest, of the session's ranks with events; NaN where nothing is known."""
    asked = {"type": "cuda", "from": BASE_NS + from_ns, "to": BASE_NS + until_ns, "bins": bins}
    with duckdb.connect(str(path), read_only=True) as connection:
        found = connection.execute(source + MAXIMA, asked).fetchall()
    ranks = sorted({rank for rank, _, _ in found})
    values = np.full((len(ranks), bins), np.nan)
    for rank, bin_, bytes_ in found:
        values[ranks.index(rank), bin_] = bytes_
    return ranks, values


def scaled(values: Values) -> list[list[int]]:
    """As the scale of bytes is documented."""
    low, high = int(np.nanmin(values)), int(np.nanmax(values))
    return [
        [0 if np.isnan(v) else 1 + (int(v) - low) * 254 // max(1, high - low) for v in row] for row in values
    ]


def cells_of(answer: pa.Table) -> list[list[int]]:
    return [list(row) for row in answer["cells"].to_pylist()]


def random_range(last_ns: int) -> tuple[int, int]:
    begin, end = sorted(RANGES.integers(0, last_ns, 2).tolist())
    return begin, max(end, begin + 1000)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("heat") / "mixed.duckdb"
    write_logs(path, mixed_logs())
    return path


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, int]:
    path = tmp_path_factory.mktemp("heat") / "story.duckdb"
    leaks, loses = write_story(path)
    return path, leaks, loses


@pytest.fixture(scope="module")
def client(mixed: Path) -> Iterator[PageClient]:
    with served_page(mixed) as served:
        yield served


@pytest.mark.parametrize("figure", ["requested", "active", "reserved"])
def test_the_matrix_is_sqls_maxima_of_random_ranges(client: PageClient, mixed: Path, figure: str) -> None:
    for _ in range(5):
        begin, end = random_range(25 * SECOND_NS)
        answer = client.ask(HEAT, from_=begin, to=end, bins=64, device_type="cuda", figure=figure)
        ranks, values = maxima(mixed, EVENTS.format(figure=figure), begin, end, 64)
        assert facts_of(answer)["exact"]
        shown = [row for rows in answer["ranks"].to_pylist() for row in rows]
        drawn = dict(zip(shown, cells_of(answer), strict=True))
        assert [drawn[rank] for rank in ranks] == scaled(values)
        # Of a rank that had ended before, the row is empty.
        assert all(set(drawn[rank]) == {0} for rank in shown if rank not in ranks)
        assert facts_of(answer)["low_bytes"] == int(np.nanmin(values))
        assert facts_of(answer)["high_bytes"] == int(np.nanmax(values))


def test_pooled_rows_are_the_highest_of_their_ranks(client: PageClient, mixed: Path) -> None:
    answer = client.ask(HEAT, from_=0, to=25 * SECOND_NS, bins=50, rows=2, device_type="cuda")
    _, values = maxima(mixed, EVENTS.format(figure="requested"), 0, 25 * SECOND_NS, 50)
    assert answer["ranks"].to_pylist() == [[0, 1], [2, 3]]
    assert cells_of(answer) == scaled(np.fmax(values[::2], values[1::2]))
    assert answer["top_bytes"].to_pylist() == np.nanmax(np.fmax(values[::2], values[1::2]), axis=1).tolist()


def test_cells_since_an_instant_are_those_of_the_whole_as_long_as_the_scale_is(client: PageClient) -> None:
    asked = {"from_": 0, "to": 25 * SECOND_NS, "bins": 50, "device_type": "cuda", "limit_bytes": 1 << 20}
    whole = client.ask(HEAT, **asked)
    facts = facts_of(whole)
    scale = {"low_bytes": facts["low_bytes"], "high_bytes": facts["high_bytes"]}
    for since, first in ((0, 0), (12 * SECOND_NS, 16), (49 * SECOND_NS // 2, 48), (99 * SECOND_NS, 48)):
        part = client.ask(HEAT, **asked, **scale, since=since)
        assert facts_of(part)["first_bin"] == first
        for name, begin in (("cells", first), ("above", first // 8)):
            assert part[name].to_pylist() == [row[begin:] for row in whole[name].to_pylist()]
        assert part.drop_columns(["cells", "above"]) == whole.drop_columns(["cells", "above"])
    other = client.ask(HEAT, **asked, **scale | {"high_bytes": facts["high_bytes"] - 1}, since=12 * SECOND_NS)
    assert facts_of(other)["first_bin"] == 0
    assert other["cells"] == whole["cells"]


def test_over_many_events_the_matrix_is_that_of_the_buckets(
    client: PageClient, mixed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_matrix, "EVENTS_MAX", -1)
    for begin, end in ((2 * SECOND_NS, 9 * SECOND_NS), (0, 26 * SECOND_NS), (13 * SECOND_NS, 20 * SECOND_NS)):
        answer = client.ask(HEAT, from_=begin, to=end, bins=40, device_type="cuda", order="peak")
        assert not facts_of(answer)["exact"]
        peaks = " SELECT rank, k, bytes FROM peak JOIN bin ON moment BETWEEN begin AND final UNION ALL "
        source = MAXIMA.replace("FROM (\n", f"FROM ({peaks}", 1)
        asked = {"type": "cuda", "from": BASE_NS + begin, "to": BASE_NS + end, "bins": 40}
        with duckdb.connect(str(mixed), read_only=True) as connection:
            found = connection.execute(BUCKETS + source, asked).fetchall()
        ranks = [row for rows in answer["ranks"].to_pylist() for row in rows]
        low, high = facts_of(answer)["low_bytes"], facts_of(answer)["high_bytes"]
        drawn = np.array(cells_of(answer))
        for rank, bin_, bytes_ in found:
            # Before its first event a device held what it held: the buckets alone do not know that.
            assert drawn[ranks.index(rank), bin_] >= 1 + (int(bytes_) - low) * 254 // max(1, high - low)
        known = sum(bytes_ is not None for _, _, bytes_ in found)
        assert high == max(bytes_ for _, _, bytes_ in found)
        assert known <= (drawn > 0).sum() <= known + 4 * 2 * 8
        assert drawn.max(axis=1).tolist() == sorted(drawn.max(axis=1).tolist(), reverse=True)


def test_a_range_is_read_event_by_event_whether_or_not_its_cells_tell_that_it_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ended.duckdb"
    write_logs(path, [log for log in mixed_logs() if log.ended is not None])
    answers = Answers(path)
    assert answers.session.ended
    asked = rank_matrix._has_more_events
    seen: set[bool] = set()
    by_cells: set[bool] = set()

    def told(*of: Any) -> bool:
        by_cells.add(is_long := asked(*of))
        return is_long

    for number in range(12):
        from_ns, until_ns = random_range(24 * SECOND_NS) if number else (0, 26 * SECOND_NS)
        monkeypatch.setattr(rank_matrix, "EVENTS_MAX", (5, 60, 10**6)[number % 3])

        def ask(begin: int = from_ns, end: int = until_ns) -> pa.Table:
            return answers.ask("heat", from_=begin, to=end, bins=50, device_type="cuda")

        monkeypatch.setattr(rank_matrix, "_has_more_events", told)
        found = ask()
        monkeypatch.setattr(rank_matrix, "_has_more_events", lambda *_: False)
        expected = ask()
        assert found == expected
        assert facts_of(found) == facts_of(expected)
        seen.add(facts_of(found)["exact"])
    answers.close()
    assert seen == by_cells == {True, False}


@pytest.mark.parametrize("events_max", [-1, 10_000])
def test_before_its_first_event_a_device_held_its_older_blocks(
    client: PageClient, mixed: Path, monkeypatch: pytest.MonkeyPatch, events_max: int
) -> None:
    monkeypatch.setattr(rank_matrix, "EVENTS_MAX", events_max)
    begin, end = 12 * SECOND_NS + 1000 - events_max, 12 * SECOND_NS + 900_000_000
    answer = client.ask(HEAT, from_=begin, to=end, bins=3, device_type="cuda", order="rank")
    with duckdb.connect(str(mixed), read_only=True) as connection:
        older = connection.execute(
            "SELECT sum(size_bytes) FROM allocation_record WHERE preexisting AND attempt = 1 AND rank = 0"
        ).fetchall()
    assert answer["ranks"].to_pylist()[0] == [0]
    assert answer["top_bytes"].to_pylist()[0] == older[0][0]
    assert all(cell > 0 for cell in cells_of(answer)[0])


def test_without_a_range_and_a_type_it_is_the_whole_session_on_its_accelerators(tmp_path: Path) -> None:
    log = RankLog(ended=10 * SECOND_NS)
    for second in range(9):
        log.alloc(f"b{second}", 100 << second, at=second * SECOND_NS, device=("cuda:0", "cpu")[second % 2])
    with empty_database(str(tmp_path / "job.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "job.duckdb") as served:
        job = served.facts(f"s/{SESSION}/job")
        whole = {"from": job["first_ns"], "to": job["last_ns"], "device_type": "cuda"}
        answer, explicit = served.ask(HEAT, bins=96, rows=12), served.ask(HEAT, **whole, bins=96, rows=12)
        later = served.facts(HEAT, from_=5, bins=96)["asked"]
    assert answer.to_pydict() == explicit.to_pydict()
    assert facts_of(answer)["asked"] == facts_of(explicit)["asked"]
    assert facts_of(answer)["asked"].items() >= {**whole, "bins": 96, "rows": 12, "mode": "abs"}.items()
    assert (later["from"], later["to"]) == (5, job["last_ns"])


@pytest.mark.parametrize("length_ns", [1, 1000, 1023, 1024, 5 * SECOND_NS])
def test_of_a_running_session_cells_stay_the_same_until_its_time_has_doubled(
    tmp_path: Path, length_ns: int
) -> None:
    log = RankLog()
    log.alloc("x", 100, at=0)
    log.alloc("y", 100, at=length_ns)
    with empty_database(str(tmp_path / "job.duckdb")) as connection:
        store_logs(connection, [log])
    with served_page(tmp_path / "job.duckdb") as served:
        job, asked = served.facts(f"s/{SESSION}/job"), served.facts(HEAT, bins=96)["asked"]
    assert job["session"]["state"] == "running"
    length = asked["to"] - asked["from"] + 1
    cell_ns = length // asked["bins"]
    assert cell_ns & (cell_ns - 1) == 0, "a power of two"
    assert length == cell_ns * asked["bins"]
    assert asked["bins"] <= 1024
    assert asked["to"] - cell_ns < job["last_ns"] <= asked["to"]


def test_nothing_is_known_before_a_process_begins_and_after_it_ends(client: PageClient) -> None:
    answer = client.ask(HEAT, from_=0, to=26 * SECOND_NS - 1, bins=26, device_type="cuda")
    cells = np.array(cells_of(answer))
    # Rank 0 ends at 10 s and begins again at 12 s; before its first event it held older blocks.
    assert (cells[0, :11] > 0).all()
    assert cells[0, 11] == 0
    assert (cells[0, 12:24] > 0).all()
    # Rank 2 stands on a host whose clock is 0.7 s behind: the first begins at 0.5 + 0.7 s.
    assert cells[2, 0] == 0
    assert cells[2, 1] > 0
    restarts = answer["restarts"].to_pylist()
    assert restarts == [[12], [12], [13], [13]]


def test_rows_stand_in_the_order_that_was_asked_for(client: PageClient) -> None:
    for order, groups in {
        "host": ["name-of-host-0"] * 2 + ["name-of-host-1"] * 2,
        "tp": ["0", "0", "1", "1"],
        "rank": [None] * 4,
    }.items():
        answer = client.ask(HEAT, from_=0, to=SECOND_NS * 20, device_type="cuda", order=order)
        assert answer["group"].to_pylist() == groups
        ranks = [row for rows in answer["ranks"].to_pylist() for row in rows]
        assert ranks == ([0, 2, 1, 3] if order == "tp" else [0, 1, 2, 3])


def test_against_the_median_a_cell_is_the_difference_to_numpys(client: PageClient, mixed: Path) -> None:
    begin, end = 3 * SECOND_NS, 7 * SECOND_NS
    answer = client.ask(HEAT, from_=begin, to=end, bins=48, device_type="cuda", mode="median", group="pp")
    _, values = maxima(mixed, EVENTS.format(figure="requested"), begin, end, 48)
    middle = np.repeat([np.nanmedian(values[:2], axis=0), np.nanmedian(values[2:], axis=0)], 2, axis=0)
    off = np.rint(values - middle)
    most = np.nanmax(np.abs(off))
    assert facts_of(answer)["high_bytes"] == most
    expected = 128 + np.sign(off) * np.rint(127 * np.sqrt(np.abs(off) / most))
    assert np.array_equal(cells_of(answer), np.where(np.isnan(off), 0, expected))


def test_cells_above_the_limit_are_marked_by_their_exact_bytes(client: PageClient, mixed: Path) -> None:
    _, values = maxima(mixed, EVENTS.format(figure="requested"), 0, 20 * SECOND_NS, 100)
    limit = int(np.nanmedian(values))
    assert (values == limit).any() or not np.isnan(limit)
    answer = client.ask(HEAT, from_=0, to=20 * SECOND_NS, bins=100, device_type="cuda", limit_bytes=limit)
    bits = np.unpackbits(np.array(answer["above"].to_pylist(), np.uint8), axis=1, bitorder="little")[:, :100]
    assert np.array_equal(bits, values > limit)


def test_headroom_at_the_end_is_that_of_rank_now(client: PageClient, mixed: Path) -> None:
    with connect(mixed) as queries:
        rows = queries.sql("SELECT * FROM rank_now WHERE device LIKE 'cuda%' ORDER BY rank").to_pylist()
    now: dict[int, int] = {}
    for row in rows:
        now[row["rank"]] = min(now.get(row["rank"], row["headroom_bytes"]), row["headroom_bytes"])
    # Rank 3 runs until the session's last event; the others end before.
    last_ns = max(row["last_event_ns"] for row in rows) - BASE_NS
    for rank in now:
        own = [row for row in rows if row["rank"] == rank]
        end = min(last_ns, *((row["ended_ns"] or last_ns + BASE_NS) - BASE_NS for row in own))
        found = client.ask(
            CELL, ranks=rank, from_=end - 1, to=end, mode="headroom", device_type="cuda"
        ).to_pylist()
        assert found[0]["headroom_bytes"] == now[rank]
    end = min(row["ended_ns"] for row in rows if row["ended_ns"]) - BASE_NS
    answer = client.ask(
        HEAT, from_=12 * SECOND_NS, to=end, bins=30, mode="headroom", device_type="cuda", order="peak"
    )
    assert facts_of(answer)["num_ranks"] == 4
    assert facts_of(answer)["low_bytes"] == min(answer["top_bytes"].to_pylist())
    tops = answer["top_bytes"].to_pylist()
    assert tops == sorted(tops)


def test_a_cell_has_the_exact_bytes_the_host_and_the_time(client: PageClient, mixed: Path) -> None:
    for figure in ("requested", "reserved"):
        for _ in range(5):
            begin, end = random_range(24 * SECOND_NS)
            end = min(end, begin + SECOND_NS)
            ranks, values = maxima(mixed, EVENTS.format(figure=figure), begin, end, 1)
            expected = {r: int(v) for r, v in zip(ranks, values[:, 0], strict=True) if not np.isnan(v)}
            rows = client.ask(
                CELL, ranks="0,1,2,3", from_=begin, to=end, figure=figure, device_type="cuda"
            ).to_pylist()
            assert {row["rank"]: row["bytes"] for row in rows} == expected
            assert [row["bytes"] for row in rows] == sorted(expected.values(), reverse=True)
            _check_events(mixed, rows, figure)


def _check_events(path: Path, rows: list[dict[str, Any]], figure: str) -> None:
    with duckdb.connect(str(path), read_only=True) as connection:
        for row in rows:
            assert row["host_name"] == f"name-of-host-{row['rank'] // 2}"
            if row["seq"] < 0:
                continue
            found = connection.execute(
                f"SELECT {figure}_bytes, time_ns FROM memory_event "
                "WHERE attempt = $attempt AND rank = $rank AND device = $device AND seq = $seq",
                {name: row[name] for name in ("attempt", "rank", "device", "seq")},
            ).fetchall()
            shift = row["rank"] // 2 * 700_000_000
            assert found == [(row["bytes"], row["at_ns"] + BASE_NS - shift)]


def test_a_cell_of_the_matrix_is_the_cell(client: PageClient) -> None:
    begin, end, bins = 3 * SECOND_NS, 8 * SECOND_NS, 16
    answer = client.ask(HEAT, from_=begin, to=end, bins=bins, device_type="cuda", mode="median", group="tp")
    high = facts_of(answer)["high_bytes"]
    for bin_ in (0, 7, 15):
        first = begin + -(-bin_ * (end - begin + 1) // bins)
        final = begin + -(-(bin_ + 1) * (end - begin + 1) // bins) - 1
        rows = client.ask(
            CELL, ranks="0,1,2,3", from_=first, to=final, device_type="cuda", mode="median", group="tp"
        )
        for row in rows.to_pylist():
            off = round(row["bytes"] - row["median_bytes"])
            expected = 128 + np.sign(off) * round(127 * (abs(off) / high) ** 0.5)
            assert cells_of(answer)[row["rank"]][bin_] == expected


def test_the_story_ranks_its_two_odd_ranks_first(story: tuple[Path, int, int]) -> None:
    path, leaks, loses = story
    last_ns = STEPS * SECOND_NS
    with served_page(path) as client:
        rows = client.ask(f"s/{SESSION}/odd", from_=0, to=last_ns, device_type="cuda", group="pp").to_pylist()
        assert [(row["rank"], row["reason"]) for row in rows[:2]] == [(loses, "fell"), (leaks, "growing")]
    ranks, values = maxima(path, EVENTS.format(figure="requested"), 0, last_ns, 240)
    stage = np.array(ranks) // 16
    off = np.stack([row - np.median(values[stage == stage[rank]], axis=0) for rank, row in enumerate(values)])
    for row in rows[:2]:
        mine = off[row["rank"]]
        assert row["level_bytes"] == round(float(np.median(mine)))
        assert row["change_bytes"] == round(float(np.median(mine[-60:]) - np.median(mine[:60])))
    assert rows[0]["since_ns"] == pytest.approx(last_ns / 2 + 0.85 * SECOND_NS, abs=last_ns / 240)
    assert rows[1]["change_bytes"] == pytest.approx(LEAK_BYTES * STEPS * 0.75, rel=0.1)


def test_a_gap_is_where_events_are_missing(story: tuple[Path, int, int]) -> None:
    with served_page(story[0]) as client:
        answer = client.ask(HEAT, from_=0, to=STEPS * SECOND_NS, bins=STEPS * 10, device_type="cuda")
    gaps = answer["gaps"].to_pylist()
    assert [rank for rank, gap in enumerate(gaps) if gap] == [GAP_RANK]
    first, final = gaps[GAP_RANK]
    assert first <= STEPS // 3 * 10 + 9 <= final + 2
    assert final - first <= 12
    steps = facts_of(answer)["steps"]
    assert [step for step, _ in steps] == list(range(STEPS))
    assert facts_of(answer)["steps_of"] == 0
    assert facts_of(answer)["gaps_cut"] is False


def test_more_gaps_than_are_shown_are_said(
    story: tuple[Path, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankmem_aggregator.page.answers.heat.GAPS_MAX", 0)
    with served_page(story[0]) as client:
        answer = client.ask(HEAT, from_=0, to=STEPS * SECOND_NS, bins=STEPS * 10, device_type="cuda")
    assert not any(answer["gaps"].to_pylist())
    assert facts_of(answer)["gaps_cut"] is True


@pytest.mark.parametrize("by", ["job", "host", "pp", "rank"])
def test_ranks_together_are_those_of_timeline(story: tuple[Path, int, int], by: Any) -> None:
    path = story[0]
    begin, end = 3 * SECOND_NS, 9 * SECOND_NS
    with served_page(path) as client:
        answer = client.ask(
            f"s/{SESSION}/ranks_curve", from_=begin, to=end, by=by, device_type="cuda", points=4000, curves=64
        )
    with connect(path) as queries:
        expected = queries.timeline(
            SESSION,
            by=by,
            rank="all",
            device="cuda",
            from_ns=BASE_NS + begin,
            until_ns=BASE_NS + end,
            points=4000,
        ).to_pylist()
    rows = answer.to_pylist()
    assert {(r["group"], r["time_ns"] + BASE_NS, r["bytes"]) for r in rows} == {
        (r["group"], r["time_ns"], r["bytes"]) for r in expected
    }
    facts = facts_of(answer)
    assert (facts["exact"], facts["by_second"], facts["num_ranks"]) == (True, False, 64)
    tops: dict[str, int] = {}
    for row in rows:
        tops[row["group"]] = max(tops.get(row["group"], 0), row["bytes"])
    assert list(tops.values()) == sorted(tops.values(), reverse=True)


def test_the_copied_sql_gives_the_rows(client: PageClient, mixed: Path) -> None:
    end = 20 * SECOND_NS
    cell = client.ask(CELL, ranks="1,3", from_=0, to=end, device_type="cuda")
    heat = client.ask(HEAT, from_=0, to=end, bins=20, device_type="cuda")
    curve = client.ask(f"s/{SESSION}/ranks_curve", from_=0, to=end, device_type="cuda", points=4000)
    odd = client.ask(f"s/{SESSION}/odd", from_=0, to=end, device_type="cuda")
    free = client.ask(f"s/{SESSION}/headroom", device_type="cuda", limit=9)
    with connect(mixed) as queries:
        rows = queries.sql(facts_of(cell)["sql"]).to_pylist()
        assert [row["bytes"] for row in rows] == cell["bytes"].to_pylist()
        rows = queries.sql(facts_of(heat)["sql"]).to_pylist()
        inside = [row["peak_bytes"] for row in rows if 0 <= row["peak_bin"] < 20]
        assert max(inside) == facts_of(heat)["high_bytes"]
        assert len(queries.sql(facts_of(curve)["sql"])) == len(curve)
        assert len(queries.sql(facts_of(odd)["sql"])) > 0
        assert queries.sql(facts_of(free)["sql"]).to_pylist() == free.to_pylist()


def test_one_high_rank_of_ten_thousand_is_seen_in_250_rows(tmp_path: Path) -> None:
    path = tmp_path / "many.duckdb"
    write_many(path, 10_000, high_rank=4_170, high_second=13)
    with served_page(path) as client:
        answer = client.ask(HEAT, from_=0, to=20 * SECOND_NS, bins=200, rows=250, device_type="cuda")
        row = next(i for i, ranks in enumerate(answer["ranks"].to_pylist()) if 4_170 in ranks)
        cells = np.array(cells_of(answer))
        assert cells.shape == (250, 200)
        assert np.argwhere(cells == 255).tolist() == [[row, 133]]
        assert answer["top_rank"].to_pylist()[row] == 4_170
        facts = facts_of(answer)
        assert (facts["num_ranks"], facts["high_bytes"], facts["exact"]) == (10_000, 60 << 30, False)


@pytest.mark.parametrize(
    "asked",
    [
        {"from_": 5, "to": 5},
        {"from_": 5, "to": 4},
        {"from_": 0, "to": 2**62},
        {"from_": 0, "to": 9, "bins": 1025},
        {"from_": 0, "to": 9, "rows": 0},
        {"from_": 0, "to": 9, "mode": "mean"},
        {"from_": 0, "to": 9, "group": "zp"},
        {"from_": 0, "to": 9, "device_type": "cuda' OR 1"},
        {"from_": 0, "to": 9, "limit_bytes": -1},
    ],
)
def test_what_cannot_be_drawn_is_refused(client: PageClient, asked: dict[str, Any]) -> None:
    with pytest.raises(RankmemError) as refused:
        client.ask(HEAT, **asked)
    assert refused.value.code is Code.INVALID


def test_the_longest_range_and_a_type_without_events_have_answers(client: PageClient) -> None:
    answer = client.ask(HEAT, from_=-(2**61), to=2**61, bins=1024, device_type="cuda")
    assert facts_of(answer)["num_ranks"] == 4
    assert (np.array(cells_of(answer)) > 0).sum(axis=1).tolist() != [0, 0, 0, 0]
    for mode in ("abs", "median", "headroom"):
        empty = client.ask(HEAT, from_=0, to=9, device_type="npu", mode=mode, limit_bytes=5)
        assert len(empty) == 0
    assert len(client.ask(CELL, ranks="3,9", from_=0, to=9, device_type="npu", mode="median")) == 0
    assert len(client.ask(f"s/{SESSION}/odd", from_=0, to=9, device_type="npu")) == 0


def test_ranks_without_times_have_no_curve_together_which_is_no_refusal(tmp_path: Path) -> None:
    logs = [RankLog(rank=rank, started=-BASE_NS, ended=-BASE_NS + 30) for rank in range(2)]
    for log in logs:
        log.alloc("block", 1 << 20, at=-BASE_NS + 10)
    with empty_database(str(tmp_path / "untimed.duckdb")) as connection:
        store_logs(connection, logs)
    with served_page(tmp_path / "untimed.duckdb") as page:
        answer = page.ask(f"s/{SESSION}/ranks_curve", from_=0, to=30, device_type="cpu")
    assert answer.column_names == ["group", "time_ns", "bytes"]
    assert answer.num_rows == 0


def test_long_intervals_are_read_from_the_cells_of_memory_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "cells.duckdb"
    write_logs(path, mixed_logs(seed=4), cuts=range(0, 400, 2))
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "INSERT INTO ingest_progress BY NAME SELECT session_id, attempt, rank, spool_id, "
            "1000 AS last_sequence, true AS final, 1 AS updated_ns FROM rank_info"
        )
    store = open_store(AggregatorConfig(database_path=path))
    levels = Summaries(store).levels
    while levels.advance():
        pass
    ((cells,),) = [
        tuple(row.values()) for row in store.read("SELECT count(*) AS n FROM memory_level").to_pylist()
    ]
    store.close()
    assert cells > 0
    monkeypatch.setattr(rank_matrix, "EVENTS_MAX", -1)
    begin, end = 0, 25 * SECOND_NS - 1
    with served_page(path) as client:
        answer = client.ask(HEAT, from_=begin, to=end, bins=5, device_type="cuda")
        later = client.ask(HEAT, from_=20 * SECOND_NS, to=end, bins=1, device_type="cuda")
    assert facts_of(answer)["source"] == "memory_level"
    _, values = maxima(path, EVENTS.format(figure="requested"), begin, end, 5)
    low, high = facts_of(answer)["low_bytes"], facts_of(answer)["high_bytes"]
    assert high == np.nanmax(values)
    exact = 1 + (np.nan_to_num(values) - low) * 254 // max(1, high - low)
    drawn = np.array(cells_of(answer))
    # Never above what was reached; below it only where a cell reaches over the edge of an interval.
    known = ~np.isnan(values)
    assert (drawn[known] <= exact[known]).all()
    assert (drawn[known] == exact[known]).mean() > 0.6
    assert drawn.max(axis=1).tolist() == exact.max(axis=1).tolist()
    _, values = maxima(path, EVENTS.format(figure="requested"), 20 * SECOND_NS, end, 1)
    assert facts_of(later)["high_bytes"] == np.nanmax(values)


@pytest.mark.long
def test_through_an_aggregator_the_answers_are_the_same(
    client: PageClient, mixed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "copy.duckdb"
    shutil.copy(mixed, path)
    config = AggregatorConfig.from_environment({}, database_path=path, listen="127.0.0.1:0", threads=1)
    asked: list[tuple[str, dict[str, Any]]] = [
        ("heat", {"bins": 40}),
        ("heat", {"bins": 30, "mode": "median", "group": "tp"}),
        ("heat", {"bins": 30, "mode": "headroom"}),
        ("cell", {"ranks": "1,2", "mode": "median"}),
        ("odd", {}),
        ("ranks_curve", {"by": "pp"}),
    ]
    with Supervisor(config) as supervisor, served_page(supervisor.address) as remote:
        for events_max in (10_000, -1):
            monkeypatch.setattr(rank_matrix, "EVENTS_MAX", events_max)
            for route, given in asked:
                begin, end = 2 * SECOND_NS - events_max, (21 if route != "ranks_curve" else 8) * SECOND_NS
                place = {"from_": begin, "to": end, "device_type": "cuda"}
                ours = client.ask(f"s/{SESSION}/{route}", **place, **given)
                theirs = remote.ask(f"s/{SESSION}/{route}", **place, **given)
                assert theirs.to_pylist() == ours.to_pylist()
                assert len(ours) > 0 or route == "odd"
        assert remote.ask(f"s/{SESSION}/headroom", device_type="cuda").num_rows == 1
