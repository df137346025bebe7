"""Fragmentation, over logs that a slow model of the allocator made: checks, figures, what cannot be told."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from allocated_logs import DEVICE, AllocatorLog, fragmented
from allocator_oracle import MIB, Oracle
from constructed import BASE_NS, RankLog, clear, empty_database, store_logs, store_rows
from json_schema import faults
from rankmem_aggregator.insights.fragmentation import SCHEMA
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.insights.lives import Op
from rankmem_aggregator.insights.packing import live_peak_bytes, packed_bytes
from rankmem_aggregator.insights.replays import check, run
from rankmem_aggregator.query import open as opening
from rankmem_aggregator.query.queries import Queries
from rankmem_cli.main import app
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but

pytestmark = pytest.mark.slow

Store = Callable[..., Queries]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fragmentation") / "job.duckdb"
    empty_database(str(path)).close()
    return path


@pytest.fixture
def stored(database: Path) -> Any:
    opened: list[Queries] = []

    def store(
        made: AllocatorLog, *logs: RankLog, lacks: bool = False, markers: Any = (), **device: Any
    ) -> Queries:
        for queries in opened:
            queries.close()
        with duckdb.connect(str(database)) as connection:
            clear(connection)
            store_logs(connection, [made.log, *logs])
            store_rows(connection, "older_segment", made.older)
            store_rows(connection, "marker", markers)
            whose = {"session_id": made.log.session_id, "attempt": 0, "rank": 0, "device": DEVICE}
            store_rows(connection, "device_info", [whose | device])
            if lacks:
                hole = {"sequence_first": 4, "sequence_last": 5, "records": 2, "why": "lost", "attempt": 0}
                store_rows(connection, "gap", [hole | {"session_id": made.log.session_id, "rank": 0}])
        opened.append(opening.open_queries(database, Credentials()))
        return opened[-1]

    yield store
    for queries in opened:
        queries.close()


def made(seed: int = 1, requests: int = 250, *, late: int = 0, **more: Any) -> AllocatorLog:
    """A log at random whose recording begins after so many requests."""
    log = AllocatorLog(Oracle(capacity=more.pop("capacity", 1 << 62)))
    log.at_random(seed, late)
    log.start(**more)
    log.at_random(seed + 1000, requests)
    log.log.ended = log.now + 1
    return log


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("late", [0, 120])
def test_what_another_model_made_is_reproduced_to_the_address(seed: int, late: int, stored: Store) -> None:
    trace = stored(made(seed, late=late)).allocator_trace(0)
    found = check(trace)
    assert found.num_allocations > 50
    assert found.is_exact
    assert found.num_same_decision == found.num_allocations
    assert found.recorded_peak_bytes == found.replayed_peak_bytes == max(trace.reserved)


def test_a_rest_that_belongs_to_an_older_block_is_found_without_its_recorded_size(stored: Store) -> None:
    log = AllocatorLog()
    whole = log.alloc(20 * MIB)
    assert whole is not None
    log.free(whole)
    first, second = log.alloc(19 * MIB + 512), log.alloc(5 * MIB)
    assert first is not None
    assert second is not None
    log.start(knows_sizes=False)
    log.free(first)
    log.alloc(20 * MIB)
    trace = stored(log).allocator_trace(0)
    assert trace.older_block_bytes == [0, 0]
    assert check(trace).is_exact


def test_a_rest_before_a_gap_is_found_by_what_the_recording_places_there(stored: Store) -> None:
    log = AllocatorLog()
    whole = log.alloc(18 * MIB)
    assert whole is not None
    log.free(whole)
    front = log.alloc(10 * MIB)
    middle = log.alloc(8 * MIB)
    assert front is not None
    assert middle is not None
    log.free(front)
    # 9.5 MiB of the 10: half a MiB is a rest of this block; then the block behind it goes.
    log.alloc(9 * MIB + MIB // 2)
    log.free(middle)
    log.start(knows_sizes=False)
    log.alloc(7 * MIB)
    trace = stored(log).allocator_trace(0)
    assert check(trace).is_exact


def test_a_retry_is_told_from_an_emptied_cache(stored: Store) -> None:
    log = AllocatorLog(Oracle(capacity=100 * MIB))
    log.start()
    names = [log.alloc(30 * MIB) for _ in range(3)]
    for name in names:
        assert name is not None
        log.free(name)
    log.alloc(50 * MIB)  # 90 are held, 100 is all there is
    trace = stored(log).allocator_trace(0)
    assert trace.ops.count(Op.RETRY) == 1
    assert check(trace).is_exact
    free_running = run(trace, trace.settings)
    assert free_running.reserved_peak_bytes == 140 * MIB, "on a larger device nothing would have been flushed"

    log = AllocatorLog()
    log.start()
    names = [log.alloc(30 * MIB) for _ in range(3)]
    for name in names:
        assert name is not None
        log.free(name)
    log.empty_cache()
    log.alloc(50 * MIB)
    trace = stored(log, total_bytes=80 << 30).allocator_trace(0)
    assert (trace.ops.count(Op.RETRY), trace.ops.count(Op.EMPTY_CACHE)) == (0, 1)
    assert run(trace, trace.settings).reserved_peak_bytes == 90 * MIB


def test_a_marker_tells_an_emptied_cache_from_a_retry(stored: Store) -> None:
    log = AllocatorLog(Oracle(capacity=100 * MIB))
    log.start()
    name = log.alloc(60 * MIB)
    assert name is not None
    log.free(name)
    begin = log.now
    log.empty_cache()
    name = log.alloc(50 * MIB)
    assert name is not None
    log.free(name)
    log.alloc(70 * MIB)  # 50 are held, 100 is all there is
    for event in log.log.events:
        event["thread"] = 3
    call = {"name": "torch.cuda.empty_cache", "kind": "allocator", "depth": 0, "marker_id": 1, "thread": 3}
    during = {"started_ns": BASE_NS + begin, "ended_ns": BASE_NS + begin + 1500}
    whose = {"session_id": log.log.session_id, "attempt": 0, "rank": 0}
    trace = stored(log, markers=[whose | call | during]).allocator_trace(0)
    assert [op for op in trace.ops if op in (Op.RETRY, Op.EMPTY_CACHE)] == [Op.EMPTY_CACHE, Op.RETRY]
    assert check(trace).is_exact
    other = stored(log, markers=[whose | call | during | {"thread": 4}]).allocator_trace(0)
    assert other.ops.count(Op.EMPTY_CACHE) == 0, "another thread emptied it"


def test_what_is_needed_is_what_the_slow_model_runs_on(stored: Store) -> None:
    log = made(3, 150)
    answer = stored(log).fragmentation()
    needed, within = answer.figures["needed_bytes"], answer.figures["needed_within_bytes"]
    live = answer.figures["live_peak_bytes"]
    assert live <= needed <= answer.figures["recorded_reserved_peak_bytes"]
    assert _runs(3, 150, needed)
    assert needed - within <= live or not _runs(3, 150, needed - within)
    assert answer.figures["stuck_bytes"] == needed - live
    assert live <= answer.figures["packed_bytes"] <= live * 1.05


def _runs(seed: int, requests: int, capacity: int) -> bool:
    """Whether the same requests find room on a device of so many bytes."""
    log = made(seed, requests)
    small = Oracle(capacity=capacity)
    for event in log.log.events:
        if event["action"] == "alloc":
            if small.malloc(event["allocation_id"], event["size_bytes"], event["stream"]) is None:
                return False
        elif event["action"] == "free_completed":
            small.free(event["allocation_id"])
        elif event["action"] == "segment_free":
            small.empty_cache()
    return True


@given(
    lives=st.lists(
        st.tuples(st.integers(0, 30), st.integers(1, 20), st.integers(1, 50)).map(
            lambda each: (each[0], each[0] + each[1], each[2] * 512)
        ),
        max_size=25,
    )
)
def test_a_packing_is_never_below_what_is_alive_at_once(lives: list[tuple[int, int, int]]) -> None:
    table = np.array(lives, np.int64).reshape(-1, 3)
    instants = [sum(size for born, died, size in lives if born <= at < died) for at in range(60)]
    assert live_peak_bytes(table) == max(instants, default=0)
    packed = packed_bytes(table)
    assert packed is not None
    assert packed >= live_peak_bytes(table)
    assert packed <= sum(size for _, _, size in lives)


def test_a_setting_that_saves_much_is_a_finding_and_says_where_it_was_checked(stored: Store) -> None:
    log = fragmented()
    answer = stored(log).fragmentation(rank=0)
    assert (answer.verdict, answer.certainty) == ("finding", "predicted")
    assert answer.sentence.startswith("rank 0, cuda:0: fragmentation costs ")
    assert "on a simulated device, not on a GPU" in answer.error
    assert answer.next_commands[0].startswith("PYTORCH_CUDA_ALLOC_CONF=")
    saved = {row["settings"]: row["saved_bytes"] for row in answer.rows.to_pylist()}
    assert saved["expandable_segments:True"] > 100 * MIB
    rows = answer.rows.to_pylist()
    assert rows == sorted(rows, key=lambda row: row["needed_bytes"])
    (current,) = [row for row in rows if row["is_current"]]
    assert (current["settings"], current["saved_bytes"], current["is_measured"]) == ("", 0, True)


@pytest.mark.parametrize(("older", "certainty"), [(1024 * MIB, "predicted"), (5000 * MIB, "suspected")])
def test_what_the_assumed_places_of_older_blocks_may_make_is_no_sure_saving(
    older: int, certainty: str, stored: Store
) -> None:
    answer = stored(fragmented(older)).fragmentation(rank=0)
    assert (answer.verdict, answer.certainty) == ("finding", certainty)
    assert ("older than the recording" in answer.error) == (certainty == "suspected")


def test_the_recordings_own_settings_are_those_that_are_compared(stored: Store) -> None:
    queries = stored(made(), settings='{"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:8"}')
    answer = queries.fragmentation()
    assert answer.verdict == "cannot tell", "it was made without them, so the replay differs"
    assert "does not reproduce the recording of rank 0, cuda:0: reserved differs by up to" in answer.sentence


def test_expandable_segments_that_were_set_and_never_taken_are_not_replayed(stored: Store) -> None:
    """As where the platform has none: PyTorch warns, and takes whole segments."""
    plain = stored(made()).fragmentation()
    answer = stored(made(), settings="expandable_segments:True").fragmentation()
    assert answer.figures == plain.figures
    assert answer.figures["num_same_address"] == answer.figures["num_allocations"]
    assert answer.notes[0].startswith("expandable_segments:True was set, but segments were taken whole")
    assert "the platform may have no expandable ones, or it was set later" in answer.notes[0]
    assert answer.notes[1:] == plain.notes
    kept = [row for row in plain.rows.to_pylist() if "expandable" not in row["settings"]]
    assert answer.rows.to_pylist() == kept


def test_addresses_show_that_the_settings_were_not_at_work(stored: Store) -> None:
    """A recording that began late takes no segment that would show it, and reserved hardly differs."""
    chance, log, alive = random.Random(1), AllocatorLog(Oracle()), []
    cached = [log.alloc(chance.randint(20, 40) * MIB) for _ in range(120)]
    for name in cached:
        assert name is not None
        log.free(name)
    log.start()
    for _ in range(100):
        if alive and (chance.random() < 0.5 or len(alive) == 2):
            log.free(alive.pop(chance.randrange(len(alive))))
        elif name := log.alloc(chance.randint(2, 8) * MIB):
            alive.append(name)
    log.log.ended = log.now + 1
    assert stored(log).fragmentation().figures["reserved_difference_bytes"] == 0
    answer = stored(log, settings="expandable_segments:True").fragmentation()
    assert answer.verdict == "cannot tell"
    assert "addresses are the recorded ones" in answer.sentence


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ({"allocator": "cudaMallocAsync"}, "is cudaMallocAsync; only PyTorch's native one is modelled"),
        ({"settings": "backend:cudaMallocAsync"}, "what backend:cudaMallocAsync does is not modelled"),
        ({"settings": "nonsense"}, "is no setting of the allocator"),
    ],
)
def test_an_allocator_that_is_not_modelled_is_refused(
    device: dict[str, str], words: str, stored: Store
) -> None:
    answer = stored(made(requests=30), **device).fragmentation()
    assert (answer.verdict, answer.certainty, answer.rows.num_rows) == ("cannot tell", None, 0)
    assert words in answer.sentence


def test_a_cpu_keeps_no_pool(stored: Store) -> None:
    log = AllocatorLog()
    log.log.alloc("a", 100, at=1, device="cpu")
    log.log.events[-1]["allocation_id"] = 0
    answer = stored(log).fragmentation()
    assert answer.verdict == "cannot tell"
    assert answer.sentence.startswith("the allocator of cpu keeps no pool")


def test_without_segments_nothing_can_be_told(stored: Store) -> None:
    log = made(requests=30)
    log.log.events = [event for event in log.log.events if not event["action"].startswith("segment")]
    answer = stored(log).fragmentation()
    assert (
        answer.sentence == "no segments of rank 0, cuda:0 were recorded: how much was reserved is not known"
    )
    with pytest.raises(RankmemError, match="no segments") as caught:
        stored(log).allocator_trace(0)
    assert caught.value.code is Code.UNSUPPORTED


def test_without_addresses_nothing_can_be_told(stored: Store) -> None:
    log = made(requests=30)
    for event in log.log.events:
        event["address"] = None
    assert "have no addresses" in stored(log).fragmentation().sentence


def test_a_recording_that_contradicts_itself_is_refused_and_breaks_nothing(stored: Store) -> None:
    log = made(5, late=150)
    log.older.append(log.older[0] | {"address": log.older[0]["address"] + MIB})  # segments overlap
    older = [row for row in log.log.allocations.values() if row["preexisting"]]
    older[0]["block_bytes"] = 1 << 40
    older[1]["address"] = older[0]["address"]
    frees = [event for event in log.log.events if event["action"] == "free_completed"]
    log.log.events.append(frees[0] | {"seq": log.log.events[-1]["seq"] + 1})  # freed twice
    answer = stored(log).fragmentation()
    assert answer.verdict == "cannot tell"
    assert "does not reproduce the recording" in answer.sentence


def test_a_rank_that_is_not_there_is_an_error(stored: Store) -> None:
    with pytest.raises(RankmemError, match="no rank 7"):
        stored(made(requests=30)).fragmentation(rank=7)


def test_missing_events_are_in_the_answer_and_leave_it_suspected(stored: Store) -> None:
    answer = stored(made(requests=60), lacks=True).fragmentation()
    assert answer.verdict == "fine"
    assert answer.missing
    assert (answer.complete, answer.certainty) == (False, "suspected")


@pytest.mark.parametrize(("fail_on", "code"), [(None, 0), ("predicted", 1), ("exact", 0)])
@pytest.mark.parametrize("output", long_but(["table", "json", "csv"], "json"))
def test_the_verb_exits_by_its_verdict(
    stored: Store, database: Path, fail_on: str | None, code: int, output: str
) -> None:
    stored(fragmented()).close()
    arguments = ["fragmentation", "--db", str(database), "--format", output]
    done = CliRunner().invoke(app, arguments + (["--fail-on", fail_on] if fail_on else []))
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("fragmentation"), document) == []
        assert {tuple(row) for row in document["rows"]} == {tuple(SCHEMA.names)}
    elif output == "csv":
        assert done.stdout.splitlines()[0] == ",".join(SCHEMA.names)
    else:
        lines = done.stdout.splitlines()
        assert lines[0].startswith("rank 0, cuda:0: fragmentation costs")
        assert lines[-1].startswith("next: PYTORCH_CUDA_ALLOC_CONF=")


def test_the_verb_exits_with_2_where_it_cannot_tell(stored: Store, database: Path) -> None:
    stored(made(requests=30), allocator="cudaMallocAsync").close()
    done = CliRunner().invoke(app, ["fragmentation", "--db", str(database), "--fail-on", "suspected"])
    assert done.exit_code == 2
    assert done.stdout.startswith("cannot tell: the allocator of rank 0, cuda:0 is cudaMallocAsync")
