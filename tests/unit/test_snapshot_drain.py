"""The fallback's drain of PyTorch's history: every event once, losses said, the user's history left alone.

The oracle is the fake allocator's own list of what happened.
"""

from __future__ import annotations

import inspect
import itertools
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_history import Entry, FakeHistory
from rankmem_agent.spool import layout, python_writer
from rankmem_agent.spool.layout import Action, DeviceType, Kind
from rankmem_agent.spool.python_writer import PythonSpoolWriter
from rankmem_agent.tap import snapshot_drain, snapshot_ring
from rankmem_agent.tap.accelerators import CUDA
from rankmem_agent.tap.snapshot_drain import SnapshotDrain, losses
from rankmem_agent.tap.snapshot_format import ACTION_OF_NAME
from rankmem_agent.tap.snapshot_ring import RingCursor, TorchHistory
from rankmem_protos.errors import RankmemError
from repetitions import examples
from spool_bytes import control_of, records_of, texts_of

BUDGET_BYTES = 8 * layout.SEGMENT_BYTES


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def history() -> FakeHistory:
    return FakeHistory()


@pytest.fixture
def drain(history: FakeHistory, said: list[str], tmp_path: Path) -> SnapshotDrain:
    return SnapshotDrain(history, PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES), said.append)


def log_of(folder: Path, *kinds: Kind) -> list[dict[str, int]]:
    """The records of these kinds, in log order."""
    return [record for _, record in sorted(records_of(folder).items()) if record["kind"] in kinds]


def expected(happened: Sequence[Entry]) -> list[tuple[int, ...]]:
    return [(ACTION_OF_NAME[e["action"]], e.get("addr", 0), e["size"], e["stream"]) for e in happened]


def events(folder: Path, device: int = 0) -> list[tuple[int, ...]]:
    found = [record for record in log_of(folder, Kind.EVENT) if record["device_index"] == device]
    return [(r["action"], r["a"], r["b"], r["c"]) for r in found]


def test_every_event_is_drained_once_in_order(
    drain: SnapshotDrain, history: FakeHistory, said: list[str], tmp_path: Path
) -> None:
    drain.attach()
    for number in range(50):
        history.alloc(0x1000 * (number + 1), 100 + number, stream=number % 3, line=number)
        if number % 3 == 0:
            history.free(0x1000 * (number + 1))
        if number % 7 == 0:
            drain.drain()
    drain.close()
    assert events(tmp_path / "spool") == expected(history.happened[0])
    assert not log_of(tmp_path / "spool", Kind.LOST)
    assert said == [losses(CUDA)]


def test_an_event_has_the_private_pool_of_its_segment(
    drain: SnapshotDrain, history: FakeHistory, tmp_path: Path
) -> None:
    history.pools[0x2000] = (3, 0)
    drain.attach()
    history.alloc(0x1000, 100)
    history.alloc(0x2000, 200)
    drain.close()
    pools = [record["d"] for record in log_of(tmp_path / "spool", Kind.EVENT)]
    assert pools == [0, 3 << 32]


@examples(0.6)
@given(
    steps=st.lists(st.sampled_from(["alloc", "same", "free", "drain", "race"]), max_size=80),
    tick_us=st.sampled_from([0, 1]),
)
def test_ties_and_races_with_other_threads_neither_double_nor_lose_an_event(
    steps: list[str], tick_us: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    history = FakeHistory(tick_us=tick_us, devices=2)
    folder = tmp_path_factory.mktemp("drain") / "spool"
    drain = SnapshotDrain(history, PythonSpoolWriter(folder, BUDGET_BYTES), lambda _: None)
    drain.attach()
    for number, step in enumerate(steps):
        device = number % 2
        if step == "alloc":
            history.alloc(0x1000 * (number + 1), 8 * number, device=device)
        elif step == "same":  # the same block again and again: entries that look alike
            history.alloc(0x77, 64, device=device)
            history.free(0x77, device=device)
        elif step == "free" and history.live[device]:
            history.free(next(iter(history.live[device])), device=device)
        elif step == "race":
            history.between = lambda n=number: history.alloc(0x10_0000 + n, 3)
            drain.drain()
        else:
            drain.drain()
    drain.close()
    for device in (0, 1):
        assert events(folder, device) == expected(history.happened[device])
    assert not log_of(folder, Kind.LOST)


def test_a_ring_that_was_overwritten_unread_is_said_in_the_log(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    history.ring_entries = 20
    drain.attach()
    history.alloc(0x1000, 10)
    drain.drain()
    for number in range(30):
        history.alloc(0x2000 + number, 20)
    drain.close()
    [lost] = log_of(tmp_path / "spool", Kind.LOST)
    assert (lost["a"], texts_of(tmp_path / "spool")[lost["e"]]) == (layout.UNKNOWN, "ring_overwritten")
    kinds = [r["kind"] for r in log_of(tmp_path / "spool", Kind.EVENT, Kind.LOST)]
    assert kinds == [Kind.EVENT, Kind.LOST] + [Kind.EVENT] * 20
    assert events(tmp_path / "spool")[1:] == expected(history.happened[0][-20:])


def test_a_full_ring_that_still_holds_the_last_entry_seen_loses_nothing(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    history.ring_entries = 20
    drain.attach()
    for number in range(100):
        history.alloc(0x2000 + number, 20)
        if number % 9 == 8:
            drain.drain()
    drain.close()
    assert not log_of(tmp_path / "spool", Kind.LOST)
    assert events(tmp_path / "spool") == expected(history.happened[0])


def test_blocks_older_than_the_history_come_first_with_their_state(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    history.alloc(0x1000, 100)
    history.alloc(0x2000, 200, stream=9)
    history.free_requested(0x2000)
    assert history.happened == [[]]
    drain.attach()
    history.alloc(0x3000, 300)
    history.free_completed(0x2000)
    drain.close()
    older = log_of(tmp_path / "spool", Kind.PREEXISTING)
    assert [(r["action"], r["a"], r["b"], r["c"]) for r in older] == [
        (Action.SEGMENT_ALLOC, 0x1000, 512, 0),
        (Action.SEGMENT_ALLOC, 0x2000, 512, 9),
        (Action.ALLOC, 0x1000, 100, 0),
        (Action.ALLOC, 0x2000, 200, 9),
        (Action.FREE_REQUESTED, 0x2000, 200, 9),
    ]
    order = [r["kind"] for r in log_of(tmp_path / "spool", Kind.DEVICE, Kind.PREEXISTING, Kind.EVENT)]
    assert order == [Kind.DEVICE] + [Kind.PREEXISTING] * 5 + [Kind.EVENT] * 2
    [device] = log_of(tmp_path / "spool", Kind.DEVICE)
    assert json.loads(texts_of(tmp_path / "spool")[device["e"]])["source"] == "snapshot"
    assert [r["d"] for r in log_of(tmp_path / "spool", Kind.COUNTERS)] == [300, 400]


def test_a_history_that_the_program_records_is_read_and_left_alone(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    history.recording = True
    history.alloc(0x1000, 100)
    drain.attach()
    history.alloc(0x2000, 100)
    drain.close()
    assert history.starts == 0
    assert history.recording
    kept = [entry for entry in history.rings[0] if entry["action"] != "snapshot"]
    assert kept == history.happened[0]
    assert events(tmp_path / "spool") == expected(history.happened[0])


def test_a_history_that_the_program_switches_off_ends_the_recording_and_is_said(
    history: FakeHistory, drain: SnapshotDrain, said: list[str], tmp_path: Path
) -> None:
    drain.attach()
    history.alloc(0x1000, 100)
    drain.drain()
    history.alloc(0x2000, 100)
    history.switch_off()
    drain.drain()
    drain.close()
    [lost] = log_of(tmp_path / "spool", Kind.LOST)
    assert texts_of(tmp_path / "spool")[lost["e"]] == "history_switched_off"
    assert len(said) == 2
    assert "CUDA is no longer recorded" in said[1]
    assert history.starts == 1


def test_a_device_that_was_followed_stays_known_when_the_drain_is_off(
    history: FakeHistory, drain: SnapshotDrain
) -> None:
    assert not drain.has_recorded
    drain.attach()
    history.alloc(0x1000, 100)
    drain.switch_off("TypeError")
    assert drain.has_recorded, "the process used tensors, so it may be a rank"
    drain.close()
    assert drain.has_recorded


def test_steps_stand_among_the_events_by_time_and_calls_carry_stack_step_and_phase(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(us=history.now_us)
    us_as_ns = lambda: clock.us * 1000  # noqa: E731
    fake = SimpleNamespace(monotonic=lambda: clock.us / 1e6, monotonic_ns=us_as_ns, time_ns=us_as_ns)
    monkeypatch.setattr(snapshot_drain, "time", fake)
    drain.attach()
    for step in range(3):
        drain.set_step(step)
        drain.set_phase(layout.Phase.FORWARD)
        history.now_us = clock.us = clock.us + 10
        history.alloc(0x1000 + step, 10, line=7)
        history.alloc(0x2000 + step, 10, line=7 + step % 2)
        history.now_us = clock.us = clock.us + 10
        drain.record(Kind.STEP, step=step, optimizer=drain.intern("AdamW"))
    drain.close()
    log = log_of(tmp_path / "spool", Kind.EVENT, Kind.STEP)
    assert [r["kind"] for r in log] == [Kind.EVENT, Kind.EVENT, Kind.STEP] * 3
    begins = log_of(tmp_path / "spool", Kind.CALL_BEGIN)
    assert [(r["c"], r["action"]) for r in begins] == [(s, layout.Phase.FORWARD) for s in (0, 1, 1, 2)]
    ends = log_of(tmp_path / "spool", Kind.CALL_END)
    assert [r["e"] for r in ends] == [1, 1, 2, 1]
    assert [r["call_id"] for r in log if r["kind"] == Kind.EVENT] == [1, 1, 2, 3, 4, 4]


def test_an_oom_keeps_what_was_free(history: FakeHistory, drain: SnapshotDrain, tmp_path: Path) -> None:
    drain.attach()
    history.oom(2**33, 2**20)
    drain.close()
    [oom] = log_of(tmp_path / "spool", Kind.EVENT)
    assert (oom["action"], oom["a"], oom["b"], oom["d"]) == (Action.OOM, 0, 2**33, 2**20)


def test_pinned_memory_is_sampled_at_each_drain_from_its_first_byte_on(
    history: FakeHistory, drain: SnapshotDrain, tmp_path: Path
) -> None:
    drain.attach()
    for history.pinned in ((0, 0), (64, 10), (0, 0), None):
        drain.drain()
    samples = log_of(tmp_path / "spool", Kind.SAMPLE)
    assert [(r["device_type"], r["a"], r["b"], r["c"]) for r in samples] == [
        (DeviceType.PINNED, 64, 10, layout.UNKNOWN),
        (DeviceType.PINNED, 0, 0, layout.UNKNOWN),
    ]


def test_a_drain_comes_at_a_quarter_of_a_ring_or_after_some_seconds_and_not_before(
    history: FakeHistory, drain: SnapshotDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [100.0]
    fake = SimpleNamespace(monotonic=lambda: seconds[0], monotonic_ns=lambda: 1, time_ns=lambda: 1)
    monkeypatch.setattr(snapshot_drain, "time", fake)
    drain.attach()
    drain.record(Kind.STEP)
    assert history.looks == 1
    seconds[0] += snapshot_drain.DRAIN_INTERVAL_S
    drain.set_module(1)
    assert history.looks == 2
    history.allocated += snapshot_ring.RING_ENTRIES // 12
    drain.record(Kind.STEP)
    assert history.looks == 2
    history.allocated += 2
    drain.record(Kind.STEP)
    assert history.looks == 3
    history.allocated += snapshot_ring.DRAIN_ENTRIES // 3 + 1
    for _ in range(snapshot_drain.MODULE_CALLS):
        drain.set_module(1)
    assert history.looks == 4, "a long step drains between its modules"
    drain.close()


def test_a_history_that_the_program_keeps_without_a_bound_is_read_more_seldom_as_it_grows(
    history: FakeHistory, drain: SnapshotDrain, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [100.0]
    fake = SimpleNamespace(monotonic=lambda: seconds[0], monotonic_ns=lambda: 1, time_ns=lambda: 1)
    monkeypatch.setattr(snapshot_drain, "time", fake)
    monkeypatch.setattr(snapshot_drain, "DRAIN_ENTRIES", 30)
    history.between = lambda: seconds.__setitem__(0, seconds[0] + 2.0)  # how long a look takes
    history.recording = True
    for number in range(400):
        history.alloc(0x1000 * (number + 1), 10)
    drain.attach()
    seconds[0] += 30.0
    history.alloc(0x2, 10)
    drain.record(Kind.STEP)
    assert history.looks == 1, "a twentieth of the time"
    history.allocated += 32
    drain.record(Kind.STEP)
    assert history.looks == 1, "a quarter of the ring"
    history.allocated += 2
    drain.record(Kind.STEP)
    assert history.looks == 2
    seconds[0] += 41.0
    history.alloc(0x3, 10)
    drain.record(Kind.STEP)
    assert history.looks == 3
    drain.close()


def test_the_place_in_a_ring_is_found_by_more_than_the_last_entry() -> None:
    cursor = RingCursor()
    entry = {"action": "alloc", "addr": 1, "size": 2, "stream": 0, "time_us": 5}
    trace: list[dict[str, Any]] = [{**entry, "addr": n} for n in (1, 2, 3, 4)]
    assert cursor.advance(trace) == (trace, False)
    new, lost = cursor.advance([*trace[1:], {**entry, "addr": 4}, {**entry, "addr": 4}])
    assert ([e["addr"] for e in new], lost) == ([4, 4], False)


@pytest.mark.parametrize(
    "shifts_us",
    [[0] * 50 + [1] + [0] * 30 + [-1], [40], [-40], [2_000_000]],
    ids=["a microsecond here and there", "all forward", "all back", "the clock was set"],
)
@pytest.mark.parametrize("ring_entries", [200, 10_000])
def test_the_place_in_a_ring_is_found_though_a_look_computes_the_times_anew(
    shifts_us: list[int], ring_entries: int, tmp_path: Path
) -> None:
    history = FakeHistory(ring_entries=ring_entries, tick_us=3)
    drain = SnapshotDrain(history, PythonSpoolWriter(tmp_path / "spool", BUDGET_BYTES), lambda _: None)
    drain.attach()
    for number in range(300):
        history.alloc(0x1000 + 512 * (number % 7), 64)  # steps look alike
        history.free(0x1000 + 512 * (number % 7))
        if number % 40 == 39:
            history.shifts_us = itertools.cycle(shifts_us)
            drain.drain()
    drain.close()
    assert not log_of(tmp_path / "spool", Kind.LOST)
    assert events(tmp_path / "spool") == expected(history.happened[0])


def fake_torch(record: Any, backend: str = "native") -> Any:
    memory = SimpleNamespace(
        _record_memory_history=record, _snapshot=dict, get_allocator_backend=lambda: backend
    )
    c = SimpleNamespace(_cuda_isHistoryEnabled=lambda: False, _cuda_memoryStats=dict)
    return SimpleNamespace(__version__="2.6.0", cuda=SimpleNamespace(memory=memory), _C=c)


def test_only_what_this_torch_knows_is_asked_of_it() -> None:
    asked: list[dict[str, Any]] = []

    def of_2_6(enabled="all", context="all", stacks="all", max_entries=1, device=None) -> None:  # type: ignore[no-untyped-def]
        asked.append({"enabled": enabled, "context": context, "stacks": stacks, "max_entries": max_entries})

    def without_stacks(enabled: str, max_entries: int) -> None:
        asked.append({"enabled": enabled, "max_entries": max_entries})

    TorchHistory(fake_torch(of_2_6)).start()
    TorchHistory(fake_torch(without_stacks)).start()
    full = {
        "enabled": "all",
        "context": "alloc",
        "stacks": "python",
        "max_entries": snapshot_ring.RING_ENTRIES,
    }
    assert asked == [full, {"enabled": "all", "max_entries": snapshot_ring.RING_ENTRIES}]
    with pytest.raises(RankmemError, match="is not one that is known"):
        TorchHistory(fake_torch(lambda something_else: None)).start()


def test_the_installed_torch_has_the_signature_that_is_asked_for() -> None:
    memory = pytest.importorskip("torch").cuda.memory
    known = inspect.signature(memory._record_memory_history).parameters
    assert {"enabled", "context", "stacks", "max_entries"} <= set(known)


def test_pinned_memory_is_what_torch_says_of_it_or_unknown() -> None:
    torch = fake_torch(dict)
    assert TorchHistory(torch).pinned_bytes() is None, "torch 2.6 has no host_memory_stats"
    torch.cuda.host_memory_stats = dict
    assert TorchHistory(torch).pinned_bytes() is None, "before CUDA's initialisation it tells nothing"
    torch.cuda.host_memory_stats = lambda: {"allocated_bytes.current": 64, "active_bytes.current": 10}
    assert TorchHistory(torch).pinned_bytes() == (64, None), "torch 2.6 miscounts what is in use"
    torch.__version__ = "2.13.0+cu130"
    assert TorchHistory(torch).pinned_bytes() == (64, 10)


def test_the_installed_torch_tells_of_pinned_memory_under_this_name() -> None:
    stats = getattr(pytest.importorskip("torch").cuda, "host_memory_stats", None)
    if stats is None:
        pytest.skip("torch before host_memory_stats")
    assert stats() == {}, "CUDA was not initialised"
    assert "active_bytes" in stats.__doc__


def test_an_allocator_without_a_history_is_refused_with_what_to_do() -> None:
    with pytest.raises(RankmemError, match="cudaMallocAsync keeps no history"):
        TorchHistory(fake_torch(dict, backend="cudaMallocAsync"))
    torch = fake_torch(dict)
    del torch.cuda.memory._record_memory_history
    with pytest.raises(RankmemError, match="has no _record_memory_history"):
        TorchHistory(torch)


def test_a_program_without_steps_is_busy_when_it_has_used_a_device_for_long(
    drain: SnapshotDrain, history: FakeHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [100.0]
    fake = SimpleNamespace(monotonic=lambda: seconds[0], monotonic_ns=lambda: 1, time_ns=lambda: 1)
    monkeypatch.setattr(snapshot_drain, "time", fake)
    called: list[float] = []
    drain.when_busy(lambda: called.append(seconds[0]), 30.0)
    drain.attach()
    assert called == [], "its process group may be about to number it"
    for second in range(101, 140):
        seconds[0] = float(second)
        history.allocated += 5 if second < 135 else 1000
        drain.set_module(1)
    assert called == [135.0], "once, after that time, and not before much was recorded"


def test_a_signal_handler_that_records_amid_a_drain_or_a_record_loses_nothing_and_waits_for_nobody(
    drain: SnapshotDrain, history: FakeHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each store into the log is followed by a signal, whose handler records by a name of its own."""
    marks = itertools.count(1)
    inside: list[int] = []

    def handler(*_: object) -> None:
        inside.append(next(marks))
        drain.record(Kind.MARKER_BEGIN, marker_id=inside[-1], name=drain.intern(f"mark {inside[-1]}"))
        inside.clear()

    genuine = PythonSpoolWriter._set_control

    def signalled(writer: PythonSpoolWriter, name: str, value: int) -> None:
        genuine(writer, name, value)
        if not inside:
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, handler)
    monkeypatch.setattr(PythonSpoolWriter, "_set_control", signalled)
    try:
        drain.record(Kind.NOTE, facts=drain.intern("before"))
        drain.attach()
        history.alloc(1, 512)
        drain.drain()
    finally:
        monkeypatch.setattr(PythonSpoolWriter, "_set_control", genuine)
        signal.signal(signal.SIGALRM, before)
    drain.close()
    written = [each["a"] for each in log_of(tmp_path / "spool", Kind.MARKER_BEGIN)]
    assert sorted(written) == list(range(1, next(marks)))
    assert len(written) > 3


class TooLong(OSError):
    """What the program raises when its time is up."""


def test_what_a_handler_raises_as_the_log_is_extended_is_the_programs_and_loses_no_record(
    drain: SnapshotDrain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def times_up(*_: object) -> None:
        raise TooLong

    genuine = python_writer._mapped

    def slow(path: Path, size_bytes: int) -> Any:
        signal.raise_signal(signal.SIGALRM)
        return genuine(path, size_bytes)

    room = layout.RECORDS_PER_SEGMENT - drain._writer.next_seq
    drain._writer.record_many(bytes(layout.RECORD_BYTES * room))
    before = signal.signal(signal.SIGALRM, times_up)
    monkeypatch.setattr(python_writer, "_mapped", slow)
    try:
        with pytest.raises(TooLong):
            drain.record(Kind.NOTE)
    finally:
        signal.signal(signal.SIGALRM, before)
    drain.close()
    assert len(log_of(tmp_path / "spool", Kind.NOTE)) == 1
    assert control_of(tmp_path / "spool")["dropped"] == 0
