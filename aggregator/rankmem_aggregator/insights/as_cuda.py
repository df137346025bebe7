"""A CPU's step as it would be on a CUDA device, where libraries, optimizers and kernels allocate otherwise.

Stage: insights. In: a step's blocks with their bytes. Out: :class:`Variant`, ways in which it may run there.
Asks nothing. What was compared, with which figures: docs/insights.md.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np

from rankmem_aggregator.insights.capacity import trace_at
from rankmem_aggregator.insights.lives import Array, Trace
from rankmem_aggregator.insights.settings import Settings
from rankmem_aggregator.insights.windows import COMPUTING, NEVER, Window, are_parameters, has_backward

MIB: Final = 1 << 20
CUBLAS_BYTES: Final = (32 * MIB, 4096 * 1024 * 2 + 16 * 1024 * 8)
"""cuBLAS's workspace of a thread, which PyTorch allocates at its first matrix product: on Hopper and
Blackwell, and on devices before them. CUBLAS_WORKSPACE_CONFIG changes it (Source: parseChosenWorkspaceSize in
aten/src/ATen/cuda/CublasHandlePool.cpp, torch 2.11)."""
CUBLASLT_BYTES: Final = MIB
"""That of cuBLASLt, which multiplies with a bias: seen once in a process, in forward."""
HELD_THERE: Final = {
    "aten::dropout": 0.25, "aten::scaled_dot_product_attention": 0.0, "aten::reshape": 0.0,
    "aten::contiguous": 0.0,
}  # fmt: skip
"""At least this share of an operator's blocks is there, too: a mask of dropout has a byte for an element in
place of four, attention with dropout or a mask need not keep its weights, and what comes out of it may lie as
the next operator wants it."""
SUM_TIMES: Final = 4
"""Of what is summed, the scratch of a bias' gradient, a sum over rows: 8 bytes for each element, which has 2
in 16 bits."""
CAST_SHARE_LEAST: Final = 0.25
"""Of the parameters' bytes: with autocast the casts of at least so many are made in forward."""
CAST_ALIKE: Final = frozenset(
    {
        "aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm",
        "aten::einsum", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution_backward",
        "aten::to", "aten::scaled_dot_product_attention", "aten::cross_entropy_loss", "aten::embedding",
    }
)  # fmt: skip
"""Operators whose results have the same type on both. Of others autocast may make 32 bits on CUDA where it
leaves 16 on a CPU, as of softmax, norms and powers, and what follows from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way in which a step may run on a device."""

    window: Window
    sizes: Array
    """Bytes of its blocks."""
    workspaces: tuple[int, ...] = ()
    """Bytes of blocks that libraries hold beside them."""

    def peak_bytes(self) -> int:
        """The most bytes alive at once."""
        return self.window.peak(self.sizes)[0] + sum(self.workspaces)

    def trace(self, settings: Settings) -> Trace:
        """What the allocator is asked."""
        return trace_at(self.window, self.sizes, settings, self.workspaces)


def variants(window: Window, sizes: Array) -> Iterator[Variant]:
    """How a CPU's step may run on CUDA: as is told, with the most, and with the least.

    Told is Hopper or later with an optimizer that takes all tensors at once, as PyTorch's do there. With the
    least it is an older device, and tensor by tensor as recorded.
    """
    hopper, older = (_workspaces(window, each) for each in CUBLAS_BYTES)
    told = optimizer_at_once(window, sizes) if stepped_alone(window).any() else (window, sizes)
    yield Variant(window=told[0], sizes=told[1], workspaces=hopper)
    most = _with_scratch_of_sums(*told)
    wider = most[1] * np.where(_may_be_wider(most[0]), 2, 1)
    yield Variant(window=most[0], sizes=wider, workspaces=hopper)
    made = np.arange(len(window)) >= window.num_older
    share = np.array([HELD_THERE.get(each or "", 1.0) for each in window.operator])
    yield Variant(
        window=window, sizes=np.where(made, sizes * share, sizes).astype(np.int64), workspaces=older
    )


def _workspaces(window: Window, cublas_bytes: int) -> tuple[int, ...]:
    """What libraries hold beside the step; backward's thread has a workspace of its own."""
    return (*[cublas_bytes] * (2 if has_backward(window) else 1), CUBLASLT_BYTES)


def _may_be_wider(window: Window) -> Array:
    """Which blocks may have 32 bits in place of 16 on CUDA: none in a step without autocast."""
    made = np.arange(len(window)) >= window.num_older
    phase = np.array(window.phase, object)
    parameters = window.bytes[are_parameters(window)]
    sizes, counts = np.unique(parameters, return_counts=True)
    halves = Counter(window.bytes[made & (phase == "forward")].tolist())
    casts = sum(size * min(halves[size // 2], each) for size, each in zip(sizes, counts, strict=True))
    if casts < CAST_SHARE_LEAST * parameters.sum():
        return np.zeros(len(window), bool)
    alike = np.array([each in CAST_ALIKE for each in window.operator], bool)
    found: Array = made & np.isin(phase, COMPUTING) & ~alike
    return found


def stepped_alone(window: Window) -> Array:
    """Which parameters had scratch of their own in an optimizer that goes from tensor to tensor.

    PyTorch's do so on a CPU. On CUDA they take all tensors at once unless told otherwise (``foreach``), and
    the scratch of all is alive together. None, if the optimizer made no scratch or took them at once here.
    Source: torch.optim, 2.0.
    """
    made = _own_scratch(window)
    names = [window.operator[place] or "" for place in np.flatnonzero(made)]
    if any(name.startswith(("aten::_foreach", "aten::_fused")) for name in names):
        made = np.zeros(len(window), bool)
    found: Array = are_parameters(window) & np.isin(window.bytes, window.bytes[made])
    return found


def _own_scratch(window: Window) -> Array:
    """Which blocks the optimizer made and freed in the step that have the bytes of a parameter."""
    phase = np.array([each == "optimizer" for each in window.phase], bool)
    passing = phase & (np.arange(len(window)) >= window.num_older) & (window.died < NEVER)
    found: Array = passing & np.isin(window.bytes, window.bytes[are_parameters(window)])
    return found


def optimizer_at_once(window: Window, sizes: Array) -> tuple[Window, Array]:
    """The step, with its blocks' sizes, if the optimizer took all tensors at once instead of one by one.

    Its scratch is then a block for each parameter that had some, all alive from the first to the last.
    """
    scratch, parameters = _own_scratch(window), np.flatnonzero(stepped_alone(window))
    lives = np.array([[window.born[scratch].min(), window.died[scratch].max()]]).repeat(len(parameters), 0)
    return _changed(window, sizes, np.flatnonzero(~scratch), parameters, lives, sizes[parameters])


def _with_scratch_of_sums(window: Window, sizes: Array) -> tuple[Window, Array]:
    """The step with the scratch that backward's sums may have: of the largest block that they may be over."""
    at = np.flatnonzero(
        (np.arange(len(window)) >= window.num_older)
        & np.array([each == "aten::sum" for each in window.operator], bool)
        & np.array([each == "backward" for each in window.phase], bool)
    )
    born = window.born[at]
    largest = _largest_alive(window, sizes, born)
    return _changed(
        window, sizes, np.arange(len(window)), at, np.stack([born, born + 1], 1), SUM_TIMES * largest
    )


def _largest_alive(window: Window, sizes: Array, instants: Array) -> Array:
    """At each instant, in order, the bytes of the largest block alive that backward has made, gradients left
    out."""
    own = [
        place
        for place in range(window.num_older, len(window))
        if window.phase[place] == "backward" and window.category[place] != "gradient"
    ]
    heap: list[tuple[int, int]] = []
    found, next_one = [], 0
    for instant in instants.tolist():
        while next_one < len(own) and window.born[own[next_one]] <= instant:
            heapq.heappush(heap, (-int(sizes[own[next_one]]), int(window.died[own[next_one]])))
            next_one += 1
        while heap and heap[0][1] <= instant:
            heapq.heappop(heap)
        found.append(-heap[0][0] if heap else 0)
    return np.array(found, np.int64)


def _changed(
    window: Window, sizes: Array, kept: Array, of: Array, lives: Array, added_bytes: Array
) -> tuple[Window, Array]:
    """The step with some of its blocks, and others that are called as those at ``of``."""
    born = np.concatenate([window.born[kept], lives[:, 0]])
    died = np.concatenate([window.died[kept], lives[:, 1]])
    order = np.argsort(born, kind="stable")
    rows = np.concatenate([kept, of])[order]
    columns: dict[str, Any] = {
        each.name: [getattr(window, each.name)[place] for place in rows]
        for each in fields(window)
        if isinstance(getattr(window, each.name), list)
    }
    changed = replace(window, born=born[order], died=died[order], bytes=window.bytes[rows], **columns)
    return changed, np.concatenate([sizes[kept], added_bytes])[order]
