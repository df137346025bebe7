"""The facts of a timeline travel in the metadata of the public answer and come back as they were."""

from __future__ import annotations

import pytest

from rankmem_aggregator.query.thinning import SCHEMA
from rankmem_aggregator.query.timeline_facts import Timeline, TimelineFacts

OF_A_RANK = TimelineFacts(
    device="cuda:1",
    figure="all",
    first_ns=5,
    last_ns=9,
    stacked=False,
    exact=False,
    attempt=0,
    rank=3,
    host_name="a",
)
OF_RANKS = TimelineFacts(
    device="cuda", figure="reserved", first_ns=5, last_ns=9, stacked=True, num_ranks=4, num_hosts=2
)


@pytest.mark.parametrize("facts", [OF_A_RANK, OF_RANKS, TimelineFacts()])
def test_the_facts_come_back_from_the_metadata(facts: TimelineFacts) -> None:
    table = Timeline(rows=SCHEMA.empty_table(), facts=facts).table()
    assert Timeline.of(table).facts == facts
    assert table.schema.metadata[b"exact"] == str(facts.exact).encode()


@pytest.mark.parametrize(("text", "complete"), [("True", True), ("False", False), ("None", None)])
def test_whether_bytes_are_right_is_read_with_them(text: str, complete: bool | None) -> None:
    table = SCHEMA.empty_table().replace_schema_metadata({"complete": text})
    assert Timeline.of(table).complete is complete
