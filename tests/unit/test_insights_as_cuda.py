"""A CPU's step as on a CUDA device: what is told, at least and at most, on steps made by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from rankmem_aggregator.insights.as_cuda import CUBLAS_BYTES, CUBLASLT_BYTES, SUM_TIMES, Variant, variants
from rankmem_aggregator.insights.windows import NEVER, Place, StepSize, Window
from rankmem_imports.files.plain_pickle import load_plain

MIB = 1 << 20
Row = tuple[int, int, int, str, str, str]
"""When it is born and dies, its MiB, operator, category, phase."""
WEIGHT: Row = (0, NEVER, 40, "aten::empty", "parameter", "other")
PLACE = Place(
    session_id="S", attempt=0, rank=0, device="cpu", device_type="cpu", allocator=None, settings=None,
    total_bytes=None,
)  # fmt: skip
SIZE = StepSize(step=1, from_seq=0, to_seq=99, input_bytes=0, peak_bytes=None)


def ways(rows: Iterable[Row]) -> tuple[Variant, Variant, Variant]:
    """As is told, with the most, with the least."""
    born, died, mib, operator, category, phase = map(list, zip(*rows, strict=True))
    nothing = [None] * len(born)
    window = Window(
        place=PLACE, size=SIZE, begin=0, end=99, born=np.array(born), died=np.array(died),
        bytes=np.array(mib) * MIB, category=category, operator=operator, module=nothing, phase=phase,
        line=nothing, forward_line=nothing, function=nothing, forward_function=nothing,
        recomputed=[False] * len(born), stream=nothing, pool=nothing,
    )  # fmt: skip
    told, most, least = variants(window, window.bytes)
    return told, most, least


def peaks(rows: Iterable[Row]) -> tuple[int, ...]:
    """MiB of each way, without workspaces."""
    return tuple((each.peak_bytes() - sum(each.workspaces)) // MIB for each in ways(rows))


def test_each_thread_has_a_workspace_of_cublas() -> None:
    forward: Row = (1, 2, 10, "aten::linear", "activation", "forward")
    backward: Row = (3, 4, 10, "aten::mm", "gradient", "backward")
    hopper, older = CUBLAS_BYTES
    assert [each.workspaces for each in ways([WEIGHT, forward])] == [
        (hopper, CUBLASLT_BYTES), (hopper, CUBLASLT_BYTES), (older, CUBLASLT_BYTES),
    ]  # fmt: skip
    assert [len(each.workspaces) for each in ways([WEIGHT, forward, backward])] == [3, 3, 3]


def test_a_sum_in_backward_may_have_scratch_for_what_it_is_over() -> None:
    rows: list[Row] = [
        WEIGHT,
        (1, 9, 70, "aten::mm", "gradient", "backward"),  # it is no sum's input
        (2, 4, 50, "aten::_log_softmax_backward_data", "autograd_detail", "backward"),
        (3, 9, 20, "aten::to", "autograd_detail", "backward"),
        (5, 9, 1, "aten::sum", "autograd_detail", "backward"),  # of 50 MiB nothing is left
    ]
    assert peaks(rows) == (180, 40 + 70 + 20 + 1 + SUM_TIMES * 20, 180)


def test_of_dropout_and_attention_there_may_be_less() -> None:
    rows: list[Row] = [
        WEIGHT,
        (1, 9, 80, "aten::dropout", "activation", "forward"),
        (2, 9, 60, "aten::scaled_dot_product_attention", "activation", "forward"),
        (3, 9, 30, "aten::linear", "activation", "forward"),
    ]
    assert peaks(rows) == (210, 210, 40 + 20 + 30)


@pytest.mark.parametrize(("cast_mib", "most"), [(20, 40 + 20 + 30 + 2 * 12), (19, 40 + 19 + 30 + 12)])
def test_with_autocast_what_is_no_product_may_have_32_bits(cast_mib: int, most: int) -> None:
    rows: list[Row] = [
        WEIGHT,
        (1, 9, cast_mib, "aten::linear", "activation", "forward"),  # half a parameter: its cast
        (2, 9, 30, "aten::matmul", "activation", "forward"),
        (3, 9, 12, "aten::softmax", "activation", "forward"),
    ]
    assert peaks(rows)[1] == most


def test_the_scratch_of_all_tensors_at_once_is_that_of_parameters_which_had_some() -> None:
    rows: list[Row] = [
        WEIGHT,
        (0, NEVER, 40, "aten::empty", "parameter", "other"),
        (0, NEVER, 7, "aten::empty", "parameter", "other"),
        (1, 2, 40, "aten::sqrt", "temporary", "optimizer"),
        (2, 3, 1, "aten::mul_", "temporary", "optimizer"),
        (3, 4, 40, "aten::sqrt", "temporary", "optimizer"),
    ]
    assert peaks(rows) == (87 + 80 + 1, 87 + 80 + 1, 87 + 40)


def test_an_h200_allocated_the_workspaces_and_the_scratch_of_sums() -> None:
    """Its recording of a GPT at batch 4, length 512: 4 steps, 12 layers with products to 3,072 and 2,304."""
    recorded = load_plain(Path(__file__).with_name("recordings") / "allocator_gpt.pickle.gz")
    made = Counter(each["size"] for each in recorded["device_traces"][0] if each["action"] == "alloc")
    assert (made[CUBLAS_BYTES[0]], made[CUBLASLT_BYTES]) == (2, 1)
    rows, bytes_of_an_element = 4 * 512, 2
    for width in (3072, 2304):
        assert made[SUM_TIMES * bytes_of_an_element * rows * width] == 4 * 12
