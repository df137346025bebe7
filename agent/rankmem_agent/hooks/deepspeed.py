"""Steps of DeepSpeed's ZeRO, and parameters and gradients of its stage 3, which gathers and reduces itself.

Stage: trainer, the threads that run modules and backward. Comes in: calls of DeepSpeed's gather handles and
of its optimizer, which :mod:`rankmem_agent.hooks.sharding` has wrapped here (run with 0.18 and 0.19; where a
name is missing, nothing is wrapped), and the attributes that it gives to parameters. Goes out: tensors, to
:mod:`rankmem_agent.hooks.sharding`, and where a step begins and ends, to :mod:`rankmem_agent.hooks.steps`. It
keeps no tensor.

- *Steps*: ZeRO's ``step()`` calls that of torch's optimizer for one group of parameters after the other.
- *Parameters*: the partitions (``param.ds_tensor``), once a model runs; the whole ones, and the buffer that
  they were received in, each time that they are gathered. The optimizer's own copies are an optimizer's
  parameters like any others.
- *Gradients*: the flat buffers of partitions and of the reduction, once a model runs; each whole gradient and
  what the reduction gave, when it is partitioned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.wrapping import Call, TensorSink, wrapped

PARTITION: Final = "deepspeed.runtime.zero.partition_parameters"
STAGE_1_AND_2: Final = "deepspeed.runtime.zero.stage_1_and_2"
STAGE_3: Final = "deepspeed.runtime.zero.stage3"


def wrap_stage_1_and_2(module: Any, steps: Steps) -> None:
    """Wraps the optimizer's ``step()``.

    Args:
        module: ``deepspeed.runtime.zero.stage_1_and_2``.
        steps: is told of each.
    """
    _wrap_step(getattr(module, "DeepSpeedZeroOptimizer", None), steps)


def _wrap_step(optimizer: Any, steps: Steps) -> None:
    genuine = getattr(optimizer, "step", None)
    if genuine is None:
        return
    optimizer.step = wrapped(
        genuine,
        before=lambda call: steps.begin_outer(id(call.args[0])),
        lastly=lambda call: steps.leave_outer(id(call.args[0])),
        after=lambda call, _: steps.outer_ended(),
    )


def wrap_handles(module: Any, parameter: TensorSink) -> None:
    """Wraps what waits for gathered parameters.

    Args:
        module: ``deepspeed.runtime.zero.partition_parameters``.
        parameter: receives each of them.
    """
    _wrap_wait(
        getattr(module, "AllGatherHandle", None),
        lambda its: [
            getattr(getattr(its, "_AllGatherHandle__param", None), "data", None),
            getattr(its, "_AllGatherHandle__param_buffer", None),
        ],
        parameter,
    )
    for name in ("AllGatherCoalescedHandle", "AllReduceCoalescedHandle"):
        _wrap_wait(
            getattr(module, name, None),
            lambda its: [
                [each.data for each in getattr(its, "params", ())],
                list(getattr(its, "partitions", None) or ()),
            ],
            parameter,
        )


def _wrap_wait(handle: Any, received: Callable[[Any], Any], parameter: TensorSink) -> None:
    genuine = getattr(handle, "wait", None)
    if genuine is None:
        return

    handle.wait = wrapped(genuine, after=lambda call, _: parameter(functools.partial(received, call.args[0])))


def wrap_stage_3(module: Any, gradient: TensorSink, steps: Steps) -> None:
    """Wraps the optimizer's ``step()``, and its method that keeps a rank's part of the gradients.

    Args:
        module: ``deepspeed.runtime.zero.stage3``.
        gradient: receives each gradient.
        steps: is told of each step.
    """
    optimizer: Any = getattr(module, "DeepSpeedZeroOptimizer_Stage3", None)
    _wrap_step(optimizer, steps)
    genuine = getattr(optimizer, "partition_grads", None)
    if genuine is None:
        return

    def partitions(call: Call) -> None:
        args = call.args
        whole = [getattr(each, "grad", None) for each in (args[1] if len(args) > 1 else ())]
        gradient([whole, list(args[2]) if len(args) > 2 else ()])

    optimizer.partition_grads = wrapped(genuine, before=partitions)


def held(root: Any) -> tuple[list[Any], list[Any]]:
    """(parameters, gradients) that ZeRO-3 keeps of a model while it is not gathered; empty without ZeRO-3."""
    parameters = [param for param in root.parameters() if hasattr(param, "ds_tensor")]
    optimizers = {id(each): each for param in parameters if (each := getattr(param, "_z3_optimizer", None))}
    gradients: list[Any] = []
    for each in optimizers.values():
        gradients.append(getattr(each, "grad_partitions_flat_buffer", None))
        buckets = getattr(each, "ipg_buckets", None) or {}
        gradients += [getattr(bucket, "buffer", None) for bucket in buckets.values()]
    return [param.ds_tensor for param in parameters], gradients
