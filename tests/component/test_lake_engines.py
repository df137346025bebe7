"""A lake through worker processes: no answer differs from the database file's, whatever dies."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constructed import BASE_NS, SECOND_NS, SESSION, RankLog, empty_database, store_logs
from lake_answers import DeadlyTask, check_views, whole_of
from lake_sessions import RESTARTED, STEADY, named_questions, rows_of
from rankmem_aggregator import connect
from rankmem_aggregator.lake import kernel, peak
from rankmem_aggregator.lake.catalog import read_catalog
from rankmem_aggregator.lake.files import LakeFiles
from rankmem_aggregator.lake.import_ import import_database
from rankmem_aggregator.lake.kernel import Task, answer
from rankmem_aggregator.lake.layout import OPENING
from rankmem_aggregator.lake.parts import HostPart
from rankmem_aggregator.lake.processes import Processes
from rankmem_aggregator.lake.scattered import ScatteredQueries, host_parts, ordered, parts_of
from rankmem_aggregator.lake.seeded import SUMMANDS, SeededInstance
from rankmem_aggregator.query.local import InstanceQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_aggregator.query.types import Value
from rankmem_aggregator.sql import query_text
from rankmem_aggregator.store import templates
from rankmem_protos.errors import Code, RankmemError
from repetitions import examples, some_of

AT_NS = BASE_NS + 2 * SECOND_NS + SECOND_NS // 3


@pytest.fixture(scope="module")
def scattered(lake: str) -> Iterator[ScatteredQueries]:
    with ScatteredQueries(lake, "processes:2", worth_bytes=0) as queries:
        yield queries


def test_every_view_and_macro_answers_as_the_file(file: Queries, scattered: ScatteredQueries) -> None:
    check_views(file, scattered, RESTARTED, AT_NS, 1)


def test_the_named_queries_below_are_asked_so_that_they_have_an_answer(file: Queries) -> None:
    """Two empty answers are the same whatever is wrong."""
    empty = {
        name.strip()
        for name, text, given in named_questions(RESTARTED, AT_NS, 1)
        if not file.sql(text, given).num_rows
    }
    # All of its events are here, and whoever asks for these has the peak already.
    assert empty == {"job_peak_bound_here", "stretches_at_peak", "stretches_missing"}


def test_every_named_query_answers_as_the_file(file: Queries, scattered: ScatteredQueries) -> None:
    for name, text, parameters in some_of(named_questions(RESTARTED, AT_NS, 1), 4, lambda one: one[0]):
        if "-- Scatter: none" not in text:
            assert scattered.sql(text, parameters) == file.sql(text, parameters), name


@pytest.mark.parametrize("per_rank", [True, False])
@pytest.mark.parametrize("device", [None, "cuda:1"])
def test_what_adds_up_over_ranks_answers_as_the_file(
    file: Queries, scattered: ScatteredQueries, per_rank: bool, device: str | None
) -> None:
    of_session = {"session": RESTARTED, "rank": None}
    of_groups = of_session | {"by": "category", "per_rank": per_rank, "device": device}
    questions: dict[str, dict[str, Value]] = {
        "ops_at_peak": of_groups | {"order": "total"},
        "ops_at_time": of_groups | {"time_ns": AT_NS},
        "modules": of_session,
    }
    assert questions.keys() == SUMMANDS.keys()
    for name, given_ in questions.items():
        found = scattered.by_sums(query_text(name), given_, RESTARTED, SUMMANDS[name])
        assert found == file.sql(query_text(name), given_), name
        assert found is not None
        assert found.num_rows >= 3


@pytest.mark.parametrize("are_views_kept", [True, False])
@pytest.mark.parametrize("name", ["job_peak", "job_peak_held", "peak_by_ranks", *SUMMANDS])
def test_what_an_engine_found_is_not_looked_for_again(
    lake: str, file: Queries, monkeypatch: pytest.MonkeyPatch, name: str, are_views_kept: bool
) -> None:
    """An answer rests on what it found, here on nothing, however many events there are."""
    by = "host" if name == "peak_by_ranks" else "category"
    given_: dict[str, Value] = {"session": RESTARTED, "by": by, "order": "total", "time_ns": AT_NS}
    given_ |= dict.fromkeys(("rank", "device", "per_rank", "shares"))

    def asked(queries: Queries, text: str) -> pa.Table:
        return queries.sql(text, {word: given_[word] for word in re.findall(r"\$(\w+)", text)})

    statements = SUMMANDS.get(name, {"group_peak": "FROM group_peak($session, 'host')"})
    found = {macro: asked(file, statement) for macro, statement in statements.items()}
    assert all(rows.num_rows for rows in [asked(file, query_text(name)), *found.values()])
    if not are_views_kept:
        monkeypatch.setattr(templates, "place_views", lambda path: False)
    files = LakeFiles(lake)
    nothing = {macro: rows.slice(0, 0) for macro, rows in found.items()}
    instance = SeededInstance(files, read_catalog(files).about(RESTARTED), nothing)
    with InstanceQueries(lake, instance) as queries:
        assert asked(queries, query_text(name)) != asked(file, query_text(name))


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("session", [RESTARTED, STEADY])
def test_every_grouping_answers_as_the_file(file: Queries, scattered: ScatteredQueries, session: str) -> None:
    check_views(file, scattered, session, AT_NS, None)
    for name, text, parameters in named_questions(session, AT_NS):
        assert scattered.sql(text, parameters) == file.sql(text, parameters), name


@examples(0.15)
@given(data=st.data())
def test_random_parts_by_host_are_the_whole(
    file: Queries, scattered: ScatteredQueries, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["peak", "held_at", "ranks", "weights"]))
    parameters = {"session": STEADY, "time_ns": AT_NS, "attempt": None, "rank": None}
    text = query_text(name)
    given_ = {key: value for key, value in parameters.items() if f"${key}" in text}
    hosts = [{"rank": rank, "host_uid": f"host-{rank}"} for rank in range(4)]
    places = data.draw(st.lists(st.integers(0, 2), min_size=4, max_size=4))
    chosen = [[row for row, place in zip(hosts, places, strict=True) if place == n] for n in range(3)]
    parts = host_parts([part for part in chosen if part], STEADY)
    answers = [answer(scattered.target, scattered.version, part, text, given_) for part in parts]
    assert ordered(pa.concat_tables(answers), text) == file.sql(text, given_)


@examples(0.15)
@given(data=st.data())
def test_random_slices_of_time_have_the_peak_of_the_whole(
    file: Queries, scattered: ScatteredQueries, data: st.DataObject
) -> None:
    by = data.draw(st.sampled_from(["job", "host"]))
    given_ = {"session": RESTARTED, "by": by}
    ask, openings = scattered._about(RESTARTED).sql, scattered._instance_of(RESTARTED).rows_of(OPENING)
    whole = peak.slices_of(ask, openings, RESTARTED, by, 64)
    assert whole is not None
    assert len(whole.parts) == 4
    most = data.draw(st.integers(1, 4))
    slices = peak.slices_of(ask, openings, RESTARTED, by, most)
    assert slices is not None
    best = peak.Best(slices=slices)
    for part in data.draw(st.permutations(slices.parts)):  # what is not worth asking may be asked
        best.take(part.number, answer(scattered.target, scattered.version, part, peak.GROUP_PEAK, given_))
    found = sorted(repr(row) for rows in best.rows.values() for row in rows)
    assert found == rows_of(file.sql(peak.GROUP_PEAK, given_))[1]


def test_all_attempts_of_a_rank_are_in_one_part_with_the_hosts_they_ran_on() -> None:
    rows = [(0, "a"), (0, "b"), (1, "b"), (2, "c"), (3, "d")]
    parts = parts_of([{"rank": rank, "host_uid": host} for rank, host in rows], "S", 3)
    assert [(part.ranks, part.is_rest) for part in parts] == [((2, 3), True), ((2, 3), False)]
    assert [sorted(part.host_uids) for part in parts] == [["a", "b"], ["c", "d"]]


def test_the_part_of_a_worker_that_is_killed_runs_again(scattered: ScatteredQueries) -> None:
    engine, killed = Processes(2), list[int]()

    def tasks() -> Iterator[Task]:
        first, second = whole_of(scattered)
        yield first
        killed.extend(engine.pids)  # the worker has its task
        os.kill(engine.pids[0], signal.SIGKILL)
        yield second

    try:
        answers = {task.part: rows for task, rows in engine.run(tasks())}
        expected = {task.part: task.run() for task in whole_of(scattered)}
        assert answers == expected
        assert len(killed) == 1
        assert killed[0] not in engine.pids
    finally:
        engine.close()


def test_a_part_that_kills_its_workers_fails_the_question(scattered: ScatteredQueries) -> None:
    engine = Processes(1)
    try:
        with pytest.raises(RankmemError, match=r"all ranks but 2-3 of .*died 4 times, .*code -9") as caught:
            list(engine.run(whole_of(scattered, DeadlyTask)))
        assert caught.value.code is Code.UNAVAILABLE
        assert [task.part for task, _ in engine.run(whole_of(scattered)[1:])]  # the next question is answered
    finally:
        engine.close()


def test_a_missing_file_fails_the_question_and_is_named(lake: str, tmp_path: Path) -> None:
    shutil.copytree(lake.removeprefix("lake:"), tmp_path / "torn")
    gone = next((tmp_path / "torn" / "memory_bucket" / f"session_id={STEADY}").rglob("*.parquet"))
    gone.unlink()
    with (
        ScatteredQueries(f"lake:{tmp_path / 'torn'}", "processes:1", worth_bytes=0) as torn,
        pytest.raises(RankmemError, match=rf"of session {STEADY}: the lake's file .*{gone.name} is missing"),
    ):
        torn.peak_bound(STEADY)


def test_a_part_that_was_asked_before_is_answered_of_its_files_as_they_are_now(
    scattered: ScatteredQueries, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "_KEPT", kernel._Kept())
    kernel.keep_instances()
    tasks = whole_of(scattered)
    expected = [task.run() for task in tasks]
    kept = kernel._KEPT._instances.copy()
    gone = next(Path(lake.removeprefix("lake:"), "memory_bucket", f"session_id={STEADY}").rglob("*.parquet"))
    gone.rename(gone.with_suffix(".gone"))
    try:
        with pytest.raises(RankmemError, match=f"{gone.name} is missing"):
            [task.run() for task in tasks]
    finally:
        gone.with_suffix(".gone").rename(gone)
    assert [task.run() for task in tasks] == expected
    assert len(kept) == len(kernel._KEPT._instances) == kernel.KEPT_INSTANCES
    assert len(set(kept.values()) & set(kernel._KEPT._instances.values())) == 1  # the other one failed


def test_workers_that_are_killed_leave_no_folders(
    scattered: ScatteredQueries, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = Processes(1)
    list(engine.run(whole_of(scattered)))
    assert [path.name for path in tmp_path.glob("*/*")]  # of the parts that it keeps
    engine.close()
    assert not list(tmp_path.iterdir())


def test_an_engine_is_refused_for_a_file(database: Path) -> None:
    with pytest.raises(RankmemError, match="is no lake, and processes:2 answers from lakes alone"):
        connect(database, engine="processes:2")


def test_a_log_whose_times_go_back_is_answered_by_one_process(tmp_path: Path) -> None:
    logs = [RankLog(rank=0, host_uid="host-0"), RankLog(rank=1, host_uid="host-1")]
    for number, log in enumerate(logs):
        seconds = [0, 1, 2, 6, 3, 4, 5, 7] if number == 0 else range(8)
        log.totals("cpu", [(second * SECOND_NS + number, 10 + 7 * second % 5) for second in seconds])
    with empty_database(str(tmp_path / "back.duckdb")) as connection:
        store_logs(connection, logs)
    import_database(tmp_path / "back.duckdb", str(tmp_path / "lake"), part_rows=3)
    with (
        connect(tmp_path / "back.duckdb") as file,
        ScatteredQueries(f"lake:{tmp_path / 'lake'}", "processes:1", worth_bytes=0) as lake,
    ):
        assert lake.by_time(query_text("job_peak"), {"session": SESSION}, SESSION, "job") is None
        assert lake.job_peak(SESSION) == file.job_peak(SESSION)
        assert isinstance(lake.engine, Processes)
        assert lake.engine.pids  # it was tried


def two_ranks(folder: Path, logs: list[RankLog]) -> tuple[Path, str]:
    """A database with two ranks of two hosts, and its lake in files of some seconds."""
    with empty_database(str(folder / "two.duckdb")) as connection:
        store_logs(connection, logs)
    import_database(folder / "two.duckdb", str(folder / "lake"), part_rows=3)
    return folder / "two.duckdb", f"lake:{folder / 'lake'}"


def test_what_a_rank_holds_beyond_a_slice_is_there_although_its_clock_says_that_it_is_over(
    tmp_path: Path,
) -> None:
    quiet = RankLog(rank=0, host_uid="host-0", ended=SECOND_NS // 5)
    quiet.totals("cpu", [(SECOND_NS // 10, 100), (8 * SECOND_NS, 90)])  # over, by its clock, before the last
    busy = RankLog(rank=1, host_uid="host-1", ended=9 * SECOND_NS)
    busy.totals("cpu", [(n * SECOND_NS // 4, 50 if n == 17 else 10 + n % 3) for n in range(33)])
    database, lake = two_ranks(tmp_path, [quiet, busy])
    with connect(database) as file, ScatteredQueries(lake, "processes:1", worth_bytes=0) as queries:
        found = queries.by_time(query_text("job_peak"), {"session": SESSION}, SESSION, "job")
        assert found is not None
        assert found.to_pylist() == file.sql(query_text("job_peak"), {"session": SESSION}).to_pylist()
        assert found["job_peak_bytes"][0].as_py() == 150


def test_a_rank_whose_host_vanished_is_over_when_the_next_attempt_starts_elsewhere(tmp_path: Path) -> None:
    logs = [
        RankLog(attempt=attempt, rank=rank, host_uid=f"host-{rank}", started=started * SECOND_NS)
        for attempt, rank, started in ((0, 0, 0), (0, 1, 0), (1, 0, 5), (1, 1, 3))
    ]
    for log in logs:
        log.totals("cpu", [(log.started + n * SECOND_NS // 4, 10 + n) for n in range(8)])
    database, lake = two_ranks(tmp_path, logs)
    text = "SELECT * FROM rank_span WHERE session_id = $session\nORDER BY rank, attempt"
    with connect(database) as file, ScatteredQueries(lake, "processes:1", worth_bytes=0) as queries:
        found = queries.by_hosts(text, {"session": SESSION}, SESSION)
        assert found is not None
        assert found.to_pylist() == file.sql(text, {"session": SESSION}).to_pylist()
        assert [ns and ns - BASE_NS for ns in found["ended_ns"].to_pylist()] == [3 * SECOND_NS, None] * 2


def test_an_interrupted_question_ends_and_the_next_is_answered(
    scattered: ScatteredQueries, file: Queries
) -> None:
    def interrupting() -> Iterator[Task]:
        yield whole_of(scattered)[0]
        scattered.interrupt()
        yield whole_of(scattered)[1]

    with pytest.raises(RankmemError, match="the question was interrupted"):
        list(scattered._run(interrupting()))
    scattered.allow()
    assert scattered.peak(STEADY) == file.peak(STEADY)


def test_small_questions_are_answered_here(lake: str, file: Queries) -> None:
    with ScatteredQueries(lake, "processes:2") as queries:
        assert queries.peak(STEADY) == file.peak(STEADY)
        assert isinstance(queries.engine, Processes)
        assert queries.engine.pids == []


def test_a_part_says_which_ranks_it_has() -> None:
    part = HostPart(session_id="S", ranks=(0, 1, 2, 7), is_rest=False, host_uids=frozenset())
    assert str(part) == "ranks 0-2, 7 of session S"
