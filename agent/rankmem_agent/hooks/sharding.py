"""Parameters, gradients and caches that no optimizer and no module sees: TAG records; steps of ZeRO.

Stage: trainer, the threads that run modules and backward. Comes in: calls of classes of torch's (2.6 to
2.13), DeepSpeed's and transformers', whose methods are wrapped once a model runs that may use them; where
they are missing or raise, nothing is recorded. Goes out: TAG records. It keeps no tensor and changes no
result.

- *FSDP2* gathers the parameters of a group of modules before they run and frees them after; no optimizer ever
  sees them, nor the gradients that it reduces and scatters. Tagged when the parameters of a group are whole,
  with the buffer that they were received in, and when its backward has ended, before and after the reduction.
- *A reentrant checkpoint* runs a backward of its own within backward, whose leaves are the inputs of what it
  computed again. Their gradients are ``.grad`` of leaves like any parameter's, until they are handed on.
- *FSDP1*, *ZeRO-3* and *caches of keys and values*: see ``hooks.fsdp1``, ``hooks.deepspeed``,
  ``hooks.caches``.
"""

from __future__ import annotations

import functools
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import Any, Final

from rankmem_agent.hooks import caches, fsdp1
from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.plain_tensors import tensors_of
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.steps import Steps
from rankmem_agent.hooks.tags import Device, address_of, device_of, size_of
from rankmem_agent.hooks.wrapping import TensorSink, wrapped
from rankmem_agent.spool.layout import Category

_FSDP: Final = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
_CHECKPOINT: Final = "torch.utils.checkpoint"
_ZERO: Final = "deepspeed.runtime.zero"


class Sharding:
    """Wraps the methods; made once, when the agent attaches.

    Args:
        steps: is told of ZeRO's steps.
    """

    def __init__(
        self,
        recorder: Recorder,
        is_compiling: Callable[[], bool],
        guard: Guard,
        steps: Steps,
    ) -> None:
        self._recorder = recorder
        self._is_compiling = is_compiling
        self._guard = guard.of("categories of sharded parameters", self.stop)
        self._steps = steps
        self._is_on = True
        self._wrapped: set[str] = set()
        parameter, gradient, cache = (
            functools.partial(self._tag_found, category)
            for category in (Category.PARAMETER, Category.GRADIENT, Category.KV_CACHE)
        )
        self._wraps: dict[str, Callable[[Any], None]] = {
            _FSDP: self._wrap_fsdp,
            _CHECKPOINT: self._wrap_checkpoint,
            fsdp1.FLAT: functools.partial(fsdp1.wrap_handles, parameter=parameter),
            fsdp1.RUNTIME: functools.partial(fsdp1.wrap_runtime, gradient=gradient),
            caches.TRANSFORMERS: functools.partial(caches.wrap_caches, cache=cache),
            _ZERO: functools.partial(self._load_zero, parameter, gradient),
        }
        """The wrapper for each of their modules, once it is imported."""
        self._tag_held: Callable[[Any], None] | None = None
        """Tags what ZeRO-3 keeps of a model, once it may keep something."""

    def look(self, root: object = None) -> None:
        """Wraps what has been imported by now: when a model is called first."""
        for name, wrap in list(self._wraps.items()):
            module = sys.modules.get(name)
            if module is not None and name not in self._wrapped and self._is_on:
                self._wrapped.add(name)
                self._guarded(wrap, module)
        if self._tag_held is not None and root is not None:
            self._guarded(self._tag_held, root)

    def stop(self) -> None:
        """Does nothing from now on; the methods stay wrapped."""
        self._is_on = False

    def _wrap_fsdp(self, module: Any) -> None:
        group: Any = getattr(module, "FSDPParamGroup", None)
        if not hasattr(group, "_to_unsharded") or not hasattr(group, "post_backward"):
            return
        group._to_unsharded = wrapped(
            group._to_unsharded, after=lambda call, _: self._guarded(self._gathered, call.args[0])
        )
        group.post_backward = wrapped(
            group.post_backward,
            before=lambda call: self._guarded(self._computed, call.args[0]),
            after=lambda call, _: self._guarded(self._reduced, call.args[0]),
        )

    def _load_zero(self, parameter: TensorSink, gradient: TensorSink, _: object) -> None:
        """Adds the wrappers for ZeRO's modules; their code is loaded beside DeepSpeed alone."""
        from rankmem_agent.hooks import deepspeed

        def tag_held(root: Any) -> None:
            parameters, gradients = deepspeed.held(root)
            self._tag(Category.PARAMETER, parameters)
            self._tag(Category.GRADIENT, gradients)

        def wrap_stage_3(module: Any) -> None:
            self._tag_held = tag_held
            deepspeed.wrap_stage_3(module, gradient, self._steps)

        self._wraps |= {
            deepspeed.PARTITION: functools.partial(deepspeed.wrap_handles, parameter=parameter),
            deepspeed.STAGE_1_AND_2: functools.partial(deepspeed.wrap_stage_1_and_2, steps=self._steps),
            deepspeed.STAGE_3: wrap_stage_3,
        }
        self.look()

    def _wrap_checkpoint(self, module: Any) -> None:
        function: Any = getattr(module, "CheckpointFunction", None)
        genuine = getattr(function, "backward", None)
        if genuine is None:
            return
        backward = wrapped(genuine, after=lambda _, gradients: self._guarded(self._handed_on, gradients))
        function.backward = staticmethod(backward)

    def _gathered(self, group: Any) -> None:
        """The parameters of a group are whole."""
        received = getattr(getattr(group, "_all_gather_result", None), "all_gather_output", None)
        whole = [getattr(each, "_unsharded_param", None) for each in group.fsdp_params]
        self._tag(Category.PARAMETER, [*whole, received])

    def _computed(self, group: Any) -> None:
        """A group's backward has ended: gradients of whole parameters, and sums over micro-batches."""
        tensors = []
        for each in group.fsdp_params:
            tensors.append(getattr(getattr(each, "_unsharded_param", None), "grad", None))
            tensors.append(getattr(each, "unsharded_accumulated_grad", None))
        self._tag(Category.GRADIENT, tensors)

    def _reduced(self, group: Any) -> None:
        """The reduction has been sent off: what it sends, and the sharded gradients that it gives."""
        sent = getattr(group.comm_ctx, "reduce_scatter_states", None)
        last = sent[-1] if sent else getattr(group.comm_ctx, "reduce_scatter_state", None)
        parameters = [getattr(each, "sharded_param", None) for each in group.fsdp_params]
        given = [getattr(parameter, "grad", None) for parameter in parameters]
        accumulated = [getattr(each, "unsharded_accumulated_grad", None) for each in group.fsdp_params]
        self._tag(Category.GRADIENT, [getattr(last, "reduce_scatter_input", None), *given, *accumulated])

    def _tag_found(self, category: Category, about: Any) -> None:
        """Tags tensors that another module found: in containers, or returned by a function."""
        if self._is_on:
            self._guarded(functools.partial(self._tag_all, category), about)

    def _tag_all(self, category: Category, about: Any) -> None:
        self._tag(category, tensors_of(about() if callable(about) else about, set()))

    def _handed_on(self, gradients: Any) -> None:
        self._tag(Category.GRADIENT, [each for each in gradients if hasattr(each, "data_ptr")])

    def _tag(self, category: Category, tensors: Iterable[Any]) -> None:
        """Tags tensors, those of a device in one call of the tap."""
        by_device: dict[Device, list[Any]] = {}
        for tensor in tensors:
            device = device_of(tensor) if tensor is not None else None
            if device is not None:
                by_device.setdefault(device, []).append(tensor)
        for device, own in by_device.items():
            addresses = array("Q", map(address_of, own))
            sizes, names = array("Q", map(size_of, own)), array("I", [0]) * len(own)
            self._recorder.tag(category, *device, addresses, sizes, names)

    def _guarded(self, does: Callable[[Any], None], about: Any) -> None:
        if not self._is_on or self._is_compiling():
            return
        try:
            with unseen_by_modes():
                does(about)
        except Exception as error:  # noqa: BLE001  the trainer's guard: others' classes change
            self._guard.failed(error)
