"""A training made by hand whose remedies can be worked out on paper: layers that keep more than they give on.

Stage: tests. In: how it is run. Out: a :class:`RankLog`; bytes are MiB, and the comments in the tests add
them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from constructed import RankLog

MIB: Final = 1 << 20
LAYERS: Final = 4
SECOND_NS: Final = 1_000_000_000


def remedied_steps(
    steps: int = 3,
    *,
    late: bool = False,
    keeps_result: bool = False,
    keeps_gradients: bool = False,
    lets_go_late: bool = False,
    lays_out_anew: bool = False,
    copies_weights: str = "",
    holds_mib: int = 0,
    returns_inner: bool = False,
    inner_mib: int = 8,
    out_mib: Sequence[int] = (1,) * LAYERS,
    parts: int = 1,
    bucket_mib: int = 0,
    is_tied: bool = False,
    scratch_mib: int = 9,
    device: str = "cpu",
    **more: Any,
) -> RankLog:
    """The log of a training.

    Args:
        late: each step leaves 20 MiB to the next, which frees them after its forward.
        keeps_result: each step keeps 20 MiB that the head made until the next has its own.
        keeps_gradients: gradients stay from step to step, and backward adds to them.
        lets_go_late: gradients are let go of between the next forward and its backward.
        lays_out_anew: backward has each weight in another layout for a while, as convolutions do.
        copies_weights: each layer has a copy of its weight for backward: ``whole``, or ``half`` as autocast.
        holds_mib: each layer makes so much that is held to the end of the step.
        returns_inner: each layer returns its inner block, too, and the head reads it; in backward each gets
            two gradients and gives one on.
        inner_mib: what each layer keeps for backward besides its output.
        out_mib: the output of each layer.
        parts: of a step, whose gradients are added up.
        is_tied: what the head gives is added to what an embedding gives.
        scratch_mib: what the optimizer makes beside its state.
        bucket_mib: of a buffer of gradients that is made before the first step.
        more: fields of RankLog.
    """
    log = RankLog(ended=(steps + 1) * SECOND_NS, **more)
    now = 1

    def made(
        name: str, mib: float, operator: str, category: str, phase: str, module: str | None = None
    ) -> None:
        nonlocal now
        now += 1
        columns = {"operator": operator, "category": category, "phase": phase, "module": module}
        log.alloc(name, int(mib * MIB), at=now, device=device, **columns)

    def freed(name: str) -> None:
        nonlocal now
        now += 1
        log.free(name, at=now)

    weights = {f"layers.{layer}": 2 for layer in range(LAYERS)} | {"head": 3}
    for name, mib in weights.items():
        made(f"w {name}", mib, "aten::empty", "parameter", "other")
    if bucket_mib:
        made("bucket", bucket_mib, "aten::zeros", "gradient", "other")
    for step in range(steps):
        now = (step + 1) * SECOND_NS
        for part in range(parts):
            run = f"{step} {part}"
            for layer in range(LAYERS):
                module = f"layers.{layer}"
                made(f"inner {layer} {run}", inner_mib, "aten::linear", "activation", "forward", module)
                if copies_weights:
                    copy_mib = weights[module] if copies_weights == "whole" else weights[module] / 2
                    made(f"copy {layer} {run}", copy_mib, "aten::linear", "activation", "forward", module)
                if holds_mib:
                    made(f"held {layer} {run}", holds_mib, "aten::mul", "activation", "forward", module)
                made(f"out {layer} {run}", out_mib[layer], "aten::add", "activation", "forward", module)
                made(f"brief {layer} {run}", 0.5, "aten::mul", "temporary", "forward", module)
                freed(f"brief {layer} {run}")
            made(f"logits {run}", 6, "aten::linear", "activation", "forward", "head")
            made(f"logp {run}", 6, "aten::cross_entropy_loss", "activation", "forward")
            freed(f"logits {run}")
            if keeps_result and not part:
                made(f"result {step}", 20, "aten::linear", "activation", "forward", "head")
                if step:
                    freed(f"result {step - 1}")
            if late and step and not part:
                freed(f"late {step - 1}")
            if lets_go_late and step and not part:
                for name in weights:
                    freed(f"g {name} {step - 1}")
            made(f"dlogits {run}", 6, "aten::_log_softmax_backward_data", "autograd_detail", "backward")
            freed(f"logp {run}")
            units = ["head", *(f"layers.{layer}" for layer in reversed(range(LAYERS)))]
            for unit in units:
                added = (keeps_gradients and step > 0) or part > 0
                name = f"added {unit} {run}" if added else f"g {unit} {0 if keeps_gradients else step}"
                category = "autograd_detail" if added else "gradient"
                if lays_out_anew:
                    made(f"layout {unit} {run}", weights[unit], "aten::mm", "temporary", "backward", unit)
                    freed(f"layout {unit} {run}")
                by = "aten::to" if copies_weights == "half" else "aten::mm"
                if is_tied and unit == "head":
                    made(f"of head {run}", weights[unit], by, "autograd_detail", "backward", unit)
                else:
                    made(name, weights[unit], by, category, "backward", unit)
                    if added:
                        freed(name)
                if returns_inner:
                    made(f"dout {unit} {run}", 1, "aten::mm", "autograd_detail", "backward", unit)
                if unit == "head":
                    freed(f"dlogits {run}")
                    for layer in range(LAYERS if returns_inner else 0):
                        made(f"din {layer} {run}", inner_mib, "aten::mm", "autograd_detail", "backward", unit)
                else:
                    number = unit.rpartition(".")[2]
                    if returns_inner:
                        freed(f"din {number} {run}")
                        freed(f"dout {units[units.index(unit) - 1]} {run}")
                    freed(f"inner {number} {run}")
                    if copies_weights:
                        freed(f"copy {number} {run}")
                    freed(f"out {number} {run}")
            if is_tied:
                name = f"added head {run}" if added else f"g head {0 if keeps_gradients else step}"
                made(name, weights["head"], "aten::add", category, "backward", "words")
                freed(f"of head {run}")
                if added:
                    freed(name)
            if returns_inner:
                freed(f"dout {units[-1]} {run}")
        if not step:
            for name, mib in weights.items():
                made(f"s {name}", 2 * mib, "aten::zeros_like", "optimizer_state", "optimizer")
        made(f"scratch {step}", scratch_mib, "aten::_foreach_sqrt", "temporary", "optimizer")
        freed(f"scratch {step}")
        for held in range(LAYERS * parts if holds_mib else 0):
            freed(f"held {held % LAYERS} {step} {held // LAYERS}")
        if not keeps_gradients and not lets_go_late:
            for unit in units:
                freed(f"g {unit} {step}")
        if late:
            made(f"late {step}", 20, "aten::linear", "activation", "other")
        log.step_ends(step, at=now + 1)
    return log


def given_inputs(log: RankLog, shape: str = "[8, 16]") -> list[dict[str, Any]]:
    """The rows of ``step_input`` of such a training: a call of the model each step."""
    return [
        {
            "session_id": log.session_id, "attempt": 0, "rank": log.rank, "step": step,
            "time_ns": SECOND_NS, "seq": row["seq"], "module": "Net", "with_grad": True,
            "argument": "0", "dtype": "int64", "shape": shape,
            "size_bytes": 1024, "call_bytes": 1024, "num_left_out": 0,
        }
        for step, row in enumerate(log.steps)
    ]  # fmt: skip
