"""What each block means, told by small logs; and that it does not depend on where batches are cut."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from category_story import Story, Told, take
from rankmem_agent.spool.layout import Action, Category, DeviceType, Phase
from rankmem_ship.pairing.pairing import Pairing
from rankmem_ship.spool_reader.reader import Chunk
from repetitions import examples
from spool_synthetic import reader_of

pytestmark = pytest.mark.slow

FORWARD, BACKWARD, OPTIMIZER, OTHER = Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path / "s")


def everywhere(story: Story) -> list[dict[str, Told]]:
    """The story in one batch, and with a cut before every record."""
    return [story.told(), story.told(range(1, story.spool.next_seq))]


def last(told: dict[str, Told]) -> dict[str, str]:
    return {name: block.last for name, block in told.items()}


def test_a_block_freed_in_its_call_is_temporary(story: Story) -> None:
    with story.call(FORWARD, nodes=1):
        story.alloc("scratch")
        story.alloc("output")
        story.free("scratch")
    for told in everywhere(story):
        assert last(told) == {"scratch": "temporary", "output": "activation"}


def test_a_tag_within_the_call_that_made_the_block_holds_wherever_the_log_is_cut(story: Story) -> None:
    with story.call(BACKWARD, node=7):
        story.alloc("freed in the call")
        story.tag(Category.PARAMETER, "freed in the call")
        story.alloc("freed after it")
        story.tag(Category.GRADIENT, "freed after it")
        story.tag(Category.PARAMETER, "freed after it")
        story.alloc("from its tag on")
        here = story.tag(Category.PARAMETER, "from its tag on", since_alloc=False)
        story.alloc("told by the user")
        story.tag(Category.KV_CACHE, "told by the user", by_user=True)
        story.free("freed in the call")
    story.free("freed after it")
    for told in everywhere(story):
        assert last(told) == {
            "freed in the call": "parameter",
            "freed after it": "parameter",
            "from its tag on": "parameter",
            "told by the user": "kv_cache",
        }
        assert told["from its tag on"].at(here - 1) == "autograd_detail"


def test_a_tag_within_a_call_does_not_reach_the_next_block_at_its_address(story: Story) -> None:
    with story.call(BACKWARD, node=7):
        story.alloc("first", address=4096)
        story.tag(Category.PARAMETER, "first")
        story.free("first")
        story.alloc("second", address=4096)
    for told in everywhere(story):
        assert last(told) == {"first": "parameter", "second": "autograd_detail"}


def test_in_backward_a_block_freed_within_its_node_is_temporary_though_its_call_has_ended(
    story: Story,
) -> None:
    with story.call(BACKWARD, node=7):
        story.alloc("within")
        story.alloc("handed on")
    with story.call(BACKWARD, node=7):
        story.free("within")
    with story.call(BACKWARD, node=8):
        story.free("handed on")
    at_once, one_by_one = everywhere(story)
    assert last(at_once) == last(one_by_one) == {"within": "temporary", "handed on": "autograd_detail"}
    # Told later, it holds since the alloc.
    assert one_by_one["within"].initial == "autograd_detail"
    assert [change[0] for change in one_by_one["within"].changes] == [one_by_one["within"].seq]
    assert at_once["within"].changes == []


def test_what_the_engine_sums_outside_of_nodes_is_autograd_detail(story: Story) -> None:
    with story.call(BACKWARD, "aten::add"):
        story.alloc("sum")
    assert last(story.told()) == {"sum": "autograd_detail"}


def test_a_gradient_has_been_one_since_it_was_made(story: Story) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("gradient")
        story.alloc("other")
    tag = story.tag(Category.GRADIENT, "gradient")
    for told in everywhere(story):
        assert last(told) == {"gradient": "gradient", "other": "autograd_detail"}
        assert told["gradient"].at(tag - 1) == "gradient"


def test_gradients_at_the_addresses_of_the_step_before_are_other_blocks(story: Story) -> None:
    for step in range(3):
        with story.call(BACKWARD, node=1 + step):
            story.alloc(f"gradient {step}", address=4096)
        if step != 1:  # an optimizer that skipped a step
            story.tag(Category.GRADIENT, f"gradient {step}")
        story.free(f"gradient {step}")
    for told in everywhere(story):
        assert last(told) == {
            "gradient 0": "gradient",
            "gradient 1": "autograd_detail",
            "gradient 2": "gradient",
        }


def test_a_tag_inside_of_a_block_is_about_the_block_and_one_past_its_end_is_not(story: Story) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("bucket", size=1024)
        story.alloc("neighbour", size=64)
    story.tag(Category.GRADIENT, "bucket", offset=1000)
    story.tag(Category.GRADIENT, "neighbour", offset=64)
    for told in everywhere(story):
        assert last(told) == {"bucket": "gradient", "neighbour": "autograd_detail"}


def test_optimizer_state_is_known_when_the_step_has_ended(story: Story) -> None:
    with story.call(OPTIMIZER, "aten::zeros_like", grad=False):
        story.alloc("exp_avg")
    story.tag(Category.OPTIMIZER_STATE, "exp_avg")
    for told in everywhere(story):
        assert last(told) == {"exp_avg": "optimizer_state"}
        assert told["exp_avg"].at(told["exp_avg"].seq) == "optimizer_state"


def test_what_an_optimizers_step_makes_and_gives_back_is_temporary_and_what_it_keeps_is_unknown(
    story: Story,
) -> None:
    with story.call(OPTIMIZER, "aten::sqrt", grad=False):
        story.alloc("denominator")
        story.alloc("kept")
        story.alloc("kept until the step is over")
    with story.call(OPTIMIZER, "aten::div", grad=False):
        pass
    story.free("denominator")
    story.step_ends()
    story.free("kept until the step is over")
    for told in everywhere(story):
        assert last(told) == {
            "denominator": "temporary", "kept": "unknown", "kept until the step is over": "unknown",
        }  # fmt: skip
        assert told["denominator"].at(told["denominator"].seq) == "temporary"


def test_a_parameter_stays_one_whatever_else_it_is_called(story: Story) -> None:
    with story.call(OTHER, "aten::empty"):
        story.alloc("weight")
    for category in (Category.PARAMETER, Category.GRADIENT, Category.INPUT):
        story.tag(category, "weight")
    for told in everywhere(story):
        assert last(told) == {"weight": "parameter"}


def a_round(story: Story, number: int, operator: str = "aten::randn") -> None:
    """A batch, its forward and backward; the batch before is let go of when the next one is there."""
    with story.call(OTHER, operator):
        story.alloc(f"data {number}")
    if number:
        story.free(f"data {number - 1}")
    with story.call(FORWARD, nodes=1):
        story.alloc(f"hidden {number}")
    with story.call(BACKWARD, node=1 + number):
        story.alloc(f"gradient {number}")
    with story.call(OPTIMIZER, "aten::mul", grad=False):
        pass
    story.step_ends()


@pytest.mark.parametrize("operator", ["aten::randn", "aten::index", "aten::stack", "aten::to"])
def test_a_line_that_has_made_a_batch_makes_input(story: Story, operator: str) -> None:
    for number in range(4):
        a_round(story, number, operator)
    for told in everywhere(story):
        assert [told[f"data {number}"].last for number in range(4)] == ["unknown", *["input"] * 3]
        assert told["data 3"].at(told["data 3"].seq) == "input"


def test_what_lives_on_over_steps_is_no_input_whatever_made_it(story: Story) -> None:
    with story.call(OTHER, "aten::randn"):
        story.alloc("weights, momentum or a data set")
    for number in range(4):
        a_round(story, number, "aten::index")
    story.free("weights, momentum or a data set")
    with story.call(OTHER, "aten::randn"):
        story.alloc("made by the same line")
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    for told in everywhere(story):
        assert told["weights, momentum or a data set"].last == told["made by the same line"].last == "unknown"


@pytest.mark.parametrize(
    "operator", ["aten::zeros", "aten::zeros_like", "aten::full_like", "aten::new_zeros"]
)
def test_a_tensor_made_to_be_written_to_is_no_input(story: Story, operator: str) -> None:
    for number in range(4):
        a_round(story, number, operator)
    for told in everywhere(story):
        assert {told[f"data {number}"].last for number in range(4)} == {"unknown"}


def test_without_a_stack_no_line_is_known(story: Story) -> None:
    for number in range(3):
        with story.call(OTHER, "aten::randn", has_stack=False):
            story.alloc(f"data {number}")
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden {number}")
        story.free(f"data {number}")
    for told in everywhere(story):
        assert {told[f"data {number}"].last for number in range(3)} == {"unknown"}


def test_what_is_made_from_gradients_before_an_optimizer_has_run_makes_no_line_of_data(story: Story) -> None:
    for number in range(4):
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden {number}")
        if number:
            story.free(f"momentum {number - 1}")
        with story.call(BACKWARD, node=1 + number):
            story.alloc(f"gradient {number}")
        with story.call(OTHER, "aten::add"):
            story.alloc(f"momentum {number}")
    for told in everywhere(story):
        assert {told[f"momentum {number}"].last for number in range(4)} == {"unknown"}


def test_a_line_of_data_is_known_between_micro_batches_too(story: Story) -> None:
    for number in range(2):
        a_round(story, number, "aten::stack")
    for number in range(2):
        with story.call(OTHER, "aten::stack"):
            story.alloc(f"micro {number}")
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden of micro {number}")
        with story.call(BACKWARD, node=5 + number):
            story.alloc(f"gradient of micro {number}")
    for told in everywhere(story):
        assert told["micro 0"].last == told["micro 1"].last == "input"


def test_a_cache_of_each_generation_is_no_input_though_a_training_step_follows(story: Story) -> None:
    for number in range(3):
        with story.call(OTHER, "aten::randn"):
            story.alloc(f"cache {number}")
        if number:
            story.free(f"cache {number - 1}")
        for token in range(3):
            with story.call(FORWARD, "aten::linear", grad=False):
                story.alloc(f"keys {number} {token}")
            with story.call(OTHER, "aten::argmax", grad=False):
                pass
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden {number}")
        with story.call(BACKWARD, node=1 + number):
            story.alloc(f"gradient {number}")
        story.step_ends()
    for told in everywhere(story):
        assert {told[f"cache {number}"].last for number in range(3)} == {"unknown"}
        assert told["keys 0 0"].last == "unknown"


def test_data_made_without_autograd_is_unknown(story: Story) -> None:
    for number in range(3):
        with story.call(OTHER, "aten::zeros", grad=False):
            story.alloc(f"data {number}")
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden {number}")
        story.free(f"data {number}")
    assert {told.last for name, told in story.told().items() if "data" in name} == {"unknown"}


def test_without_autograd_what_dies_in_its_forward_is_activation_and_what_outlives_it_is_unknown(
    story: Story,
) -> None:
    with story.call(FORWARD, "aten::linear", grad=False):
        story.alloc("projected")
        story.alloc("keys")
    with story.call(FORWARD, "aten::arange", grad=False):
        story.alloc("places")
        story.alloc("cache")
    story.free("projected")
    story.free("places")
    with story.call(OTHER, "aten::argmax", grad=False):
        story.alloc("next token")
    with story.call(FORWARD, "aten::cat", grad=False):
        story.free("keys")
    for told in everywhere(story):
        assert last(told) == {
            "projected": "activation", "keys": "unknown", "places": "input", "cache": "unknown",
            "next token": "unknown",
        }  # fmt: skip


def test_without_autograd_in_a_forward_that_records_all_is_activation(story: Story) -> None:
    with story.call(FORWARD, "aten::linear", grad=False):
        story.alloc("first pass of a checkpoint")
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    with story.call(BACKWARD, node=1):
        story.alloc("gradient")
    for told in everywhere(story):
        assert told["first pass of a checkpoint"].last == "activation"


def test_a_gradient_that_nobody_frees_is_known_when_the_next_forward_runs(story: Story) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("kept in .grad")
    with story.call(BACKWARD, node=1, grad=True):
        story.alloc("of a second graph, or its gradient")
    with story.call(OTHER, nodes=1):
        story.alloc("penalty")
    with story.call(BACKWARD, node=2, grad=True):
        story.alloc("dies before")
    story.free("dies before")
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    for told in everywhere(story):
        assert told["kept in .grad"].last == told["kept in .grad"].at(told["kept in .grad"].seq) == "gradient"
        assert told["of a second graph, or its gradient"].last == "unknown"
        assert told["dies before"].last == "autograd_detail"


def test_what_is_made_with_a_node_before_any_module_runs_may_be_stacked_weights(story: Story) -> None:
    with story.call(OTHER, "aten::stack", nodes=1):
        story.alloc("stacked weights")
    with story.call(OTHER, "aten::mm", nodes=1):
        story.alloc("hidden")
    with story.call(BACKWARD, node=1):
        story.alloc("gradient")
    story.free("hidden")
    with story.call(OTHER, "aten::mm", nodes=1):
        story.alloc("hidden 2")
    with story.call(BACKWARD, node=2):
        story.alloc("gradient 2")
    story.free("stacked weights")
    for told in everywhere(story):
        assert told["stacked weights"].last == "unknown"
        assert told["hidden"].last == told["hidden 2"].last == "activation"


def test_the_users_word_stands_over_all_else(story: Story) -> None:
    with story.call(FORWARD, nodes=1):
        story.alloc("cache")
        story.alloc("state")
    story.tag(Category.KV_CACHE, "cache", by_user=True)
    story.tag(Category.OPTIMIZER_STATE, "state", by_user=True)
    story.tag(Category.PARAMETER, "cache")
    story.tag(Category.PARAMETER, "state")
    for told in everywhere(story):
        assert last(told) == {"cache": "kv_cache", "state": "optimizer_state"}


def test_a_cache_that_a_hook_has_told_of_stays_one_though_it_is_a_buffer(story: Story) -> None:
    with story.call(OTHER, "aten::zeros"):
        story.alloc("cache")
    story.tag(Category.UNKNOWN, "cache")
    story.tag(Category.KV_CACHE, "cache")
    story.tag(Category.INPUT, "cache")
    for told in everywhere(story):
        assert last(told) == {"cache": "kv_cache"}


def test_data_that_no_forward_has_seen_yet_is_unknown(story: Story) -> None:
    with story.call(OTHER, "aten::randn"):
        story.alloc("data")
    assert last(story.told()) == {"data": "unknown"}


def test_a_constant_made_in_forward_is_input_and_a_result_without_autograd_an_activation(
    story: Story,
) -> None:
    with story.call(FORWARD, "aten::arange"):
        story.alloc("places")
    with story.call(FORWARD, "aten::linear", grad=False):
        story.alloc("validation")
    story.free("places")
    story.free("validation")
    assert last(story.told()) == {"places": "input", "validation": "activation"}


def test_with_a_frozen_parameter_a_call_without_nodes_may_depend_on_it_unless_it_is_a_factory(
    story: Story,
) -> None:
    with story.call(OTHER, "aten::empty"):
        story.alloc("frozen")
    story.tag(Category.PARAMETER, "frozen", frozen=True)
    with story.call(FORWARD, "aten::arange"):
        story.alloc("places")
    with story.call(FORWARD, "aten::linear"):
        story.alloc("features")
    with story.call(OTHER, "aten::mul"):
        story.alloc("masked")
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    for told in everywhere(story):
        assert last(told) == {
            "frozen": "parameter", "places": "unknown", "features": "unknown", "masked": "unknown",
            "hidden": "activation",
        }  # fmt: skip


def test_in_the_forward_of_a_frozen_module_a_call_without_nodes_makes_activations(story: Story) -> None:
    with story.call(OTHER, "aten::empty"):
        story.alloc("frozen")
    story.tag(Category.PARAMETER, "frozen", frozen=True)
    story.module("body", frozen=True)
    story.module("head", frozen=False)
    with story.call(FORWARD, "aten::linear", module="body"):
        story.alloc("features")
    with story.call(FORWARD, "aten::arange", module="body"):
        story.alloc("places")
    with story.call(FORWARD, "aten::mul", module="head"):
        story.alloc("masked")
    with story.call(BACKWARD, node=1):
        pass
    for told in everywhere(story):
        assert last(told) == {
            "frozen": "parameter", "features": "activation", "places": "input", "masked": "unknown",
        }  # fmt: skip


def test_with_a_frozen_parameter_the_next_batch_is_input_until_a_forward_has_run(story: Story) -> None:
    with story.call(OTHER, "aten::empty"):
        story.alloc("frozen")
    story.tag(Category.PARAMETER, "frozen", frozen=True)
    for number in range(2):
        with story.call(OTHER, "aten::stack"):
            story.alloc(f"batch {number}")
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden {number}")
        with story.call(OTHER, "aten::stack"):
            story.alloc(f"stacked outputs {number}")
        with story.call(BACKWARD, node=1 + number):
            pass
        with story.call(OPTIMIZER, "aten::mul", grad=False):
            pass
        story.free(f"batch {number}")
    for told in everywhere(story):
        assert told["batch 1"].last == "input"
        assert told["stacked outputs 0"].last == told["stacked outputs 1"].last == "unknown"


@pytest.mark.parametrize("phase", [FORWARD, OTHER])
def test_a_buffer_whose_content_is_open_is_unknown(story: Story, phase: Phase) -> None:
    with story.call(phase, "aten::empty"):
        story.alloc("bucket")
    with story.call(FORWARD, "aten::empty", grad=False):
        story.alloc("received")
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    for told in everywhere(story):
        assert last(told) == {"bucket": "unknown", "received": "unknown", "hidden": "activation"}


def test_once_something_was_computed_a_call_without_nodes_may_depend_on_it_until_backward(
    story: Story,
) -> None:
    for number in range(2):
        with story.call(FORWARD, "aten::eq"):
            story.alloc(f"mask {number}")
        with story.call(FORWARD, "aten::embedding", nodes=1):
            story.alloc(f"hidden {number}")
        with story.call(FORWARD, "aten::argmax"):
            story.alloc(f"routes {number}")
        with story.call(FORWARD, "aten::add"):
            story.alloc(f"sums of routes {number}")
        with story.call(FORWARD, "aten::arange"):
            story.alloc(f"places {number}")
        with story.call(BACKWARD, node=1 + number):
            story.alloc(f"gradient {number}")
    for told in everywhere(story):
        for number in range(2):
            assert told[f"mask {number}"].last == told[f"places {number}"].last == "input"
            assert told[f"routes {number}"].last == told[f"sums of routes {number}"].last == "unknown"


def test_what_is_computed_from_a_forward_without_autograd_is_no_input(story: Story) -> None:
    for number in range(3):
        with story.call(OTHER, "aten::stack"):
            story.alloc(f"batch {number}")
        with story.call(FORWARD, "aten::linear", grad=False):
            story.alloc(f"target's output {number}")
        with story.call(OTHER, "aten::mul"):
            story.alloc(f"target {number}")
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden {number}")
        with story.call(BACKWARD, node=1 + number):
            pass
        with story.call(OPTIMIZER, "aten::mul", grad=False):
            pass
        story.free(f"batch {number}")
        story.free(f"target {number}")
    for told in everywhere(story):
        assert [told[f"batch {number}"].last for number in range(3)] == ["unknown", "input", "input"]
        assert {told[f"target {number}"].last for number in range(3)} == {"unknown"}
        assert told["target's output 0"].last == "unknown"


@pytest.mark.parametrize("operator", ["aten::clone", "aten::argmax", "aten::eq"])
def test_outside_of_modules_what_such_an_operator_makes_is_unknown(story: Story, operator: str) -> None:
    with story.call(OTHER, operator):
        story.alloc("average of the weights, or metric")
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    for told in everywhere(story):
        assert told["average of the weights, or metric"].last == "unknown"


def test_what_is_moved_after_a_forward_is_no_line_of_data(story: Story) -> None:
    for number in range(3):
        with story.call(FORWARD, nodes=1):
            story.alloc(f"hidden {number}")
        with story.call(OTHER, "aten::to"):
            story.alloc(f"predictions {number}")
        with story.call(BACKWARD, node=1 + number):
            story.alloc(f"gradient {number}")
        if number:
            story.free(f"predictions {number - 1}")
    for told in everywhere(story):
        assert {told[f"predictions {number}"].last for number in range(3)} == {"unknown"}


ACCUMULATE = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def test_what_accumulate_grad_replaces_after_another_forward_was_a_gradient(story: Story) -> None:
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    with story.call(BACKWARD, node=1):
        story.alloc("kept in .grad")
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden 2")
    with story.call(BACKWARD, node=2):
        story.alloc("added to it")
    with story.call(BACKWARD, ACCUMULATE):
        story.free("kept in .grad")
        story.free("added to it")
    for told in everywhere(story):
        assert told["kept in .grad"].last == "gradient"
        assert told["kept in .grad"].at(told["kept in .grad"].seq) == "gradient"
        assert told["added to it"].last == "autograd_detail"


def test_what_backward_left_behind_was_a_gradient_though_no_optimizer_has_seen_it(story: Story) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("left")
        story.alloc("handed on")
    with story.call(BACKWARD, node=1, grad=True):
        story.alloc("of a second graph")
    with story.call(BACKWARD, node=2):
        story.free("handed on")
    story.alloc("between")
    with story.call(OTHER, "aten::mul", grad=False):
        pass
    story.free("left")
    story.free("of a second graph")
    for told in everywhere(story):
        assert told["left"].last == told["left"].at(told["left"].seq) == "gradient"
        assert told["handed on"].last == told["of a second graph"].last == "autograd_detail"


@pytest.mark.parametrize(
    ("name", "means"),
    [("Optimizer.zero_grad#SGD.zero_grad", "gradient"), ("FSDP::post_backward", "autograd_detail")],
)
def test_zero_grad_shows_that_a_backward_is_over(story: Story, name: str, means: str) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("left")
    story.range_begins(name)
    story.free("left")
    for told in everywhere(story):
        assert told["left"].last == means


def test_what_dies_between_the_calls_of_a_backward_that_goes_on_is_no_gradient(story: Story) -> None:
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    with story.call(BACKWARD, node=1):
        story.alloc("detail")
    story.free("detail")
    with story.call(BACKWARD, node=2):
        story.alloc("more")
    for told in everywhere(story):
        assert told["detail"].last == "autograd_detail"


def test_a_buffer_is_unknown_until_nobody_has_written_to_it(story: Story) -> None:
    with story.call(OTHER, "aten::zeros"):
        story.alloc("running_mean")
        story.alloc("mask")
    for name in ("running_mean", "mask"):
        story.tag(Category.UNKNOWN, name)
    with story.call(FORWARD, nodes=1):
        story.alloc("hidden")
    tag = story.tag(Category.INPUT, "mask")
    for told in everywhere(story):
        assert last(told) == {"running_mean": "unknown", "mask": "input", "hidden": "activation"}
        assert told["mask"].at(tag - 1) == "input"


def test_a_tag_from_here_on_leaves_what_was_before(story: Story) -> None:
    with story.call(FORWARD, nodes=1):
        story.alloc("buffer")
    here = story.tag(Category.GRADIENT, "buffer", since_alloc=False)
    for told in everywhere(story):
        assert told["buffer"].at(here - 1) == "activation"
        assert told["buffer"].at(here) == told["buffer"].last == "gradient"


def test_a_second_change_of_a_block_counts_from_its_own_tag_on(story: Story) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("block")
    first = story.tag(Category.GRADIENT, "block")
    second = story.tag(Category.PARAMETER, "block")
    told = story.told([first, second])["block"]
    assert [change[0] for change in told.changes] == [told.seq, second]
    assert (told.at(first), told.at(second), told.last) == ("gradient", "parameter", "parameter")


def test_on_cuda_a_tensor_dies_when_it_is_given_up_not_when_its_stream_lets_it_go(tmp_path: Path) -> None:
    story = Story(tmp_path / "s", DeviceType.CUDA)
    with story.call(FORWARD, nodes=1):
        story.alloc("scratch")
        story.free("scratch", Action.FREE_REQUESTED)
    story.free("scratch")
    for told in everywhere(story):
        assert last(told) == {"scratch": "temporary"}


def test_another_database_is_told_what_is_known_of_a_block(story: Story) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("gradient")
    cut = story.tag(Category.GRADIENT, "gradient") + 1
    with story.call(FORWARD, nodes=1):
        story.alloc("later")
    reader = reader_of(story.spool.path)
    chunk = reader.read(1000)
    assert isinstance(chunk, Chunk)
    pairing = Pairing(reader.meta, reader.strings)
    pairing.feed(Chunk(sequence_first=0, records=chunk.records[:cut]))
    pairing.cut()
    pairing.forget_sent()
    pairing.feed(Chunk(sequence_first=cut, records=chunk.records[cut:]))
    told: dict[int, Told] = {}
    take(told, {table: batch.to_pylist() for table, batch in pairing.cut(final=True)})
    assert sorted(block.last for block in told.values()) == ["activation", "gradient"]
    assert len(pairing.state.categories) == 2


def test_what_is_known_ends_with_the_block(story: Story) -> None:
    with story.call(FORWARD, nodes=1):
        story.alloc("gone")
        story.alloc("stays")
    story.free("gone")
    reader = reader_of(story.spool.path)
    chunk = reader.read(1000)
    assert isinstance(chunk, Chunk)
    pairing = Pairing(reader.meta, reader.strings)
    pairing.feed(chunk)
    pairing.cut()
    assert pairing.state.categories["allocation_id"].tolist() == [story.blocks["stays"][0]]


def _random_story(folder: Path, random: Random) -> Story:
    """Anything that hooks and tap can write, in any order."""
    story = Story(folder)
    alive: list[str] = []
    addresses = [4096 * place for place in range(1, 9)]
    tags = [Category.UNKNOWN, Category.INPUT, Category.GRADIENT, Category.PARAMETER, Category.OPTIMIZER_STATE,
            Category.KV_CACHE]  # fmt: skip

    def event() -> None:
        used = {story.blocks[name][1] for name in alive}
        if alive and (len(alive) == len(addresses) or random.random() < 0.5):
            story.free(alive.pop(random.randrange(len(alive))))
        else:
            name = f"block {len(story.blocks)}"
            story.alloc(name, random.choice([each for each in addresses if each not in used]))
            alive.append(name)

    for _ in range(random.randrange(1, 25)):
        chance = random.random()
        if chance < 0.25 and alive:
            story.tag(random.choice(tags), random.choice(alive), offset=random.choice([0, 0, 63, 64]))
            continue
        if chance > 0.9:
            story.step_ends()
        with story.call(
            random.choice(list(Phase)), random.choice(["aten::mm", "aten::ones"]),
            node=random.choice([0, 0, 1, 2]), nodes=random.choice([0, 2]), grad=random.random() < 0.7,
        ):  # fmt: skip
            for _ in range(random.randrange(4)):
                event()
    return story


@examples(0.6)
@given(seed=st.integers(0, 2**32))
def test_the_last_word_on_each_block_does_not_depend_on_the_cuts(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    story = _random_story(folder, random)
    cuts = random.sample(range(1, story.spool.next_seq), k=min(5, story.spool.next_seq - 1))
    at_once, one_by_one, some = story.told(), everywhere(story)[1], story.told(cuts)
    assert last(at_once) == last(one_by_one) == last(some)
    for told in (one_by_one, some):
        for block in told.values():
            assert all(seq >= block.seq for seq, _, _ in block.changes)


def test_a_state_from_a_checkpoint_goes_on_with_the_same_categories(story: Story) -> None:
    with story.call(BACKWARD, node=1):
        story.alloc("gradient")
    cut = story.tag(Category.GRADIENT, "gradient")
    reader = reader_of(story.spool.path)
    chunk = reader.read(1000)
    assert isinstance(chunk, Chunk)
    first = Pairing(reader.meta, reader.strings)
    first.feed(Chunk(sequence_first=0, records=chunk.records[:cut]))
    first.cut()
    second = Pairing(reader.meta, reader.strings, dataclasses.replace(first.state))
    second.feed(Chunk(sequence_first=cut, records=chunk.records[cut:]))
    rows = {table: batch.to_pylist() for table, batch in second.cut(final=True)}
    (change,) = rows["category_change"]
    assert (change["category"], change["allocation_id"]) == ("gradient", story.blocks["gradient"][0])
    assert change["device"] == "cpu"
