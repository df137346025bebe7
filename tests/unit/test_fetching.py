"""Which stretches are asked for, in which order, and when it ends: no aggregator is needed to see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from unittest.mock import patch

import pyarrow as pa
import pytest

from rankmem_aggregator.query import fetching
from rankmem_aggregator.query.aggregator_state import AggregatorState
from rankmem_aggregator.query.fetching import fetch_peak, is_stored_within
from rankmem_aggregator.query.types import Parameters
from rankmem_aggregator.sql import query_text
from rankmem_cli.args.options import Target
from rankmem_cli.run.fetching import Wanted, fetch_events, ranks_of
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.query_pb2 import StatusReply

SESSION = "S"
Range = tuple[int, int]


class Hosts:
    """An aggregator that has what it was asked for; its answers about the peak are given.

    Args:
        summits: stretches in which the bound is highest.
        others: those that reach what is certain then.
        gone: of them those that no host has.
    """

    def __init__(self, summits: set[Range], others: set[Range], gone: set[Range]) -> None:
        self.summits, self.others, self.gone = summits, others, gone
        self.asked: list[set[Range]] = []
        self._here: set[Range] = set()

    def sql(self, text: str, parameters: Parameters) -> pa.Table:
        name = next(name for name in NAMES if query_text(name) == text)
        if name == "clock_error":
            return pa.table({"error_ns": [0]})
        if name in ("job_peak_lowest", "job_peak_highest"):
            is_exact = self.summits | self.others <= self._here
            bytes_ = 5 if is_exact or name == "job_peak_lowest" else 9
            return pa.table({"device_type": ["cpu"], "job_peak_bytes": [bytes_], "job_peak_ns": [1]})
        found = self.summits | self.others
        if name == "stretches_at_peak" and parameters["least"] is None:
            found = self.summits
        if name == "stretches_missing" and parameters["from_ns"] is not None:
            found = set()
        rows = [
            {
                "attempt": 0, "rank": 0, "host_uid": "h", "spool_id": "s", "sequence_first": first,
                "sequence_last": last, "size_bytes": 10, "is_gone": (first, last) in self.gone,
            }
            for first, last in sorted(found - self._here)
        ]  # fmt: skip
        return pa.Table.from_pylist(rows)

    def fetch(self, spool_id: str, ranges: Sequence[Range]) -> bool:
        self.asked.append(set(ranges))
        self._here |= set(ranges)
        return True


NAMES = ("clock_error", "job_peak_lowest", "job_peak_highest", "stretches_at_peak", "stretches_missing")


@pytest.fixture(autouse=True)
def quick() -> Iterator[None]:
    with patch.object(fetching, "POLL_S", 0.0):
        yield


def test_the_likeliest_come_first_and_what_is_then_wanted_of_the_same_spool_at_once() -> None:
    hosts = Hosts({(0, 9)}, {(10, 19), (20, 29)}, set())
    found = fetch_peak(hosts, SESSION, timeout_s=60.0)
    assert hosts.asked == [{(0, 9)}, {(10, 19), (20, 29)}]
    assert (found.came, found.size_bytes, found.is_whole) == (3, 30, True)


def test_what_is_gone_is_not_asked_for_and_is_said() -> None:
    hosts = Hosts({(0, 9)}, {(10, 19)}, {(0, 9)})
    found = fetch_peak(hosts, SESSION, timeout_s=60.0)
    assert hosts.asked == [{(10, 19)}]
    assert (found.came, found.gone, found.is_whole) == (1, 1, False)


def test_no_more_bytes_are_brought_than_there_is_room_for() -> None:
    hosts = Hosts({(0, 9)}, {(10, 19), (20, 29)}, set())
    found = fetch_peak(hosts, SESSION, timeout_s=60.0, bytes_max=25)
    assert hosts.asked == [{(0, 9)}]
    assert found.size_bytes == 10


def test_the_peak_is_not_fetched_of_some_ranks() -> None:
    with pytest.raises(RankmemError, match="needs all ranks") as raised:
        fetch_events(Target(aggregator="127.0.0.1:1"), None, Wanted(ranks="0", is_peak=True), timeout_s=1.0)
    assert raised.value.code is Code.INVALID


@pytest.mark.parametrize("text", ["", "7-3", "0,7-3", "9999999999", "-3", "a"])
def test_a_list_that_names_no_ranks_is_an_error_and_not_all_of_them(text: str) -> None:
    with pytest.raises(RankmemError, match="names no ranks"):
        ranks_of(text)


def test_ranks_are_numbers_and_ranges() -> None:
    assert ranks_of("4-6,0,5") == [0, 4, 5, 6]


@pytest.mark.parametrize(
    ("since", "is_stored"),
    [([0], True), ([101], True), ([100, 100, 0], True), ([90, 100, 120], True), ([90, 90, 90, 90], False)],
    ids=["nothing is received", "all came later", "it is stored", "later ones wait", "the store is away"],
)
def test_what_came_is_waited_for_until_the_lake_has_it(since: list[int], is_stored: bool) -> None:
    said = iter(since)

    def state() -> AggregatorState:
        return AggregatorState.of(StatusReply(now_ns=100, unstored_since_ns=next(said, since[-1])))

    assert is_stored_within(state, 60.0 if is_stored else 0.0) is is_stored
