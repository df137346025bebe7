"""As which attempt a spool is stored: one spool a rank of an attempt, one attempt a start of the workers."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import example, given

from rankmem_aggregator.ingest.attempts import Starts, StoredStart
from rankmem_aggregator.ingest.batch import IncomingBatch, Spool
from rankmem_protos.collector_pb2 import OpenSpool
from rankmem_protos.errors import Code, RankmemError

SESSION = "0abcdefghjkm"
BEFORE_NS = 1_760_000_000_000_000_000
FAR_LATER_NS = 4_000_000_000_000_000_000


def spool(run: str, rank: int, *, attempt: int = 0, start: str = "", began_ns: int = 0) -> Spool:
    """A spool of ``run``: a launcher, whose ranks share a start unless the start says otherwise."""
    return Spool(
        spool_id=f"{SESSION}-{attempt}-{rank}-{run}",
        session_id=SESSION,
        attempt=attempt,
        rank=rank,
        start=start or f"{run}.{attempt}",
        launch=run,
        started_ns=began_ns,
    )


def stored(starts: Starts, *spools: Spool, final: bool = True) -> list[Spool]:
    """Opens the spools and stores a batch of each."""
    placed = [starts.place(each) for each in spools]
    for each in placed:
        starts.check(each)
        starts.take(batch_of(each, final=final))
    starts.commit()
    return placed


def batch_of(spool: Spool, *, final: bool = True) -> IncomingBatch:
    return IncomingBatch(
        spool=spool,
        batch_number=1,
        sequence_first=0,
        sequence_last=0,
        final=final,
        rows={},
        num_rows=0,
        tallest_rows=0,
        size_bytes=0,
    )


def attempts(placed: list[Spool]) -> list[int]:
    return [each.attempt for each in placed]


@pytest.mark.parametrize(("age_s", "attempt"), [(5.0, 0), (0.0001, 1)])
def test_a_host_whose_clock_is_ahead_has_its_rank_in_the_attempt_that_another_host_has_finished(
    age_s: float, attempt: int
) -> None:
    """Short jobs: one host's log is stored, to its end, before the other's shipper connects."""
    starts = Starts([])
    stored(starts, spool("first", 0, start="job.0"))
    time.sleep(0.001)
    opened = OpenSpool(
        spool_id=f"{SESSION}-0-1-second",
        session_id=SESSION,
        rank=1,
        start="job.0",
        launch="second",
        started_ns=time.time_ns() + 7_500_000_000,
        age_ns=int(age_s * 1e9),
    )
    assert starts.place(Spool.of(opened)).attempt == attempt


def restarted(starts: Starts, placed: list[Spool]) -> Starts:
    """What a new process knows from the database."""
    return Starts(StoredStart(spool=each, final=True, updated_ns=1) for each in placed)


def test_the_ranks_of_one_start_are_one_attempt() -> None:
    starts = Starts(())
    assert attempts(stored(starts, *(spool("a", rank) for rank in range(4)))) == [0] * 4
    assert attempts(stored(starts, *(spool("a", rank, attempt=1) for rank in range(4)))) == [1] * 4


def test_a_second_run_of_a_session_is_its_next_attempt() -> None:
    starts = Starts(())
    stored(starts, *(spool("a", rank) for rank in range(4)))
    assert attempts(stored(starts, *(spool("b", rank) for rank in reversed(range(4))))) == [1] * 4


def test_a_second_run_is_another_attempt_after_a_restart_of_the_aggregator() -> None:
    starts = Starts(())
    first = stored(starts, spool("a", 0), spool("a", 1))
    again = restarted(starts, first)
    assert attempts([again.place(spool("a", 0)), again.place(spool("b", 1))]) == [0, 1]


def test_two_runs_that_are_live_at_once_do_not_mix() -> None:
    starts = Starts(())
    order = [spool("a", 0), spool("b", 1), spool("a", 1), spool("b", 0), spool("a", 2), spool("b", 2)]
    assert attempts(stored(starts, *order, final=False)) == [0, 1, 0, 1, 0, 1]


def test_hosts_that_share_a_start_are_one_attempt_in_any_order() -> None:
    starts = Starts(())
    hosts = [replace(spool(f"host-{rank // 2}", rank), start="shared") for rank in (3, 0, 2, 1)]
    assert attempts(stored(starts, *hosts)) == [0] * 4


def test_a_start_that_came_back_is_another_attempt_for_all_its_ranks() -> None:
    """The first run lost rank 1 before it sent anything: the second run's is none of the first run."""
    starts = Starts(())
    first = [replace(spool(run, rank), start="shared") for run, rank in (("a0", 0), ("a1", 2))]
    stored(starts, *first)
    again = [
        replace(spool(run, rank, began_ns=FAR_LATER_NS), start="shared")
        for run, rank in (("b0", 1), ("b1", 3), ("b0", 0), ("b1", 2))
    ]
    assert attempts(stored(starts, *again)) == [1] * 4


def test_a_rank_that_was_published_before_its_group_named_the_start_is_of_its_attempt() -> None:
    """A script trains first and then spawns its other ranks: one launch, two names of the start."""
    starts = Starts(())
    alone = spool("script", 0)
    grouped = [spool("script", rank, start="group-3-29500") for rank in (1, 2)]
    elsewhere = replace(spool("other-host", 3), start="group-3-29500")
    assert attempts(stored(starts, alone, *grouped, elsewhere)) == [0] * 4
    assert attempts(stored(starts, spool("script", 0, attempt=1, start="group-3-29500.1"))) == [1]


def test_ranks_of_one_launch_may_come_when_the_others_have_ended() -> None:
    starts = Starts(())
    late = [replace(spool("srun", rank, began_ns=FAR_LATER_NS), start="shared") for rank in range(2)]
    assert attempts(stored(starts, late[0])) == [0]
    assert attempts(stored(starts, late[1])) == [0]


def test_a_restart_of_the_second_run_is_no_attempt_of_the_first() -> None:
    starts = Starts(())
    stored(starts, spool("a", 0), spool("a", 0, attempt=1))
    assert attempts(stored(starts, spool("b", 0), spool("b", 0, attempt=1))) == [2, 3]
    assert attempts(stored(starts, spool("a", 0, attempt=2))) == [4]


def test_spools_of_an_older_agent_are_parted_where_they_meet() -> None:
    starts = Starts(())
    old = [replace(spool(run, rank), start="", launch="") for run in "ab" for rank in range(2)]
    assert attempts(stored(starts, *old)) == [0, 0, 1, 1]


def test_a_spool_keeps_its_attempt_when_it_is_opened_again() -> None:
    starts = Starts(())
    first, second = stored(starts, spool("a", 0), spool("b", 0), final=False)
    assert starts.place(spool("b", 0)) == second
    assert starts.place(spool("a", 0)) == first
    with pytest.raises(RankmemError, match="is known as session"):
        starts.place(replace(spool("b", 0), attempt=7))


def test_a_recording_of_another_tool_is_refused_where_its_rank_is_taken() -> None:
    starts = Starts(())
    names = [f"{SESSION}-0-0-import-{digest}" for digest in ("aaaa", "bbbb")]
    first, second = (Spool(spool_id=name, session_id=SESSION, attempt=0, rank=0) for name in names)
    stored(starts, first)
    with pytest.raises(RankmemError, match="--rank-from") as refused:
        starts.place(second)
    assert refused.value.code is Code.CONFLICT


def test_a_place_of_which_nothing_came_is_free_again() -> None:
    starts = Starts(())
    opened = starts.place(spool("a", 0))
    starts.release([opened])
    assert starts.place(spool("b", 0)).attempt == 0
    with pytest.raises(RankmemError, match="open the spool again"):
        starts.check(opened)
    assert starts.place(spool("a", 0)).attempt == 1


def test_the_attempts_of_a_deleted_session_are_free_and_its_spools_known() -> None:
    starts = Starts(())
    first, second = stored(starts, spool("a", 0), spool("b", 0))
    starts.add_tombstones(SESSION)
    assert [starts.place(spool("a", 0)).attempt, starts.place(spool("b", 0)).attempt] == [0, 1]
    again = Starts((), [first, second])
    assert again.place(spool("b", 0)).attempt == 1


def test_a_deleted_session_that_the_database_has_forgotten_is_forgotten() -> None:
    """A late spool of it would be given its old place for ever, and be refused there: another has it now."""
    starts = Starts(())
    late, kept = stored(starts, spool("a", 0), spool("a", 1))
    starts.add_tombstones(SESSION)
    stored(starts, spool("b", 0))
    starts.set_tombstones([kept])
    again = starts.place(spool("a", 0))
    assert (late.attempt, again.attempt) == (0, 1)
    starts.check(again)
    assert starts.place(spool("a", 1)) == kept


def test_a_place_that_was_given_back_is_looked_for_again_before_it_is_stored() -> None:
    """Its stream has ended, a batch of it still waits; meanwhile another start began under its attempt."""
    starts = Starts(())
    opened = starts.place(spool("a", 0))
    starts.release([opened])
    starts.check(opened)
    assert attempts(stored(starts, spool("b", 1))) == [0]
    with pytest.raises(RankmemError, match="open the spool again") as refused:
        starts.check(opened)
    assert refused.value.code is Code.CONFLICT
    assert starts.place(spool("a", 0)).attempt == 1


def test_what_is_kept_is_as_which_attempt_each_spool_is_stored() -> None:
    starts = Starts(())
    stored(starts, spool("a", 0))
    placed = starts.place(spool("b", 0))
    starts.check(placed)
    starts.take(batch_of(placed))
    rows: pa.Table = starts.rows()
    (row,) = rows.to_pylist()
    assert (row["attempt"], row["declared_attempt"], row["launch"]) == (1, 0, "b")
    starts.rollback()
    assert starts.rows().num_rows == 0


RUNS = st.sampled_from(["a", "b", "c", ""])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["store", "open", "close", "restart"]),
        RUNS,
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from(["", "shared"]),
        st.sampled_from([0, BEFORE_NS, FAR_LATER_NS]),
    ),
    max_size=30,
)


@given(STEPS)
def test_whatever_comes_no_two_spools_are_one_rank_of_one_attempt(
    steps: list[tuple[str, str, int, int, str, int]],
) -> None:
    starts = Starts(())
    kept: dict[str, Spool] = {}
    for what, run, rank, attempt, start, began_ns in steps:
        one = replace(spool(run or "old", rank, attempt=attempt, began_ns=began_ns), start=start, launch=run)
        placed = starts.place(one)
        if what == "store":
            try:
                starts.check(placed)
            except RankmemError:
                placed = starts.place(one)
                starts.check(placed)
            starts.take(batch_of(placed))
            starts.commit()
            assert kept.get(placed.spool_id, placed) == placed
            kept[placed.spool_id] = placed
        elif what == "close":
            starts.release([placed])
        elif what == "restart":
            starts = restarted(starts, list(kept.values()))
        places = [(each.attempt, each.rank) for each in kept.values()]
        assert len(set(places)) == len(places)


QUEUED = st.lists(
    st.tuples(
        st.sampled_from(["open", "send", "store", "close"]), st.sampled_from(["a", "b"]), st.integers(0, 1)
    ),
    max_size=20,
)


@given(QUEUED)
@example(
    [("open", "a", 0), ("send", "a", 0), ("close", "a", 0), ("open", "b", 1), ("send", "b", 1)]
    + 2 * [("store", "a", 0)]
)
def test_whatever_waits_as_streams_end_two_runs_are_never_one_attempt(
    steps: list[tuple[str, str, int]],
) -> None:
    starts = Starts(())
    opened: dict[tuple[str, int], Spool] = {}
    waiting: list[Spool] = []
    kept: dict[str, Spool] = {}
    for what, run, rank in steps:
        key = run, rank
        if what == "open":
            opened[key] = starts.place(spool(*key))
        elif what == "send" and key in opened:
            waiting.append(opened[key])
        elif what == "close" and key in opened:
            starts.release([opened.pop(key)])
        elif what == "store" and waiting:
            one = waiting.pop(0)
            with contextlib.suppress(RankmemError):
                starts.check(one)
                if kept.setdefault(one.spool_id, one) == one:  # else its position says whose it is
                    starts.take(batch_of(one))
                    starts.commit()
    runs = {(each.attempt, each.launch) for each in kept.values()}
    assert len({attempt for attempt, _ in runs}) == len(runs)
