"""Which module and forward line real backward allocations belong to, and what a checkpoint computes again.

The MLP's widths occur once each, so that the size of a gradient says which layer's it is; the GPT's forward
is its own account of what a checkpoint must compute again.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from recorded_models import recorded_model

BACKWARD = "the call of backward"
Rows = dict[str, list[dict[str, Any]]]

GRADIENT_BYTES = {160 * 96 * 4: "first", 224 * 160 * 4: "second", 10 * 224 * 4: "third"}
"""Of each layer's weight."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rows]:
    """The rows of a model's training; each is trained once."""

    @functools.cache
    def of(name: str) -> Rows:
        tables = recorded_model(name, tmp_path_factory.mktemp(name))
        return {table: rows.to_pylist() for table, rows in tables.items()}

    return of


@pytest.fixture
def mlp(recorded: Callable[[str], Rows]) -> Rows:
    return recorded("mlp")


@pytest.fixture
def gpt(recorded: Callable[[str], Rows]) -> Rows:
    return recorded("gpt")


@pytest.fixture(params=["gpt_checkpoint", "gpt_reentrant"])
def checkpointed(request: pytest.FixtureRequest, recorded: Callable[[str], Rows]) -> Rows:
    return recorded(request.param)


def in_backward(rows: Rows) -> list[dict[str, Any]]:
    return [row for row in rows["allocation_record"] if row["annotation"] == BACKWARD]


def num_bytes(rows: list[dict[str, Any]]) -> int:
    return sum(row["size_bytes"] for row in rows)


def test_a_weights_gradient_belongs_to_the_weights_layer(mlp: Rows) -> None:
    gradients = [row for row in in_backward(mlp) if row["size_bytes"] in GRADIENT_BYTES]
    assert len(gradients) == 3 * len(GRADIENT_BYTES)  # steps
    for row in gradients:
        assert row["module"] == GRADIENT_BYTES[row["size_bytes"]]


def test_a_backward_block_has_the_line_of_its_forward_call(mlp: Rows) -> None:
    calls = {row["call_id"]: row for row in mlp["operator_call"]}
    frames: dict[int, list[str]] = {}
    for frame in mlp["stack_frame"]:
        frames.setdefault(frame["stack_id"], []).append(frame["function"])
    for row in in_backward(mlp):
        if row["size_bytes"] in GRADIENT_BYTES:
            forward = calls[row["forward_call_id"]]
            assert (forward["operator"], forward["phase"]) == ("aten::linear", "forward")
            assert row["forward_stack_id"] == forward["stack_id"]
            assert any(function.endswith("Mlp.forward") for function in frames[row["forward_stack_id"]])
            assert any(function.endswith("backward") for function in frames[row["stack_id"]])


@pytest.mark.parametrize("model", ["mlp", "cnn", "gpt", "gpt_checkpoint", "autocast", "two_optimizers"])
def test_nearly_all_bytes_of_backward_find_their_forward_call(
    model: str, recorded: Callable[[str], Rows]
) -> None:
    within = in_backward(recorded(model))
    attributed = [row for row in within if row["forward_call_id"] is not None or row["recomputed"]]
    assert within
    with_line = [row for row in within if row["forward_stack_id"] is not None or row["recomputed"]]
    assert num_bytes(attributed) >= 0.95 * num_bytes(within)
    assert num_bytes(with_line) >= 0.95 * num_bytes(within)
    phases = Counter[str]()
    for row in within:
        phases[row["phase"]] += row["size_bytes"]
    assert phases["backward"] >= 0.99 * num_bytes(within)


def test_what_backward_makes_for_no_module_belongs_to_the_loss_outside_of_every_module(gpt: Rows) -> None:
    calls = {row["call_id"]: row for row in gpt["operator_call"]}
    within = in_backward(gpt)
    without_module = [row for row in within if row["module"] is None]
    of_loss = [row for row in without_module if row["forward_call_id"] is not None]
    assert of_loss
    for row in of_loss:
        forward = calls[row["forward_call_id"]]
        assert (forward["operator"], forward["module"]) == ("aten::cross_entropy_loss", None)
        assert row["forward_stack_id"] is not None
    unattributed = num_bytes(without_module) - num_bytes(of_loss)
    assert num_bytes(within) - num_bytes(without_module) >= 0.95 * (num_bytes(within) - num_bytes(of_loss))
    assert unattributed <= 0.001 * num_bytes(within)  # the seed of backward


def test_a_sum_of_gradients_belongs_to_the_module_whose_node_ran_before_it(gpt: Rows) -> None:
    sums = [row for row in in_backward(gpt) if row["operator"] == "aten::add"]
    assert sums
    for row in sums:
        assert row["forward_call_id"] is not None
        assert str(row["module"]).startswith("blocks.")


def test_what_a_checkpoint_computes_again_has_the_modules_of_forward(checkpointed: Rows) -> None:
    blocks = checkpointed["allocation_record"]
    first: dict[str, set[int]] = {}
    for row in blocks:
        if row["phase"] == "forward":
            first.setdefault(row["module"], set()).add(row["size_bytes"])
    again = [row for row in blocks if row["recomputed"]]
    assert {row["module"] for row in again} >= {
        f"blocks.{n}.{part}" for n in range(3) for part in ("qkv", "out")
    }
    for row in again:
        assert row["phase"] == "backward"
        assert row["forward_call_id"] is None
        assert row["module"].startswith("blocks.")
        assert row["size_bytes"] in first[row["module"]]


def test_a_checkpoint_computes_again_what_forward_dropped_and_no_more(checkpointed: Rows) -> None:
    operators = ("aten::linear", "aten::matmul", "aten::softmax", "aten::gelu", "aten::layer_norm")
    blocks = [
        row for row in checkpointed["operator_call"] if row["operator"] in operators and row["allocations"]
    ]
    inside = [row for row in blocks if str(row["module"]).startswith("blocks.")]
    forward = Counter((row["module"], row["operator"]) for row in inside if row["phase"] == "forward")
    again = Counter((row["module"], row["operator"]) for row in inside if row["recomputed"])
    # Not reentrant, it stops once all that backward asks for is there: a block's last layer is not run again.
    last = {key for key in forward if key[0].endswith(".back")}
    assert {key: count for key, count in forward.items() if key not in last} == {
        key: count for key, count in again.items() if key not in last
    }


def test_without_a_checkpoint_nothing_is_recomputed(gpt: Rows, mlp: Rows) -> None:
    for rows in (gpt, mlp):
        assert not any(row["recomputed"] for row in rows["allocation_record"] + rows["operator_call"])


def test_what_a_closure_computes_is_forward_and_backward_and_not_the_optimizers(
    recorded: Callable[[str], Rows],
) -> None:
    rows = recorded("closure")
    made = [row for row in in_backward(rows) if row["operator"] != "aten::ones_like"]  # the seed
    assert {row["phase"] for row in made} == {"backward"}
    calls = [row for row in rows["operator_call"] if row["phase"] != "backward"]
    phases = {row["operator"]: row["phase"] for row in calls}
    assert phases["aten::linear"] == "forward"
    assert phases["aten::cross_entropy_loss"] == phases["aten::randn"] == "other"
    assert phases["aten::sqrt"] == "optimizer"


def test_weights_and_modules_are_told_with_their_line(mlp: Rows) -> None:
    weights = {row["name"]: row for row in mlp["weight"]}
    assert weights["second.weight"]["size_bytes"] == 224 * 160 * 4
    assert weights["second.weight"]["shape"] == "[224, 160]"
    functions = {
        frame["function"]
        for frame in mlp["stack_frame"]
        if frame["stack_id"] == weights["second.weight"]["stack_id"]
    }
    assert any(function.endswith("Linear.__init__") for function in functions)
    assert {row["class"] for row in mlp["module"] if row["module"] == "second"} == {"Linear"}
