"""Evaluations within a step are told by what backward keeps, by name also in a copy of the model."""

from __future__ import annotations

import numpy as np
import pytest

from rankmem_aggregator.insights.evaluations import of_evaluations
from rankmem_aggregator.insights.windows import NEVER, Place, StepSize, Window

PLACE = Place(
    session_id="a", attempt=0, rank=0, device="cpu", device_type="cpu", allocator=None, settings=None,
    total_bytes=None,
)  # fmt: skip
SIZE = StepSize(step=1, from_seq=0, to_seq=100, input_bytes=0, peak_bytes=None)
RELU, LINEAR = "aten::relu", "aten::linear"


def window_of(made: list[tuple[str, str, int]], backward: int) -> Window:
    """Blocks that forward makes one after another, each with operator, module and death, then one of
    backward."""
    blocks = [*((*each, "forward") for each in made), ("aten::mm", "head", NEVER, "backward")]
    nobody = [None] * len(blocks)
    return Window(
        place=PLACE,
        size=SIZE,
        begin=0,
        end=100,
        born=np.array([*range(1, len(made) + 1), backward]),
        died=np.array([died for _, _, died, _ in blocks]),
        bytes=np.ones(len(blocks), np.int64),
        category=["activation"] * len(blocks),
        operator=[operator for operator, *_ in blocks],
        module=[module for _, module, *_ in blocks],
        phase=[phase for *_, phase in blocks],
        line=list(nobody),
        forward_line=list(nobody),
        function=list(nobody),
        forward_function=list(nobody),
        recomputed=[False] * len(blocks),
        stream=list(nobody),
        pool=list(nobody),
    )


@pytest.mark.parametrize(
    ("trained", "head", "copy", "head_of_copy"),
    [("Net", "head", "module", "module.head"), ("Net#2", "Net#2.head", "Net", "head")],
)
def test_a_copy_is_known_by_what_it_calls_outside_of_its_parts(
    trained: str, head: str, copy: str, head_of_copy: str
) -> None:
    evaluated = [(RELU, copy, 2), (LINEAR, head_of_copy, 3)]
    window = window_of([*evaluated, (RELU, trained, 60), (LINEAR, head, 60)], backward=50)
    assert of_evaluations(window).tolist() == [True, True, False, False, False]


def test_of_two_models_that_are_trained_neither_is_an_evaluation_of_the_other() -> None:
    made = [(RELU, "Net", 60), (LINEAR, "head", 60), (RELU, "Net#2", 60), (LINEAR, "Net#2.head", 60)]
    assert not of_evaluations(window_of(made, backward=50)).any()
