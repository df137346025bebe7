"""The benchmarks' own arithmetic: what they print must be what they measured. Nothing is timed here."""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pytest

from bench.harness import Figure, alternate, failed, of_ratio, of_samples, render
from bench.synthetic_database import BATCH_EVENTS, DRIFTING, RANKS, STEADY, Shape, fill
from rankmem_aggregator.store import schema


def test_every_other_round_goes_backwards_so_that_a_drift_weighs_on_all_alike() -> None:
    order: list[str] = []

    def taking(name: str) -> float:
        order.append(name)
        return float(len(order))

    samples = alternate({"a": lambda: taking("a"), "b": lambda: taking("b")}, rounds=4)

    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert sum(samples["a"]) == sum(samples["b"])


def test_a_ratio_is_of_medians_and_its_spread_of_rounds() -> None:
    figure = of_ratio("on / off", [2.0, 2.0, 50.0], [1.0, 1.0, 10.0], at_most=1.5)

    assert figure.value == 2.0
    assert (figure.low, figure.high) == (2.0, 3.5)
    assert figure.verdict() == "MISSED"


@pytest.mark.parametrize(
    ("figure", "verdict"),
    [
        (Figure(what="x", value=1.0, at_most=1.0), "met"),
        (Figure(what="x", value=1.1, at_most=1.0), "MISSED"),
        (Figure(what="x", value=0.9, at_least=1.0), "MISSED"),
        (Figure(what="x", value=0.9), ""),
    ],
)
def test_a_missed_budget_is_said(figure: Figure, verdict: str) -> None:
    assert figure.verdict() == verdict


def test_an_answer_that_differs_fails_the_program_and_a_slow_one_does_not() -> None:
    slow = Figure(what="job peak", value=3.0, at_most=1.0)
    wrong = Figure(what="answers that differ", value=2, at_most=0, note="peak, steps", must=True)

    assert failed([slow, replace(wrong, value=0)]) == ""
    assert failed([slow, wrong]) == "answers that differ: 2.000, peak, steps"


def test_a_table_holds_every_figure_with_its_budget_and_the_facts_of_the_run() -> None:
    head = {"benchmark": "b", "title": "t", "date": "d", "machine": "m", "versions": "v", "command": "c"}

    text = render(head, [of_samples("step", [30.0, 31.0, 32.0], "ms", at_most=31.5)])

    assert "d · m · v · `c`" in text
    assert "| step | 31.0 ms | 30.5 to 31.5 (3) | ≤ 31.5 | met |" in text


@pytest.mark.parametrize("shape", [STEADY, DRIFTING], ids=lambda shape: shape.name)
def test_synthetic_ranks_have_the_totals_that_their_events_add_up_to(shape: Shape) -> None:
    with duckdb.connect() as connection:
        schema.prepare(connection)
        events = fill(connection, shape, BATCH_EVENTS * RANKS)
        wrong, backwards, ranks = connection.sql(_REPLAYED).fetchall()[0]
        counted = connection.sql("SELECT sum(events) FROM rank_info").fetchall()[0][0]

    assert (wrong, backwards, ranks) == (0, 0, RANKS)
    assert counted == events == BATCH_EVENTS * RANKS


_REPLAYED = """
WITH replayed AS (
    SELECT rank, requested_bytes, time_ns - lag(time_ns) OVER one AS passed_ns,
           sum(CASE action WHEN 'alloc' THEN size_bytes ELSE -size_bytes END) OVER one AS total_bytes
    FROM memory_event WINDOW one AS (PARTITION BY rank ORDER BY seq ROWS UNBOUNDED PRECEDING)
)
SELECT count(*) FILTER (WHERE total_bytes <> requested_bytes), count(*) FILTER (WHERE passed_ns < 0),
       count(DISTINCT rank)
FROM replayed
"""
