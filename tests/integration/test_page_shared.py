"""What the page's answers about a session share, and what a file's reader looks through once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from constructed import SESSION, RankLog, empty_database, store_logs
from rankmem_aggregator import connect
from rankmem_aggregator.page import rank_matrix
from rankmem_aggregator.page.answering import state_of
from rankmem_aggregator.page.answers.heat import HeatAsked, heat
from rankmem_aggregator.page.reading import PageSession, Reading, facts_of
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Parameters
from rankmem_protos.errors import Code, RankmemError

SECOND_NS = 1_000_000_000
SPAN_S = 600


class Counting:
    """A file's reader that counts the questions it is asked, by their first line."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self.asked: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queries, name)

    def sql(self, text: str, parameters: Parameters | None = None) -> pa.Table:
        self.asked[text.splitlines()[0]] += 1
        return self._queries.sql(text, parameters)

    def recent_missing(self, full_id: str) -> list[dict[str, Any]]:
        self.asked["missing"] += 1
        return self._queries.recent_missing(full_id)


def long_log(rank: int) -> RankLog:
    """Ten minutes with an event every three seconds or so; two devices."""
    log = RankLog(rank=rank, ended=(SPAN_S + 20) * SECOND_NS)
    for i in range(200):
        at = (3 * i + rank) * SECOND_NS
        log.alloc(f"b{i}", 1000 * (i % 37 + 1) + rank, at=at, device="cuda:0")
        if i % 5 == 0:
            log.alloc(f"c{i}", 10, at=at, device="cpu", address=None)
        if i >= 9:
            log.free(f"b{i - 9}", at=at + SECOND_NS, told_later=i % 4 == 0)
    return log


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "job.duckdb"
    with empty_database(str(path)) as connection:
        store_logs(connection, [long_log(0), long_log(1)])
    return path


def reading_of(queries: Any, session: PageSession) -> Reading:
    return Reading(queries=queries, session=session)


def test_what_answers_begin_with_is_asked_once_a_state(path: Path) -> None:
    with connect(path) as queries:
        state = state_of(queries, SESSION)
        counting = Counting(queries)
        for rank in (0, 1, 0):
            reading = reading_of(counting, state)
            track = reading.track(rank)
            assert (track.rank, track.device) == (rank, "cuda:0")
            reading.answer(pa.table({}), exact=True, source="none")
        assert sorted(counting.asked.values()) == [1, 1]  # of the devices, and of what is missing
        later = PageSession(
            session_id=state.session_id,
            origin_ns=state.origin_ns,
            ended=state.ended,
            watermark=f"{state.watermark}-later",
        )
        before = sum(counting.asked.values())
        reading_of(counting, later).track(1)
        assert sum(counting.asked.values()) == before + 1


def test_a_rank_without_events_is_refused_with_what_was_asked(path: Path) -> None:
    with connect(path) as queries:
        reading = reading_of(queries, state_of(queries, SESSION))
        assert reading.track(1, 0, "cpu").device == "cpu"
        with pytest.raises(RankmemError, match="no events of rank 1 with device cuda:7") as refused:
            reading.track(1, None, "cuda:7")
        assert refused.value.code is Code.NOT_FOUND


def test_devices_are_those_of_the_base_tables(path: Path) -> None:
    with connect(path) as queries:
        shared = reading_of(queries, state_of(queries, SESSION)).share("tracks").to_pylist()
        plain = queries.sql(
            "SELECT rank, device, max(requested_bytes) AS top, min(seq) AS seq FROM memory_event AS e "
            "WHERE requested_bytes = (SELECT max(requested_bytes) FROM memory_event AS o "
            "WHERE o.rank = e.rank AND o.device = e.device) GROUP BY ALL ORDER BY rank, top DESC"
        ).to_pylist()
    assert [(row["rank"], row["device"], row["peak_bytes"], row["peak_seq"]) for row in shared] == [
        (row["rank"], row["device"], row["top"], row["seq"]) for row in plain
    ]


@pytest.mark.parametrize("mode", ["abs", "headroom"])
@pytest.mark.parametrize("from_s", [0, 7, 250, 599])
def test_a_heat_map_is_the_same_whatever_its_history_is_read_from(
    path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, from_s: int
) -> None:
    monkeypatch.setattr(rank_matrix, "EVENTS_MAX", -1)
    asked = HeatAsked(
        from_ns=from_s * SECOND_NS, until_ns=(SPAN_S + 10) * SECOND_NS, bins=37, device_type="cuda", mode=mode
    )
    found, texts = [], []
    with connect(path) as queries:
        for most in (100_000, 0):
            monkeypatch.setattr(rank_matrix, "HISTORY_ROWS_MAX", most)
            answer = heat(reading_of(queries, state_of(queries, SESSION)), asked)
            facts = facts_of(answer)
            texts.append(facts.pop("sql"))
            found.append((answer.to_pylist(), facts))
    assert found[0] == found[1]
    assert texts[0] != texts[1]  # it was read from cells of 4 s, and of 64 s


def test_a_statement_that_was_refused_is_refused_again(path: Path) -> None:
    with connect(path) as queries:
        for _ in range(2):
            with pytest.raises(RankmemError) as refused:
                queries.sql("CREATE TABLE mine AS SELECT 1")
            assert refused.value.code is Code.DENIED
        for _ in range(2):
            assert queries.sql("SELECT count(*) AS n FROM memory_event").to_pylist()[0]["n"] > 0


def test_an_answer_of_a_file_has_the_types_that_its_stream_has(path: Path) -> None:
    text = "SELECT *, 1.5::DECIMAL(9, 2) AS d, [1, 2] AS l, {'a': 1} AS s, 7::HUGEINT AS h FROM memory_event"
    with connect(path) as queries:
        whole = queries.sql(text)
        streamed = pa.Table.from_batches(list(queries.stream(text)))
        assert whole.schema == streamed.schema
        assert whole == streamed
        with pytest.raises(RankmemError, match="no statement"):
            queries.sql("-- nothing")


def test_blocks_that_ended_before_are_left_out_and_no_others(path: Path) -> None:
    with duckdb.connect(str(path), read_only=True) as connection:
        macro = "block_of_device($session, 0, 0, 'cuda:0', 0, after_seq := $seq)"
        given = {"session": SESSION, "seq": 150}
        alive = "freed_seq IS NULL OR freed_seq > 150"
        kept = connection.execute(
            f"SELECT count(*), count(*) FILTER ({alive}) FROM {macro}", given
        ).fetchall()
        every = connection.execute(
            f"SELECT count(*), count(*) FILTER ({alive}) FROM {macro}", given | {"seq": None}
        ).fetchall()
    assert kept[0][1] == every[0][1] > 0
    assert kept[0][0] < every[0][0] == 200
