"""A lake through Ray and Spark: no answer differs from the database file's; what is wrong there is named."""

from __future__ import annotations

import contextlib
import gc
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from constructed import BASE_NS, SECOND_NS
from lake_answers import DeadlyTask, HeadlessTask, OnceDeadlyTask, check_views, whole_of
from lake_clusters import joined_cluster, needs_ray, needs_spark, sail
from lake_sessions import RESTARTED, STEADY, named_questions
from ports import free_port
from rankmem_aggregator.lake import on_spark, worker
from rankmem_aggregator.lake.engine import portable_answer
from rankmem_aggregator.lake.engines import open_engine
from rankmem_aggregator.lake.kernel import Task
from rankmem_aggregator.lake.scattered import ScatteredQueries
from rankmem_aggregator.query.queries import Queries
from rankmem_protos.errors import Code, RankmemError
from ray_cluster import START_S, wait_for_workers
from repetitions import some_of
from waiting import until

AT_NS = BASE_NS + 2 * SECOND_NS + SECOND_NS // 3
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    with joined_cluster() as address:
        yield address


@pytest.fixture(scope="module")
def spark_address() -> Iterator[str]:
    with sail() as address:
        yield address


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            "ray", marks=[needs_ray, pytest.mark.long]
        ),  # its cluster alone takes a minute to come up
        pytest.param("spark", marks=needs_spark),
    ],
)
def scattered(request: pytest.FixtureRequest, lake: str) -> Iterator[ScatteredQueries]:
    address = request.getfixturevalue(f"{request.param}_address")
    with ScatteredQueries(lake, address, worth_bytes=0) as queries:
        yield queries


@pytest.mark.long
def test_every_view_and_macro_answers_as_the_file(file: Queries, scattered: ScatteredQueries) -> None:
    assert scattered.engine.workers >= 2
    check_views(file, scattered, RESTARTED, AT_NS, 1)


def test_every_named_query_answers_as_the_file(file: Queries, scattered: ScatteredQueries) -> None:
    for name, text, parameters in some_of(named_questions(RESTARTED, AT_NS, 1), 3, lambda one: one[0]):
        if "-- Scatter: none" not in text:
            assert scattered.sql(text, parameters) == file.sql(text, parameters), name


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


def test_a_missing_file_fails_the_question_and_names_it_and_the_worker(
    scattered: ScatteredQueries, lake: str
) -> None:
    gone = next(Path(lake.removeprefix("lake:"), "memory_bucket", f"session_id={STEADY}").rglob("*.parquet"))
    gone.rename(gone.with_suffix(".gone"))
    try:
        match = rf"of session {STEADY}: on {socket.gethostname()}: the lake's file .*{gone.name} is missing"
        with pytest.raises(RankmemError, match=match):
            list(scattered.engine.run(whole_of(scattered)))
    finally:
        gone.with_suffix(".gone").rename(gone)


def test_a_worker_with_another_duckdb_is_refused(
    scattered: ScatteredQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "installed", lambda: {"rankmem": "9.1", "duckdb": "9.2"})
    with pytest.raises(
        RankmemError, match=r"the worker on .* has .*, this process rankmem 9.1, duckdb 9.2"
    ) as e:
        list(scattered.engine.run(whole_of(scattered)))
    assert e.value.code is Code.UNSUPPORTED
    assert e.value.hint == "install the same: pip install 'rankmem==9.1' 'duckdb==9.2'"


@needs_ray
def test_a_worker_without_rankmem_says_so() -> None:
    from ray import cloudpickle

    ask = (
        "import sys; sys.modules['rankmem_aggregator'] = None; from ray import cloudpickle; "
        "print(cloudpickle.loads(sys.stdin.buffer.read())(b''))"
    )
    done = subprocess.run(
        [sys.executable, "-c", ask],
        input=cloudpickle.dumps(portable_answer()),
        capture_output=True,
        check=False,
    )
    assert b"cannot import rankmem: " in done.stdout, done.stderr


@pytest.mark.long
@needs_ray
@pytest.mark.parametrize("is_above", [False, True], ids=["worker", "machine"])
def test_the_part_of_a_worker_or_machine_that_is_killed_runs_again(
    ray_address: str, lake: str, tmp_path: Path, is_above: bool
) -> None:
    wait_for_workers()
    with ScatteredQueries(lake, ray_address, worth_bytes=0) as queries:
        first, second = whole_of(queries)
        expected = {str(task.part): task.run() for task in (first, second)}
        deadly = OnceDeadlyTask(
            address=first.address, version=first.version, part=first.part, sql=first.sql,
            parameters=first.parameters, marks=str(tmp_path), is_above=is_above,
        )  # fmt: skip
        assert {str(task.part): rows for task, rows in queries.engine.run([deadly, second])} == expected
    assert len(list(tmp_path.iterdir())) == 2  # it ran twice


@pytest.mark.long
@needs_ray
def test_a_part_that_kills_its_workers_fails_the_question(ray_address: str, lake: str) -> None:
    with ScatteredQueries(lake, ray_address, worth_bytes=0) as queries:
        with pytest.raises(
            RankmemError, match=r"all ranks but 2-3 of .*: Ray gave it up after 4 tries: "
        ) as caught:
            list(queries.engine.run(whole_of(queries, DeadlyTask)[:1]))
        assert caught.value.code is Code.UNAVAILABLE
        assert [task.part for task, _ in queries.engine.run(whole_of(queries)[1:])]


@needs_spark
def test_an_answer_larger_than_a_message_of_spark_comes_in_pieces(
    spark_address: str, lake: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_spark, "CHUNK_BYTES", 100)
    with ScatteredQueries(lake, spark_address, worth_bytes=0) as queries:
        tasks = whole_of(queries)
        found = {str(task.part): rows for task, rows in queries.engine.run(tasks)}
        assert found == {str(task.part): task.run() for task in tasks}


@needs_spark
def test_a_spark_server_that_dies_over_a_part_fails_the_question(lake: str) -> None:
    with sail() as address, ScatteredQueries(lake, address, worth_bytes=0) as queries:
        match = (
            r" of session .*: Spark at sc://127.0.0.1:\d+ gave it up: |no Spark Connect server at .*refused"
        )
        with pytest.raises(RankmemError, match=match) as caught:
            list(queries.engine.run(whole_of(queries, DeadlyTask)))
        assert caught.value.code is Code.UNAVAILABLE


@needs_spark
def test_a_session_of_spark_is_not_collected_amid_the_work_of_another() -> None:
    """It would wait for itself: it shuts down the threads to which that work is just handed."""
    with sail() as address:
        engine = open_engine(address)
        assert engine.workers
        session = weakref.ref(engine._client)  # type: ignore[attr-defined]
        engine.close()
        del engine
        gc.collect()
        assert session() is not None


@needs_spark
@pytest.mark.parametrize("is_back_at_once", [False, True])
def test_a_spark_server_that_goes_away_fails_the_question_and_when_it_is_back_answers_the_next(
    lake: str, file: Queries, is_back_at_once: bool
) -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        address = first.enter_context(sail())
        port = int(address.rpartition(":")[2])
        queries = second.enter_context(ScatteredQueries(lake, address, worth_bytes=0))

        def tasks() -> Iterator[Task]:
            yield whole_of(queries)[0]
            first.close()
            if is_back_at_once:
                second.enter_context(sail(port))
            yield whole_of(queries)[1]

        if is_back_at_once:
            with contextlib.suppress(RankmemError):  # a server may take the session for a new one
                list(queries.engine.run(tasks()))
        else:
            for asked in (tasks(), iter(whole_of(queries))):
                with pytest.raises(RankmemError, match=r"no Spark Connect server at .*refused") as caught:
                    list(queries.engine.run(asked))
                assert caught.value.code is Code.UNAVAILABLE
                assert caught.value.hint.startswith(on_spark.START)
            second.enter_context(sail(port))
        assert queries.peak(STEADY) == file.peak(STEADY)


@pytest.mark.long
@needs_ray
def test_without_its_token_a_cluster_does_not_answer_and_the_hint_says_why(ray_address: str) -> None:
    ask = f"from rankmem_aggregator.lake.engines import open_engine; open_engine({ray_address!r}).workers"
    impatient = {f"RAY_CLIENT_{which}_CONNECTION_TIMEOUT_S": "1" for which in ("INITIAL", "MAX")}
    done = subprocess.run(
        [sys.executable, "-c", ask],
        capture_output=True, text=True, check=False,
        env={"PYTHONPATH": ":".join(sys.path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        | impatient,
    )  # fmt: skip
    assert f"{ray_address} does not answer as a Ray cluster: " in done.stderr
    assert "it may expect its token: RAY_AUTH_MODE=token" in done.stderr


@pytest.mark.parametrize(
    ("form", "start"),
    [
        pytest.param("ray://{}", "no Ray cluster at", marks=needs_ray),
        pytest.param("{}", "no Ray cluster at", marks=needs_ray),
        pytest.param("sc://{}/;token=secret", "no Spark Connect server at", marks=needs_spark),
    ],
)
def test_an_engine_that_is_away_fails_at_once_and_says_what_to_start(form: str, start: str) -> None:
    place = f"127.0.0.1:{free_port()}"
    with pytest.raises(RankmemError, match=f"{start} {place}: .*refused") as caught:
        open_engine(form.format(place))
    assert caught.value.code is Code.UNAVAILABLE
    assert caught.value.hint.startswith("start one: ")
    assert "secret" not in str(caught.value)


@pytest.mark.long
@needs_ray
def test_a_cluster_whose_head_dies_fails_the_question_and_when_it_is_back_answers_the_next(
    ray_address: str, lake: str, file: Queries
) -> None:
    """The last one: the cluster is another one then."""
    wait_for_workers()
    with ScatteredQueries(lake, ray_address, worth_bytes=0) as queries:
        expected, errors = file.peak(STEADY), list[RankmemError]()
        with pytest.raises(RankmemError) as failed:
            list(queries.engine.run(whole_of(queries, HeadlessTask)))
        errors.append(failed.value)

        def is_back() -> bool:
            try:
                return queries.peak(STEADY) == expected
            except RankmemError as exc:
                errors.append(exc)
                return False

        until("it is back", is_back, 3 * START_S)
        assert {error.code for error in errors} == {Code.UNAVAILABLE}
        assert not [error for error in errors if "tries" in error.message]
