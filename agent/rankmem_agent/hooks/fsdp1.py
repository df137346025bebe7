"""Parameters and gradients of FSDP1, flat ones that it gathers and scatters itself.

Stage: trainer, the threads that run modules and backward. Comes in: calls of torch's ``FlatParamHandle`` and
of two functions of its runtime, which :mod:`rankmem_agent.hooks.sharding` has wrapped here (2.6 to 2.13;
where they are missing, nothing is wrapped). Goes out: tensors, to the sharding hooks. It keeps none.

- *Parameters*: a rank's own part when the training begins, and the whole flat parameter each time that it is
  gathered, also in low precision.
- *Gradients*: the whole one when backward has made it, and what is sent to the reduction and received from
  it.
"""

from __future__ import annotations

from typing import Any, Final

from rankmem_agent.hooks.wrapping import Call, TensorSink, wrapped

FLAT: Final = "torch.distributed.fsdp._flat_param"
RUNTIME: Final = "torch.distributed.fsdp._runtime_utils"


def wrap_handles(module: Any, parameter: TensorSink) -> None:
    """Wraps the methods that make flat parameters.

    Args:
        module: ``torch.distributed.fsdp._flat_param``.
        parameter: receives each of them.
    """
    handle: Any = getattr(module, "FlatParamHandle", None)
    made_in = {
        "init_flat_param_attributes": "_local_shard",
        "_alloc_padded_unsharded_flat_param": "_full_param_padded",
        "_use_low_precision_shard": "_mp_shard",
    }
    for method, attribute in made_in.items():
        if hasattr(handle, method):
            setattr(handle, method, _reporting(getattr(handle, method), attribute, parameter))


def _reporting(genuine: Any, attribute: str, parameter: TensorSink) -> Any:
    def report(call: Call, result: Any) -> None:
        parameter([result, getattr(getattr(call.args[0], "flat_param", None), attribute, None)])

    return wrapped(genuine, after=report)


def wrap_runtime(module: Any, gradient: TensorSink) -> None:
    """Wraps the functions that reduce gradients.

    Args:
        module: ``torch.distributed.fsdp._runtime_utils``.
        gradient: receives each gradient.
    """
    arrived, prepared = (
        getattr(module, name, None) for name in ("_post_backward_hook", "_get_reduce_scatter_tensors")
    )
    if arrived is None or prepared is None:
        return

    def has_arrived(call: Call) -> None:
        gradient([getattr(getattr(each, "flat_param", None), "grad", None) for each in call.args[1:2]])

    module._post_backward_hook = wrapped(arrived, before=has_arrived)
    module._get_reduce_scatter_tensors = wrapped(
        prepared, after=lambda call, result: gradient([call.args[1:2], result])
    )
