"""The shipper's small parts: clock, encoding, configuration, status."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankmem_agent.spool.layout import Kind
from rankmem_protos.errors import Code, RankmemError
from rankmem_ship import encoding as encoding_module
from rankmem_ship.clock import PROBE_INTERVAL_S, PROBES_AT_ONCE, WINDOW_NS, ClockOffset
from rankmem_ship.config import ShipConfig
from rankmem_ship.encoding import encode
from rankmem_ship.log_slices import LogSlice, halve
from rankmem_ship.pairing.columns import rows_of
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.spool_reader.reader import Chunk, Gap
from rankmem_ship.status import Faults, StatusFile, state_of
from spool_synthetic import SyntheticSpool, make_records, reader_of, training_records

TRUE_OFFSET_NS = 5_000_000_000


def exchange(clock: ClockOffset, sent_ns: int, there_ns: int, back_ns: int, work_ns: int = 0) -> None:
    """An exchange whose ways take ``there_ns`` and ``back_ns`` over clocks that differ by TRUE_OFFSET_NS."""
    received_ns = sent_ns + there_ns + TRUE_OFFSET_NS
    got_ns = sent_ns + there_ns + work_ns + back_ns
    replied_ns = received_ns + work_ns
    clock.add(sent_ns=sent_ns, received_ns=received_ns, replied_ns=replied_ns, got_ns=got_ns)


def test_without_an_exchange_there_is_no_estimate() -> None:
    assert ClockOffset().estimate(0, 0) is None


def test_the_smallest_round_trip_wins() -> None:
    clock = ClockOffset()
    exchange(clock, 0, 9_000_000, 1_000_000)
    exchange(clock, 20_000_000, 100_000, 100_000, work_ns=50_000_000)
    exchange(clock, 90_000_000, 1_000_000, 7_000_000)
    estimate = clock.estimate(0, 98_000_000)
    assert estimate is not None
    assert estimate.offset_ns == TRUE_OFFSET_NS
    assert 100_000 <= estimate.error_ns <= 110_000


@given(
    st.lists(st.tuples(st.integers(1, 10**8), st.integers(1, 10**8)), min_size=1, max_size=20),
    st.integers(0, 10**9),
)
def test_the_true_offset_lies_within_the_error(ways: list[tuple[int, int]], base_ns: int) -> None:
    clock, now_ns = ClockOffset(), 0
    for there_ns, back_ns in ways:
        exchange(clock, now_ns, there_ns, back_ns)
        now_ns += there_ns + back_ns
    estimate = clock.estimate(base_ns, now_ns)
    assert estimate is not None
    assert abs(estimate.offset_ns - (TRUE_OFFSET_NS - base_ns)) <= estimate.error_ns + 1


def test_an_old_exchange_is_forgotten() -> None:
    clock = ClockOffset()
    exchange(clock, 0, 10, 10)
    exchange(clock, WINDOW_NS + 100, 5_000_000, 5_000_000)
    estimate = clock.estimate(0, WINDOW_NS + 10_000_100)
    assert estimate is not None
    assert estimate.error_ns >= 5_000_000


def test_a_slice_too_large_for_a_message_is_halved_until_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding_module, "MESSAGE_BYTES_MAX", 30_000)
    spool = SyntheticSpool(path=tmp_path / "s")
    spool.append(training_records(spool, 500, live_calls=20))
    reader = reader_of(spool.path)
    chunk = reader.read(10_000)
    assert isinstance(chunk, Chunk)
    last = chunk.sequence_last
    parts: list[Chunk | Gap] = [chunk, Gap(sequence_first=last + 1, sequence_last=last + 9, why="torn")]
    log_slice = LogSlice(sequence_first=0, sequence_last=last + 10, parts=parts, final=True)
    attached = [
        (
            "clock_offset",
            rows_of("clock_offset", [{"host_uid": "h", "time_ns": 1, "offset_ns": 0, "error_ns": 0}]),
        )
    ]
    made = encode(Pairing(reader.meta, reader.strings), "spool", log_slice, lambda: attached)
    assert len(made) > 2
    assert all(e.size_bytes <= 30_000 for e in made)
    ranges = [(e.message.sequence_first, e.message.sequence_last) for e in made]
    assert ranges[0][0] == 0
    assert ranges[-1][1] == last + 10
    assert all(after[0] == before[1] + 1 for before, after in itertools.pairwise(ranges))
    assert [e.message.final for e in made] == [False] * (len(made) - 1) + [True]
    assert [t.table for e in made for t in e.message.tables].count("clock_offset") == 1
    assert made[-1].state_after.next_seq == last + 10


def test_halves_of_a_slice_are_the_slice() -> None:
    def chunk(first: int, count: int) -> Chunk:
        return Chunk(sequence_first=first, records=make_records(count, kind=Kind.EVENT, a=np.arange(count)))

    gap = Gap(sequence_first=3, sequence_last=1002, why="torn")
    whole = LogSlice(sequence_first=0, sequence_last=1005, parts=[chunk(0, 3), gap, chunk(1003, 3)])
    halves = halve(whole)
    assert halves is not None
    first, second = halves
    assert (first.sequence_first, second.sequence_last) == (0, 1005)
    assert first.sequence_last + 1 == second.sequence_first
    numbers = [(p.sequence_first, p.sequence_last) for p in (*first.parts, *second.parts)]
    assert numbers == [(0, 2), (3, 1002), (1003, 1005)]


def test_a_single_record_is_not_halved_but_the_end_of_the_log_comes_off_it() -> None:
    part = Chunk(sequence_first=7, records=make_records(1, kind=Kind.EVENT))
    assert halve(LogSlice(sequence_first=7, sequence_last=7, parts=[part])) is None
    assert halve(LogSlice(sequence_first=8, sequence_last=8, parts=[], final=True)) is None
    halves = halve(LogSlice(sequence_first=7, sequence_last=8, parts=[part], final=True))
    assert halves is not None
    assert [(h.sequence_first, h.sequence_last, h.final) for h in halves] == [(7, 7, False), (8, 8, True)]


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "1e9"])
def test_a_drain_time_that_cannot_be_used_is_refused_with_its_name(text: str) -> None:
    with pytest.raises(RankmemError, match="RANKMEM_SHIP_DRAIN_S") as raised:
        ShipConfig.from_environment({"RANKMEM_SHIP_DRAIN_S": text})
    assert raised.value.code is Code.INVALID


def test_the_drain_time_comes_from_the_environment() -> None:
    assert ShipConfig.from_environment({"RANKMEM_SHIP_DRAIN_S": "7.5"}).drain_s == 7.5
    assert ShipConfig.from_environment({}) == ShipConfig()


def test_a_repeated_fault_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    faults = Faults(logging.getLogger("test"))
    for _ in range(5):
        faults.log("key", "the aggregator is away")
    faults.log("other", "the disk is full")
    assert [r.message for r in caplog.records] == ["the aggregator is away", "the disk is full"]


def test_a_status_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    status = StatusFile(tmp_path / "missing")
    status.write("shipping", 1, "a:1", "", now=True)
    assert not (tmp_path / "missing").exists()
    (tmp_path / "missing").mkdir()
    status.write("done", 0, "a:1", "", now=True)
    assert state_of(tmp_path / "missing") == "done"


def test_the_clock_is_probed_now_and_then_and_at_once_when_another_aggregator_answers() -> None:
    clock = ClockOffset()
    assert clock.num_probes_due(100.0) == PROBES_AT_ONCE
    assert clock.num_probes_due(100.0 + PROBE_INTERVAL_S / 2) == 0
    clock.forget()
    assert clock.num_probes_due(100.0 + PROBE_INTERVAL_S / 2) == PROBES_AT_ONCE
    assert clock.num_probes_due(100.0 + 2 * PROBE_INTERVAL_S) == PROBES_AT_ONCE


def test_a_shipper_that_has_to_wait_reports_why_until_it_is_acknowledged(tmp_path: Path) -> None:
    from rankmem_protos import collector_pb2 as pb
    from rankmem_ship.config import ShipConfig
    from rankmem_ship.shipper import Shipper

    shipper = Shipper(tmp_path, ShipConfig(aggregator="127.0.0.1:1"))
    assert shipper.error == ""
    shipper._take_reply(pb.IngestReply(busy=pb.Busy(reason="the disk is full")))
    assert shipper.error == "waiting for the aggregator: the disk is full"
    shipper._take_reply(pb.IngestReply(ack=pb.Ack(spool_id="gone")))
    assert shipper.error == ""


@pytest.mark.parametrize(("text", "size"), [("", 0), ("off", 0), ("on", 4 << 30), ("67108864", 64 << 20)])
def test_events_stay_on_the_host_only_where_the_environment_says_so(text: str, size: int) -> None:
    config = ShipConfig.from_environment({"RANKMEM_EDGE": text, "RANKMEM_EDGE_STAY_S": "5"})
    assert (config.edge_bytes, config.edge_stay_s) == (size, 5.0)


@pytest.mark.parametrize("text", ["yes", "1", "-5", "4GiB"])
def test_a_room_for_events_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RankmemError, match="RANKMEM_EDGE is"):
        ShipConfig.from_environment({"RANKMEM_EDGE": text})
