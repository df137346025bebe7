"""What leaks, over logs made by hand: lines, rates, graphs, forecasts, and what cannot be told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from typer.testing import CliRunner

from constructed import SECOND_NS, RankLog, clear, empty_database, store_logs, store_rows
from json_schema import faults
from rankmem_aggregator.insights.answer import Answer
from rankmem_aggregator.insights.json_schemas import schema_of
from rankmem_aggregator.insights.leaks import SCHEMA
from rankmem_aggregator.query import open as opening
from rankmem_aggregator.sql import query_text
from rankmem_cli.main import app
from rankmem_protos.credentials import Credentials
from rankmem_protos.errors import Code, RankmemError
from repetitions import long_but
from sized_steps import given_inputs

pytestmark = pytest.mark.slow

MIB = 1 << 20
GIB = 1 << 30
LEAK, CLEAN, RING = 10, 11, 12
"""Stacks: their lines are train.py:10 and so on."""
ENGINE = [
    {
        "stack_id": 20,
        "ordering": 0,
        "file_path": "torch/autograd/graph.py",
        "line_number": 9,
        "function": "_engine_run_backward",
    },
    {"stack_id": 20, "ordering": 1, "file_path": "train.py", "line_number": 20, "function": "main"},
    {"stack_id": 21, "ordering": 0, "file_path": "train.py", "line_number": 21, "function": "hook"},
    {
        "stack_id": 21,
        "ordering": 1,
        "file_path": "torch/autograd/graph.py",
        "line_number": 9,
        "function": "_engine_run_backward",
    },
]
"""Stacks of backward: its own, and that of a hook; on the engine's own threads a hook's frame is alone."""
Ask = Callable[..., Answer]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("leaks") / "job.duckdb"
    empty_database(str(path)).close()
    return path


@pytest.fixture
def ask(database: Path) -> Ask:
    def asked(logs: list[RankLog], more: dict[str, list[dict[str, Any]]], **options: Any) -> Answer:
        with duckdb.connect(str(database)) as connection:
            clear(connection)
            store_logs(connection, logs)
            frames = [
                {"stack_id": n, "ordering": 0, "file_path": "train.py", "line_number": n, "function": "main"}
                for n in range(10, 20)
            ]
            store_rows(connection, "stack_frame", frames)
            for table, rows in more.items():
                store_rows(connection, table, rows)
        with opening.open_queries(database, Credentials()) as queries:
            return queries.leaks(**options)

    return asked


def training(
    log: RankLog,
    steps: int,
    *,
    each: Callable[[RankLog, int, int], None] = lambda log, step, at: None,
    device: str = "cuda:0",
) -> RankLog:
    """Weights, an activation of every step that it frees, and what ``each`` adds to a step."""
    log.alloc("weights", 64 * MIB, at=1, device=device, operator="aten::empty", stack_id=CLEAN)
    for step in range(steps):
        at = (step + 1) * SECOND_NS
        size = (8 + step * 7 % 5) * MIB
        log.alloc(f"act{step}", size, at=at, device=device, operator="aten::mm", stack_id=CLEAN)
        each(log, step, at + 10)
        log.free(f"act{step}", at=at + 20)
        log.step_ends(step, at=at + 30)
    log.ended = (steps + 2) * SECOND_NS
    return log


def kept(size: int, stack_id: int = LEAK, every: int = 1, device: str = "cuda:0", **columns: Any) -> Any:
    """A tensor that stays from each ``every``-th step."""

    def each(log: RankLog, step: int, at: int) -> None:
        if step % every == 0:
            log.alloc(
                f"kept{stack_id}.{step}", size, at=at, device=device, stack_id=stack_id,
                **{"operator": "aten::add", **columns},
            )  # fmt: skip

    return each


def ring(length: int) -> Any:
    def each(log: RankLog, step: int, at: int) -> None:
        log.alloc(f"ring{step}", MIB, at=at, device="cuda:0", operator="aten::zeros", stack_id=RING)
        if step >= length:
            log.free(f"ring{step - length}", at=at + 1)

    return each


def test_a_leak_is_named_with_its_line_rate_and_first_step(ask: Ask) -> None:
    answer = ask([training(RankLog(), 70, each=kept(3 * MIB))], {})
    assert (answer.verdict, answer.certainty) == ("finding", "predicted")
    assert answer.sentence == "train.py:10 aten::add leaks by 3.00 MiB a step on rank 0, since step 1"
    (row,) = answer.rows.to_pylist()
    assert answer.rows.schema.equals(SCHEMA)
    assert (row["verdict"], row["line"], row["bytes_per_step"]) == ("leaks", "train.py:10", 3 * MIB)
    assert (row["held_bytes"], row["grown_blocks"]) == (70 * 3 * MIB, 55)
    assert row["bytes_ahead"] == 30_000 * MIB
    assert answer.complete
    assert answer.next_commands[0] == "rankmem live --rank 0"


def test_below_sixty_steps_a_leak_is_only_suspected(ask: Ask) -> None:
    answer = ask([training(RankLog(), 30, each=kept(MIB))], {})
    assert answer.rows["verdict"].to_pylist() == ["grows"]
    assert answer.certainty == "suspected"
    assert "cache that is still filling" in answer.error


def test_what_grows_each_sixteenth_step_may_go_on_after_the_last_one(ask: Ask) -> None:
    """As what is kept of each epoch's validation: three times within the steps looked at."""
    answer = ask([training(RankLog(), 64, each=kept(100 * MIB, every=16))], {})
    assert (answer.verdict, answer.certainty) == ("fine", "suspected")
    assert answer.sentence == (
        "no leak is sure: train.py:10 aten::add grew by 300.00 MiB, about every 16 steps, last in step 48, "
        "and may go on: record more steps"
    )
    assert answer.notes[0].startswith("not known to have stopped: train.py:10 aten::add grew by 300.00 MiB")
    (row,) = answer.rows.to_pylist()
    assert (row["verdict"], row["grows_each"], row["may_go_on"]) == ("stopped", 16, True)
    longer = ask([training(RankLog(), 130, each=kept(100 * MIB, every=16))], {})
    assert (longer.verdict, longer.rows["verdict"].to_pylist()) == ("finding", ["leaks"])


def test_growth_that_began_a_few_steps_ago_has_its_own_rate_and_is_only_suspected(ask: Ask) -> None:
    def each(log: RankLog, step: int, at: int) -> None:
        if step >= 50:
            kept(3 * MIB)(log, step, at)

    answer = ask([training(RankLog(), 64, each=each)], {})
    assert answer.sentence == "train.py:10 aten::add grows by 3.00 MiB a step on rank 0, since step 50"
    assert answer.certainty == "suspected"
    assert answer.error == "14 steps after it began a cache that is still filling looks the same"
    longer = ask([training(RankLog(), 110, each=each)], {})
    assert (longer.certainty, longer.rows["verdict"].to_pylist()) == ("predicted", ["leaks"])


def test_what_began_late_makes_a_sure_leak_no_less_sure(ask: Ask) -> None:
    def each(log: RankLog, step: int, at: int) -> None:
        kept(3 * MIB)(log, step, at)
        if step >= 50:
            kept(4 * MIB, stack_id=13)(log, step, at)

    device = {"session_id": RankLog().session_id, "attempt": 0, "rank": 0, "device": "cuda:0"}
    answer = ask([training(RankLog(), 64, each=each)], {"device_info": [device | {"total_bytes": 40 * GIB}]})
    assert answer.sentence == (
        "train.py:10 aten::add leaks by 3.00 MiB a step on rank 0, since step 1, and so may 1 more place"
    )
    assert answer.certainty == "predicted"
    assert answer.error.endswith(
        "; of what grows: 14 steps after it began a cache that is still filling looks the same"
    )
    assert answer.notes[0].startswith("at the rate of all that leaks or may leak rank 0, cuda:0 is out of")


def test_what_grows_ever_less_up_to_the_end_has_not_stopped(ask: Ask) -> None:
    def each(log: RankLog, step: int, at: int) -> None:
        kept(2 * MIB if step < 40 else MIB)(log, step, at)

    answer = ask([training(RankLog(), 70, each=each)], {})
    assert (answer.verdict, answer.certainty) == ("fine", "suspected")
    assert answer.sentence == (
        "no leak is sure: train.py:10 aten::add grew by 80.00 MiB, still in step 69, though more "
        "slowly than before, and may go on: record more steps"
    )
    assert answer.error == "it grew up to the end, though more slowly than before"
    (row,) = answer.rows.to_pylist()
    assert (row["verdict"], row["may_go_on"], row["unsure"]) == ("stopped", True, answer.error)


def test_what_is_kept_whenever_inputs_get_longer_may_be_kept_of_each_epoch(ask: Ask) -> None:
    """Where each epoch has a length of its own, nothing tells what is kept of each from a cache by length."""
    log = training(RankLog(), 70, each=kept(MIB, every=5))
    answer = ask([log], {"step_input": given_inputs(log, [16 + step // 5 for step in range(70)])})
    (row,) = answer.rows.to_pylist()
    assert (answer.verdict, answer.certainty, row["verdict"]) == ("fine", "suspected", "cache")
    assert (
        answer.error
        == "growth or new sizes come at even distances, as they would if something were kept of each epoch"
    )
    assert answer.notes[0].endswith(f"it ends when all have come; but {answer.error}")


def test_growth_at_even_distances_may_be_kept_of_each_epoch_beside_another_new_size(ask: Ask) -> None:
    """The last batch of the second epoch, say, is shorter, and nothing is kept of it."""
    log = training(RankLog(), 64, each=kept(100 * MIB, every=16))
    lengths = [16 + step // 16 + (step >= 17) for step in range(64)]
    answer = ask([log], {"step_input": given_inputs(log, lengths)})
    assert (answer.verdict, answer.certainty) == ("fine", "suspected")
    assert answer.error.endswith("as they would if something were kept of each epoch")


def test_of_several_caches_each_has_its_own_reason(ask: Ask) -> None:
    def each(log: RankLog, step: int, at: int) -> None:
        kept(2 * MIB, every=5)(log, step, at)
        kept(MIB, every=5, stack_id=13)(log, step, at)

    log = training(RankLog(), 70, each=each)
    answer = ask([log], {"step_input": given_inputs(log, [16 + step // 5 for step in range(70)])})
    assert answer.rows["verdict"].to_pylist() == ["cache", "cache"]
    assert [note.count("; but growth or new sizes") for note in answer.notes[:2]] == [1, 1]


def test_a_rank_on_which_it_has_stopped_does_not_hide_one_on_which_it_may_go_on(ask: Ask) -> None:
    def fills(log: RankLog, step: int, at: int) -> None:
        if step < 40:
            kept(4 * MIB)(log, step, at)

    def slows(log: RankLog, step: int, at: int) -> None:
        kept(2 * MIB if step < 40 else MIB)(log, step, at)

    logs = [training(RankLog(rank=rank), 70, each=each) for rank, each in enumerate((fills, slows))]
    answer = ask(logs, {})
    (row,) = answer.rows.to_pylist()
    assert (row["verdict"], row["num_ranks"], row["rank"], row["may_go_on"]) == ("stopped", 2, 1, True)
    assert (answer.certainty, answer.error) == ("suspected", row["unsure"])


def test_what_stays_is_fine_and_a_ring_has_stopped(ask: Ask) -> None:
    assert ask([training(RankLog(), 30)], {}).verdict == "fine"
    answer = ask([training(RankLog(), 40, each=ring(20))], {})
    assert (answer.verdict, answer.rows["verdict"].to_pylist()) == ("fine", ["stopped"])
    assert answer.notes[0] == "stopped: train.py:12 aten::zeros grew by 11.00 MiB, to step 19"


LENGTHS = [step if step % 2 else 8 for step in range(40)]
"""Of inputs: every second step has a new one."""


def keeps_each_length(log: RankLog, step: int, at: int) -> None:
    if LENGTHS[step] not in LENGTHS[:step]:
        kept(MIB)(log, step, at)


def test_a_cache_by_length_is_no_leak_and_says_so(ask: Ask) -> None:
    log = training(RankLog(), 40, each=keeps_each_length)
    assert ask([log], {}).rows["verdict"].to_pylist() == ["grows"], (
        "without the lengths nothing tells them apart"
    )
    for_lengths = given_inputs(log, LENGTHS)
    answer = ask([log], {"step_input": for_lengths})
    (row,) = answer.rows.to_pylist()
    assert (answer.verdict, row["verdict"], row["bytes_per_step"]) == ("fine", "cache", None)
    assert "cache: train.py:10 aten::add grew by" in answer.notes[0]
    assert "only in steps whose input has a size that none before had" in answer.notes[0]
    batches = [each | {"shape": f"[{step + 1}, {LENGTHS[step]}]"} for step, each in enumerate(for_lengths)]
    assert ask([log], {"step_input": batches}).rows["verdict"].to_pylist() == ["cache"], "of one dimension"
    some = [each for each in for_lengths if each["step"] != 21]
    assert ask([log], {"step_input": some}).rows["verdict"].to_pylist() == ["grows"], (
        "grew where no length is known"
    )


def test_a_leak_beside_inputs_of_many_lengths_is_one(ask: Ask) -> None:
    log = training(RankLog(), 40, each=kept(MIB))
    assert ask([log], {"step_input": given_inputs(log, LENGTHS)}).rows["verdict"].to_pylist() == ["grows"]


def made_anew(size_of: Callable[[int], int]) -> Any:
    """What each step makes, and the next one replaces: the logits of the last step."""

    def each(log: RankLog, step: int, at: int) -> None:
        log.alloc(f"logits{step}", size_of(step), at=at, device="cuda:0", operator="aten::cat", stack_id=LEAK)
        if step:
            log.free(f"logits{step - 1}", at=at + 1)

    return each


LONGER = [16 + 2 * step for step in range(70)]
"""Lengths of a curriculum."""
IN_EPOCHS = [16 + 8 * (step // 5) for step in range(70)]
UP_AND_DOWN = [64 + 6 * step + (0, 19, 7)[step % 3] for step in range(70)]


@pytest.mark.parametrize(
    ("lengths", "size_of", "verdict"),
    [
        (LONGER, lambda step: LONGER[step] * 8192, "input"),
        (LONGER, lambda step: LONGER[step] ** 2 * 64, "input"),
        (IN_EPOCHS, lambda step: IN_EPOCHS[step] * 8192, "input"),
        (UP_AND_DOWN, lambda step: MIB + UP_AND_DOWN[step] * 8192, "input"),
        # Made after the optimizer's step, of the input before it.
        (UP_AND_DOWN, lambda step: MIB + UP_AND_DOWN[max(step - 1, 0)] * 8192, "input"),
        (IN_EPOCHS, lambda step: IN_EPOCHS[max(step - 1, 0)] * 8192, "input"),
        # What is put together from all steps grows by as much in each, as these inputs do.
        (LONGER, lambda step: (1 + step) * 8192, "grows"),
        (UP_AND_DOWN, lambda step: (1 + step) * 8192, "leaks"),
        ([64] * 70, lambda step: (1 + step) * 8192, "leaks"),
        ([], lambda step: (1 + step) * 8192, "grows"),
    ],
)
def test_what_each_step_makes_for_its_own_input_is_told_from_what_gathers(
    ask: Ask, lengths: list[int], size_of: Callable[[int], int], verdict: str
) -> None:
    log = training(RankLog(), 70, each=made_anew(size_of))
    answer = ask([log], {"step_input": given_inputs(log, lengths)})
    (row,) = answer.rows.to_pylist()
    assert row["verdict"] == verdict
    assert answer.certainty == ("suspected" if verdict == "grows" else "predicted")
    if verdict == "input":
        assert answer.sentence == (
            "no leak found: what keeps growing is bounded by the inputs or by the model (1 rank checked)"
        )
        assert "as large as its input needs: it ends when inputs grow no more" in answer.notes[0]
    if verdict == "grows":
        assert answer.error == row["unsure"]
        assert answer.error.startswith("all of it is made anew in each step, and" if not lengths else
                                       "all of it is made anew in each step and inputs grow")  # fmt: skip


def unfreezing(every: int, *, gradients: int = MIB, state: int = 2 * MIB, later: int = 0) -> Any:
    """One more layer is trained each so many steps: its gradient stays, and the optimizer makes its state.

    Args:
        later: bytes of state that each step adds besides.
    """

    def each(log: RankLog, step: int, at: int) -> None:
        of = {"at": at, "device": "cuda:0"}
        if step == 0:
            for layer in range(12):
                log.alloc(f"w{layer}", MIB, category="parameter", operator="aten::empty", stack_id=14, **of)
        if step % every == 0:
            log.alloc(f"g{step}", gradients, category="gradient", operator="aten::mm", stack_id=15, **of)
            log.alloc(
                f"s{step}", state, category="optimizer_state", operator="aten::zeros_like", stack_id=16, **of
            )
        if later:
            log.alloc(
                f"l{step}", later, category="optimizer_state", operator="aten::clone", stack_id=17, **of
            )

    return each


@pytest.mark.parametrize(
    ("each", "verdicts"),
    [
        (unfreezing(8), {15: "model", 16: "model"}),
        (unfreezing(1, state=1), {15: "leaks", 16: "model"}),
        (unfreezing(8, state=12 * MIB), {15: "model", 16: "leaks"}),
        (unfreezing(8, later=65536), {15: "model", 16: "model", 17: "leaks"}),
        (kept(MIB, category="parameter"), {LEAK: "grows"}),
        (kept(MIB, category="gradient"), {LEAK: "leaks"}),
    ],
)
def test_gradients_and_state_are_bounded_by_the_parameters_as_far_as_these_explain_them(
    ask: Ask, each: Any, verdicts: dict[int, str]
) -> None:
    answer = ask([training(RankLog(), 80, each=each)], {})
    found = {row["line"]: row["verdict"] for row in answer.rows.to_pylist()}
    assert found == {f"train.py:{line}": verdict for line, verdict in verdicts.items()}
    if set(verdicts.values()) == {"model"}:
        assert (answer.verdict, answer.certainty) == ("fine", "suspected")
        assert "gradients or state of the optimizer grow" in answer.error
        assert any("state of the optimizer, no more than its parameters" in note for note in answer.notes)
    if "grows" in verdicts.values():
        assert (answer.certainty, answer.error) == (
            "suspected", "these are parameters or grow with them, and a model may be meant to grow"
        )  # fmt: skip


def growing_model(*, gradients: int = MIB, state_every: int = 8) -> Any:
    """A layer is added each eighth step: its parameters, its gradient, and its state of the optimizer."""

    def each(log: RankLog, step: int, at: int) -> None:
        of = {"at": at, "device": "cuda:0"}
        if step % 8 == 0:
            log.alloc(f"w{step}", MIB, category="parameter", operator="aten::empty", stack_id=14, **of)
            log.alloc(f"g{step}", gradients, category="gradient", operator="aten::mm", stack_id=15, **of)
        if step % state_every == 0:
            log.alloc(
                f"s{step}", MIB // 8, category="optimizer_state", operator="aten::clone", stack_id=16, **of
            )

    return each


@pytest.mark.parametrize(
    ("each", "leaks"),
    [
        (growing_model(), set()),
        (growing_model(gradients=2 * MIB), {15}),
        (growing_model(state_every=4), {16}),
    ],
)
def test_gradients_and_state_of_a_model_that_is_meant_to_grow_are_no_sure_leak(
    ask: Ask, each: Any, leaks: set[int]
) -> None:
    """What grows beyond the parameters, or beside them, is one."""
    answer = ask([training(RankLog(), 80, each=each)], {})
    found = {row["line"]: row["verdict"] for row in answer.rows.to_pylist()}
    assert found == {f"train.py:{line}": "leaks" if line in leaks else "grows" for line in (14, 15, 16)}
    assert answer.certainty == ("predicted" if leaks else "suspected")


@pytest.mark.parametrize(("stays", "verdict"), [(False, "grows"), (True, "leaks")])
def test_state_of_parameters_used_for_the_first_time_may_be_no_leak(
    ask: Ask, stays: bool, verdict: str
) -> None:
    """As of experts: the gradient of one at a time is as large as the last one's and shows nothing."""
    state = kept(128 * 1024, stack_id=16, category="optimizer_state", operator="aten::zeros_like")

    def each(log: RankLog, step: int, at: int) -> None:
        of = {"at": at, "device": "cuda:0", "stack_id": 15}
        if step == 0:
            log.alloc("w", 12 * MIB, category="parameter", operator="aten::empty", **of)
            if stays:
                log.alloc("g", MIB, category="gradient", operator="aten::mm", **of)
        log.alloc(f"g{step}", 1024 * (1 + step * stays % 3), category="gradient", operator="aten::mm", **of)
        if step:
            log.free(f"g{step - 1}", at=at + 1)
        state(log, step, at)

    answer = ask([training(RankLog(), 70, each=each)], {})
    (row,) = answer.rows.to_pylist()
    assert (row["line"], row["verdict"]) == ("train.py:16", verdict)
    if verdict == "grows":
        assert answer.certainty == "suspected"
        assert answer.error.startswith("it may be the state of parameters that are used for the first time")


@pytest.mark.parametrize(("optimizer", "verdict"), [("LBFGS", "model"), ("Mine", "leaks")])
def test_the_history_of_lbfgs_is_bounded(ask: Ask, optimizer: str, verdict: str) -> None:
    state = kept(MIB, category="optimizer_state")

    def each(log: RankLog, step: int, at: int) -> None:
        if step == 0:
            log.alloc("w", MIB, at=at, device="cuda:0", category="parameter", operator="aten::empty",
                      stack_id=14)  # fmt: skip
        state(log, step, at)

    log = training(RankLog(), 80, each=each)
    for row in log.steps:
        row["optimizer"] = optimizer
    assert ask([log], {}).rows["verdict"].to_pylist() == [verdict]


def test_calls_of_the_model_before_the_first_step_of_a_training_are_none(ask: Ask) -> None:
    log = training(RankLog(), 80, each=kept(MIB))
    for row in log.steps[:71]:
        row["optimizer"] = "model call"
    assert ask([log], {}).sentence.startswith("9 steps recorded, at least 10")
    log = training(RankLog(), 80, each=kept(MIB))
    for row in log.steps[:20]:
        row["optimizer"] = "model call"
    answer = ask([log], {})
    (row,) = answer.rows.to_pylist()
    assert (row["verdict"], row["since_step"], answer.figures["least_steps_looked_at"]) == ("leaks", 21, 48)
    for row in log.steps:
        row["optimizer"] = "model call"
    assert ask([log], {}).figures["least_steps_looked_at"] == 64, "of inference they are steps"


def test_backwards_blocks_count_for_the_forward_line(ask: Ask) -> None:
    answer = ask(
        [training(RankLog(), 30, each=kept(MIB, 20, forward_stack_id=LEAK))], {"stack_frame": ENGINE}
    )
    assert answer.rows["line"].to_pylist() == ["train.py:10"]


@pytest.mark.parametrize("stack", [CLEAN, 21])
def test_what_a_hook_keeps_within_backward_counts_for_the_hooks_line(stack: int, ask: Ask) -> None:
    answer = ask(
        [training(RankLog(), 30, each=kept(MIB, stack, forward_stack_id=LEAK))], {"stack_frame": ENGINE}
    )
    assert answer.rows["line"].to_pylist() == [f"train.py:{stack}"]


def test_ranks_and_attempts_are_judged_apart_and_folded_by_line(ask: Ask) -> None:
    logs = [
        training(RankLog(rank=0), 30, each=kept(MIB)),
        training(RankLog(rank=1), 30, each=kept(2 * MIB)),
        training(RankLog(rank=2, attempt=1), 30),
        training(RankLog(rank=2), 4, each=kept(MIB)),
        training(RankLog(rank=3), 4, each=kept(MIB)),
    ]
    answer = ask(logs, {})
    (row,) = answer.rows.to_pylist()
    assert (row["num_ranks"], row["rank"], row["bytes_per_step"]) == (2, 1, 2 * MIB)
    assert "on 2 ranks" in answer.sentence
    assert any("1 rank not looked at, with fewer than 10 steps" in note for note in answer.notes)
    assert ask(logs, {}, rank=0).rows["rank"].to_pylist() == [0]


def test_a_kept_graph_is_told_from_its_lines(ask: Ask) -> None:
    def graph(log: RankLog, step: int, at: int) -> None:
        for stack_id in (14, 15, 16):
            kept(MIB, stack_id, category="activation", module=f"GPT.h.{stack_id}")(log, step, at)

    answer = ask([training(RankLog(), 30, each=graph)], {})
    assert answer.rows["in_graph"].to_pylist() == [True] * 3
    assert any("an autograd graph is being kept alive: 3 places in GPT each" in note for note in answer.notes)


def test_the_forecast_is_room_over_rate(ask: Ask) -> None:
    device = {"session_id": RankLog().session_id, "attempt": 0, "rank": 0, "device": "cuda:0"}
    answer = ask(
        [training(RankLog(), 70, each=kept(2 * MIB))], {"device_info": [device | {"total_bytes": 40 * GIB}]}
    )
    usable = 40 * GIB - round(0.01 * 40 * GIB)
    peak = 64 * MIB + 12 * MIB + 70 * 2 * MIB  # the last step of the largest activation has all but one kept
    left = answer.figures["steps_left"]
    assert answer.figures["usable_bytes"] == usable
    assert left == pytest.approx((usable - peak) / (2 * MIB), abs=2)
    assert answer.figures["steps_left_low"] == answer.figures["steps_left_high"] == left
    assert any(f"is out of memory about {left:,} steps" in note for note in answer.notes)
    (whose,) = answer.figures["devices"]
    assert (whose["device"], whose["verdict"], whose["bytes_per_step"]) == ("cuda:0", "leaks", 2 * MIB)
    assert (whose["steps_left"], whose["usable_bytes"]) == (left, usable)


def test_without_the_devices_size_there_is_no_forecast(ask: Ask) -> None:
    answer = ask([training(RankLog(), 70, each=kept(2 * MIB))], {})
    assert not any("steps_left" in name for name in answer.figures)
    assert [each["steps_left"] for each in answer.figures["devices"]] == [None]


def test_a_few_bytes_a_step_are_no_finding(ask: Ask) -> None:
    answer = ask([training(RankLog(), 70, each=kept(64))], {})
    assert (answer.verdict, answer.rows["verdict"].to_pylist()) == ("fine", ["negligible"])
    told = "each line that keeps growing adds less than 1.00 MiB in 10,000 steps (1 rank checked)"
    assert answer.sentence == f"no leak found: {told}"


@pytest.mark.parametrize(
    ("steps", "reason"),
    [(0, "no steps were recorded"), (1, "1 step recorded"), (9, "9 steps recorded, at least 10")],
)
def test_too_few_steps_cannot_tell(ask: Ask, steps: int, reason: str) -> None:
    answer = ask([training(RankLog(), steps, each=kept(MIB))], {})
    assert (answer.verdict, answer.exit_code(), answer.certainty) == ("cannot tell", 2, None)
    assert answer.sentence.startswith(reason)
    assert not answer.rows.num_rows


def test_without_calls_no_line_can_be_named(ask: Ask) -> None:
    log = training(RankLog(), 30, each=kept(MIB, operator=None))
    for row in log.allocations.values():
        row |= {"operator": None, "stack_id": None}
    answer = ask([log], {})
    assert answer.verdict == "cannot tell"
    assert answer.sentence.startswith("the recording has neither operators nor stacks")


def test_totals_alone_cannot_tell(ask: Ask) -> None:
    log = training(RankLog(), 30, each=kept(MIB))
    log.allocations.clear()
    answer = ask([log], {})
    assert answer.verdict == "cannot tell"
    assert answer.sentence.startswith("no blocks are recorded that outlive a step")


def test_steps_without_a_place_among_the_events_are_none(ask: Ask) -> None:
    log = training(RankLog(), 30, each=kept(MIB))
    for row in log.steps:
        row["seq"] = None
    buckets = log.steps
    log.steps = []
    answer = ask([log], {"step": buckets})
    assert answer.sentence.startswith("no steps were recorded")


def test_an_unfinished_run_is_judged_to_its_last_stored_step(ask: Ask) -> None:
    log = training(RankLog(), 70, each=kept(MIB))
    log.ended = None
    answer = ask([log], {})
    assert answer.verdict == "finding"
    assert "1 rank still running: as of the last step stored" in answer.notes


def test_over_lost_events_nothing_is_more_than_suspected(ask: Ask) -> None:
    gap = {"session_id": RankLog().session_id, "attempt": 0, "rank": 0, "spool_id": "s", "why": "spool_full"}
    gap |= {"sequence_first": 5, "sequence_last": 7, "records": 3, "noticed_ns": 1}
    answer = ask([training(RankLog(), 70, each=kept(MIB))], {"gap": [gap]})
    assert (answer.certainty, answer.complete) == ("suspected", False)
    assert answer.error.startswith("events are missing")
    assert answer.missing


def test_an_unknown_rank_is_an_error(ask: Ask) -> None:
    with pytest.raises(RankmemError) as told:
        ask([training(RankLog(), 30)], {}, rank=7)
    assert told.value.code is Code.NOT_FOUND


def test_a_hundred_thousand_steps_are_not_copied_for_each_of_them(database: Path) -> None:
    with duckdb.connect(str(database)) as connection:
        clear(connection)
        log = RankLog()
        log.alloc("weights", MIB, at=1, device="cuda:0")
        store_logs(connection, [log])
        ((session_id,),) = connection.execute("SELECT session_id FROM session").fetchall()
        of_rank = "SELECT $session AS session_id, 0 AS attempt, 0 AS rank, i AS step"
        connection.execute(
            f"INSERT INTO step BY NAME {of_rank}, i AS seq, i AS ended_ns FROM range(100_000) AS r(i)",
            {"session": session_id},
        )
        connection.execute(
            f"INSERT INTO step_bucket BY NAME {of_rank}, 'cuda:0' AS device, i AS seq_last, i AS peak_bytes, "
            "i AS peak_seq, i AS peak_ns, 0 AS last_bytes, 0 AS allocated_bytes, 0 AS num_allocations "
            "FROM range(100_000) AS r(i)",
            {"session": session_id},
        )
        connection.execute("SET memory_limit = '400MB'; SET temp_directory = ''")
        (row,) = (
            connection.sql(query_text("step_tracks"), params={"session": session_id, "rank": None})
            .to_arrow_table()
            .to_pylist()
        )
    assert (len(row["steps"]), row["peak_bytes"]) == (100_000, 99_999)


def test_the_series_of_all_groups_add_up_to_what_each_step_left(ask: Ask, database: Path) -> None:
    logs = [
        training(RankLog(rank=rank), 25, each=each)
        for rank, each in enumerate((kept(MIB, every=3), ring(6), ring(40)))
    ]
    logs[0].preexisting("older", 5 * MIB, device="cuda:0")
    ask(logs, {})
    with opening.open_queries(database, Credentials()) as queries:
        changes = queries._ask("held_after_steps", session=RankLog().session_id, rank=None)
        for log in logs:
            total = np.zeros(25, np.int64)
            for row in changes.to_pylist():
                if row["rank"] == log.rank:
                    total[row["place"]] += row["change_bytes"]
            at_ends = [
                [event for event in log.events if event["seq"] < step["seq"]][-1]["requested_bytes"]
                for step in log.steps
            ]
            assert np.cumsum(total).tolist() == [held + (5 * MIB if log.rank == 0 else 0) for held in at_ends]


@pytest.mark.parametrize(
    ("steps", "fail_on", "code"), [(70, None, 0), (70, "predicted", 1), (30, "predicted", 0), (5, None, 2)]
)
@pytest.mark.parametrize("output", long_but(["table", "json", "csv"], "json"))
def test_the_verb_exits_by_its_verdict(
    ask: Ask, database: Path, steps: int, fail_on: str | None, code: int, output: str
) -> None:
    ask([training(RankLog(), steps, each=kept(MIB))], {})
    arguments = ["leaks", "--db", str(database), "--format", output]
    done = CliRunner().invoke(app, arguments + (["--fail-on", fail_on] if fail_on else []))
    assert done.exit_code == code, done.output
    if output == "json":
        document = json.loads(done.stdout)
        assert faults(schema_of("leaks"), document) == []
        assert {tuple(row) for row in document["rows"]} <= {tuple(SCHEMA.names)}
    elif output == "csv":
        assert done.stdout.splitlines()[0] == ",".join(SCHEMA.names)
    else:
        first = done.stdout.splitlines()[0]
        assert first.startswith("cannot tell: 5 steps" if code == 2 else "train.py:10 aten::add")
