"""What is read for curves of several ranks, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from rankmem_aggregator.query.timeline import (
    BLOCKS_TOGETHER_MAX,
    EVENTS_TOGETHER_MAX,
    TimelineReader,
    TimelineRequest,
)
from rankmem_protos.errors import Code, RankmemError

POINTS = pa.table({"group_name": ["mm"], "time_ns": [1], "bytes": [2]})


def asked_of(by: str, all_events: int) -> tuple[pa.Table, list[tuple[str, object]]]:
    """The answer over a session of so many events, and what was asked for it."""
    asked: list[tuple[str, object]] = []
    track = {
        "device_type": ["cpu"],
        "num_ranks": [2],
        "num_hosts": [1],
        "ranks": [[0, 1]],
        "first_ns": [0],
        "last_ns": [9],
        "events": [1],
        "all_events": [all_events],
    }

    def ask(name: str, **parameters: object) -> pa.Table:
        asked.append((name, parameters.get("by_second")))
        return pa.table(track) if name == "curve_ranks_track" else POINTS

    chosen = TimelineRequest(
        by=by, figure=None, ranks=None, together=True, attempt=None, device=None, from_ns=3, until_ns=4
    )
    return TimelineReader(ask, 100).read("session", chosen).table(), asked[1:]


def test_groups_of_several_ranks_are_read_to_the_event_up_to_a_limit() -> None:
    answer, asked = asked_of("operator", BLOCKS_TOGETHER_MAX)
    assert asked == [("job_curve_by_group", False)]
    assert answer.schema.metadata[b"exact"] == b"True"


def test_those_that_the_summaries_have_are_read_by_the_second_above_another() -> None:
    assert asked_of("category", EVENTS_TOGETHER_MAX)[1] == [("job_curve_by_group", False)]
    answer, asked = asked_of("category", EVENTS_TOGETHER_MAX + 1)
    assert asked == [("job_curve_by_group", True)]
    assert answer.schema.metadata[b"exact"] == b"False"


def test_the_others_are_refused_above_it_with_what_to_do() -> None:
    with pytest.raises(RankmemError, match="4,000,001 events of 2 ranks are too many") as refused:
        asked_of("operator", BLOCKS_TOGETHER_MAX + 1)
    assert refused.value.code is Code.EXHAUSTED
    assert "fewer ranks" in refused.value.hint
