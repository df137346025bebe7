"""A training made by hand: layers, a loss, an optimizer, at batches that are chosen; logs for insights into
steps.

Stage: tests. In: batches, one step each. Out: a :class:`RankLog`, whose bytes are simple sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from constructed import RankLog

LAYERS: Final = 4
WEIGHT_BYTES: Final = 3 << 20
"""Of a layer, of its gradient, and of each of its two moments."""
SAMPLE_BYTES: Final = 1 << 10
"""Of the input, for each of the batch."""
HIDDEN_BYTES: Final = 1 << 20
"""Of a layer's activation, likewise."""
SCORES_BYTES: Final = 16 << 10
"""Of its scores, for the square of the batch, as attention has it for the length; freed within forward."""
LOGIT_BYTES: Final = 2 << 20
SECOND_NS: Final = 1_000_000_000


def sized_steps(
    batches: Sequence[int],
    *,
    device: str = "cpu",
    rank: int = 0,
    odd: Sequence[int] = (),
    scratch: str = "",
    scratch_bytes: int = 0,
    parts: int = 0,
    weight_bytes: int = WEIGHT_BYTES,
    power: float = 0,
    power_bytes: int = 4,
    evaluates: int = 0,
    evaluates_as: str = "Net",
    keeps_evaluated: bool = False,
    loads_bytes: int = 0,
    loads_in_turn: bool = False,
    keeps_samples: bool = False,
    keeps_gradients: bool = False,
    **more: Any,
) -> RankLog:
    """The log of a training, one step for each of the batches; the last one's input is kept to the next
    step's end.

    Args:
        odd: places of steps that make a cast of each activation, as with autocast.
        scratch: the operator that makes the optimizer's, for one layer after the other.
        scratch_bytes: of it; 0: as large as a weight.
        parts: of each gradient, made and added to it while it is there, as where a layer is called again.
        weight_bytes: of a layer.
        power: of the batch, with which a table grows that the loss makes for a while.
        power_bytes: of the table, for each one of that power.
        evaluates: samples of an evaluation at the begin of each step.
        evaluates_as: the path of the model that is evaluated.
        keeps_evaluated: what the last layer makes in it is kept until that of the next step is there.
        loads_bytes: of each sample, loaded one by one as by a DataLoader without workers; 0: none are.
        loads_in_turn: each is freed before the next one is made.
        keeps_samples: until those of the next step are there, as a list of pictures is kept.
        keeps_gradients: until the next step begins.
        more: fields of RankLog.
    """
    log = RankLog(rank=rank, ended=(len(batches) + 1) * SECOND_NS, **more)
    of = {"device": device}
    for layer in range(LAYERS):
        log.alloc(
            f"w{layer}", weight_bytes, at=1, operator="aten::empty", category="parameter", phase="other", **of
        )
    for step, batch in enumerate(batches):
        at = (step + 1) * SECOND_NS
        _step(
            log, step, batch, at, of,
            casts=step in odd, scratch=scratch, scratch_bytes=scratch_bytes or weight_bytes, parts=parts,
            weight_bytes=weight_bytes, power=power, power_bytes=power_bytes, evaluates=evaluates,
            evaluates_as=evaluates_as, keeps_evaluated=keeps_evaluated,
            loads_bytes=loads_bytes, loads_in_turn=loads_in_turn,
            keeps_samples=keeps_samples, kept=batches[step - 1] if keeps_samples and step else 0,
            keeps_gradients=keeps_gradients,
        )  # fmt: skip
    return log


def peak_bytes(batch: int) -> int:
    """The most bytes alive at once in a steady step: the end of backward's first part, or the gradients'
    end."""
    lasting = LAYERS * WEIGHT_BYTES * 3
    forward = lasting + batch * (SAMPLE_BYTES + LAYERS * HIDDEN_BYTES) + 2 * batch * LOGIT_BYTES
    scores = lasting + batch * (SAMPLE_BYTES + LAYERS * HIDDEN_BYTES) + batch * batch * SCORES_BYTES
    gradients = lasting + batch * SAMPLE_BYTES + LAYERS * WEIGHT_BYTES + batch * HIDDEN_BYTES
    return max(forward, scores, gradients)


def _step(
    log: RankLog,
    step: int,
    batch: int,
    at: int,
    of: dict[str, Any],
    *,
    casts: bool,
    scratch: str,
    scratch_bytes: int,
    parts: int,
    weight_bytes: int,
    power: float,
    power_bytes: int,
    evaluates: int,
    evaluates_as: str,
    keeps_evaluated: bool,
    loads_bytes: int,
    loads_in_turn: bool,
    keeps_samples: bool,
    kept: int,
    keeps_gradients: bool,
) -> None:
    def made(
        name: str, size: int, operator: str, category: str, phase: str, module: str | None = None
    ) -> None:
        nonlocal at
        at += 1
        columns: dict[str, Any] = {
            "operator": operator,
            "category": category,
            "phase": phase,
            "module": module,
            "step": step,
        }
        log.alloc(f"{name}.{step}", size, at=at, **columns, **of)

    def freed(name: str) -> None:
        nonlocal at
        at += 1
        log.free(f"{name}.{step}", at=at)

    for layer in range(LAYERS if keeps_gradients and step else 0):
        log.free(f"g{layer}.{step - 1}", at=at)
    if evaluates:
        made("evaluated", evaluates * HIDDEN_BYTES, "aten::randn", "input", "other")
    for layer in range(LAYERS if evaluates else 0):
        made(
            f"e{layer}", evaluates * HIDDEN_BYTES, "aten::linear", "activation", "forward",
            f"{evaluates_as}.layers.{layer}",
        )  # fmt: skip
        if not keeps_evaluated or layer < LAYERS - 1:
            freed(f"e{layer}")
        elif step:
            log.free(f"e{layer}.{step - 1}", at=at)
    if evaluates:
        freed("evaluated")
    samples = range(batch if loads_bytes else 0)
    for sample in samples:
        made(f"sample{sample}", loads_bytes, "aten::from_file", "unknown", "other")
        if loads_in_turn:
            freed(f"sample{sample}")
    made("x", batch * SAMPLE_BYTES, "aten::randn", "input", "other")
    for sample in () if loads_in_turn or keeps_samples else samples:
        freed(f"sample{sample}")
    for sample in range(kept):
        log.free(f"sample{sample}.{step - 1}", at=at)
    for layer in range(LAYERS):
        module = f"Net.layers.{layer}"
        if casts:
            made(f"c{layer}", batch * HIDDEN_BYTES // 2, "aten::to", "activation", "forward", module)
        made(f"h{layer}", batch * HIDDEN_BYTES, "aten::linear", "activation", "forward", module)
        made(f"s{layer}", batch * batch * SCORES_BYTES, "aten::softmax", "temporary", "forward", module)
        freed(f"s{layer}")
        if casts:
            freed(f"c{layer}")
    made("logits", batch * LOGIT_BYTES, "aten::linear", "activation", "forward", "Net.head")
    made("loss", batch * LOGIT_BYTES, "aten::cross_entropy_loss", "activation", "forward", "Net")
    freed("logits")
    freed("loss")
    if power:
        made("table", round(batch**power * power_bytes), "aten::mul", "temporary", "forward", "Net")
        freed("table")
    for layer in reversed(range(LAYERS)):
        module = f"Net.layers.{layer}"
        made(f"g{layer}", weight_bytes, "aten::mm", "gradient", "backward", module)
        for part in range(parts):
            made(f"p{layer}.{part}", weight_bytes, "aten::mm", "autograd_detail", "backward", module)
            freed(f"p{layer}.{part}")
        freed(f"h{layer}")
    for layer in range(LAYERS):
        if step == 0:
            for moment in "mv":
                made(f"{moment}{layer}", weight_bytes, "aten::zeros_like", "optimizer_state", "optimizer")
    for layer in range(LAYERS):
        if not keeps_gradients:
            freed(f"g{layer}")
        if scratch:
            made(f"t{layer}", scratch_bytes, scratch, "temporary", "optimizer")
            freed(f"t{layer}")
    freed("x")
    log.step_ends(step, at=at + 1)


def given_inputs(log: RankLog, batches: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of ``step_input`` of such a training: a call of the model each step, samples of 256 floats."""
    return [
        {
            "session_id": log.session_id, "attempt": 0, "rank": log.rank, "step": step,
            "time_ns": SECOND_NS, "seq": log.steps[step]["seq"], "module": "Net", "with_grad": True,
            "argument": "0", "dtype": "float32", "shape": f"[{batch}, 256]",
            "size_bytes": batch * SAMPLE_BYTES, "call_bytes": batch * SAMPLE_BYTES, "num_left_out": 0,
        }
        for step, batch in enumerate(batches)
    ]  # fmt: skip
