"""The model's parameters by name: WEIGHT records with shape, type, size, gradient's size and place.

Stage: trainer, the threads that call a model first and that call ``optimizer.step()``. Comes in: the trees of
``hooks.module_names``, torch's global hooks of parameters' registration and of optimizers' steps (2.6 to
2.13). Goes out: one record for each parameter, another when its storage has moved and when its gradient
first exists. Tensors are asked for their facts, never for their content, and none is kept alive.

**When.** A whole tree is read when it is called first. From then on once a step, before the optimizer's:
SAMPLE parameters in turn are asked where they are, and only if one has moved (``.to()``, FSDP2) or a
parameter was registered since, all are read again. A part of the model that moves alone is seen within
``parameters / SAMPLE`` steps. Gradients are looked for until each has been seen once, GRADIENT_LOOKS times
the number of parameters at most: those that never get one stay at 0.

**What.** Sizes are this rank's: of a DTensor its local shard's, while the shape is the whole one's.
Parameters that share their bytes (tied weights) are one row, under the first name of the tree.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from rankmem_agent.hooks.guard import Guard, unseen_by_modes
from rankmem_agent.hooks.module_names import ModuleNames, tree
from rankmem_agent.hooks.recorder import Recorder
from rankmem_agent.hooks.steps import Removable
from rankmem_agent.hooks.tags import device_of, size_of
from rankmem_agent.spool.layout import Kind

SAMPLE: Final = 16
"""Parameters asked a step: 10 us."""
GRADIENT_LOOKS: Final = 64
"""Times that each parameter on average is asked for its first gradient."""
WEIGHTS_MAX: Final = 65_536
"""Names kept of one process; a model has some thousands."""
RETRIES_MAX: Final = 8
"""Steps at which all is read again for parameters without a place: lazy modules, the meta device."""
_UNREADABLE: Final = (RuntimeError, NotImplementedError, TypeError, AttributeError, ValueError)
"""What tensors raise that have no storage or no shape yet."""


_Place = tuple[int, int, int]
"""Device type and index, address of the storage."""


@dataclass(slots=True)
class _Weight:
    """A parameter as it was told last."""

    parameter: weakref.ref[Any]
    place: _Place
    size_bytes: int
    text: int
    """String id of its JSON."""
    grad_size_bytes: int = 0


class Weights:
    """Tells the parameters; made once, when the agent attaches.

    Args:
        names: the module trees.
        step_number: the number of the step that is going on.
    """

    def __init__(
        self,
        recorder: Recorder,
        names: ModuleNames,
        step_number: Callable[[], int],
        is_compiling: Callable[[], bool],
        guard: Guard,
    ) -> None:
        self._recorder = recorder
        self._names = names
        self._step_number = step_number
        self._is_compiling = is_compiling
        self._guard = guard.of("weights", self.stop)
        self._is_on = True
        self._weights: dict[str, _Weight] = {}
        self._without_gradient: list[_Weight] = []
        self._gradient_looks_left = 0
        self._retries_left = RETRIES_MAX
        self._is_stale = False
        """A parameter was registered since all were read."""
        self._looked_at_step = -1
        self._next_sample = 0

    def install(self) -> list[Removable]:
        """Registers the global hooks."""
        from torch.nn.modules import module
        from torch.optim import optimizer

        return [
            module.register_module_parameter_registration_hook(self.registered),
            optimizer.register_optimizer_step_pre_hook(lambda *_: self.at_step()),
        ]

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered."""
        self._is_on = False

    def registered(self, module: Any, name: str, parameter: Any) -> None:
        """The hook after ``module.name = parameter``."""
        if not self._is_compiling():
            self._is_stale = True

    def tree_named(self, root: Any) -> None:
        """A tree has got its names: tells its parameters."""
        self._guarded(lambda: self._read([root]))

    def at_step(self) -> None:
        """Before an optimizer's step, when gradients exist: tells what has changed."""
        self._guarded(self._look)

    def _guarded(self, does: Callable[[], None]) -> None:
        if not self._is_on or self._is_compiling():
            return
        try:
            with unseen_by_modes():
                does()
        except Exception as error:  # noqa: BLE001  the trainer's guard
            self._guard.failed(error)

    def _look(self) -> None:
        number = self._step_number()
        if number != self._looked_at_step:  # many optimizers may step within one step
            self._looked_at_step = number
            if self._is_stale or self._has_moved():
                self._is_stale = False
                self._read(self._names.roots())
        if self._without_gradient and self._gradient_looks_left > 0:
            self._look_for_gradients()

    def _read(self, roots: list[Any]) -> None:
        """Tells the parameters of some trees that are new or have moved."""
        seen: set[tuple[_Place, int, int]] = set()
        is_incomplete = False
        for name, parameter in self._parameters(roots):
            try:
                place, offset, size_bytes = _place(parameter), parameter.storage_offset(), size_of(parameter)
                tuple(parameter.shape)  # a lazy module's has a place, but no shape yet
            except _UNREADABLE:
                place = None
            if place is None:
                is_incomplete = True
            elif (place, offset, size_bytes) not in seen:
                seen.add((place, offset, size_bytes))
                self._tell(name, parameter, place, size_bytes)
        if is_incomplete and self._retries_left > 0:
            self._retries_left -= 1
            self._is_stale = True

    def _parameters(self, roots: list[Any]) -> Iterator[tuple[str, Any]]:
        """All parameters of some trees, by name."""
        for root in roots:
            named = self._names.of(root)
            prefix = named.prefix if named is not None else ""
            for path, module in tree(root):
                for key, parameter in module._parameters.items():
                    if parameter is not None:
                        yield ".".join(part for part in (prefix, path, key) if part), parameter

    def _tell(self, name: str, parameter: Any, place: _Place, size_bytes: int) -> None:
        known = self._weights.get(name)
        if known is not None and known.parameter() is parameter:
            if (known.place, known.size_bytes) == (place, size_bytes):
                return
        elif known is None and len(self._weights) >= WEIGHTS_MAX:
            return
        dtype = str(parameter.dtype).removeprefix("torch.")
        text = self._recorder.intern(
            json.dumps({"name": name, "dtype": dtype, "shape": list(parameter.shape)})
        )
        weight = _Weight(weakref.ref(parameter), place, size_bytes, text)
        self._weights[name] = weight
        if known is not None:
            self._without_gradient = [each for each in self._without_gradient if each is not known]
        if parameter.requires_grad:
            self._without_gradient.append(weight)
            self._gradient_looks_left += GRADIENT_LOOKS
        self._record(weight)

    def _has_moved(self) -> bool:
        """True if one of the next SAMPLE parameters is not where it was told to be."""
        weights = list(self._weights.values())
        first = self._next_sample if self._next_sample < len(weights) else 0
        self._next_sample = first + SAMPLE
        return any(_is_elsewhere(weight) for weight in weights[first : first + SAMPLE])

    def _look_for_gradients(self) -> None:
        left = []
        for weight in self._without_gradient:
            size_bytes = _grad_size(weight.parameter())
            if size_bytes == 0:
                left.append(weight)
                continue
            weight.grad_size_bytes = size_bytes
            self._record(weight)
        self._gradient_looks_left -= len(self._without_gradient)
        self._without_gradient = left

    def _record(self, weight: _Weight) -> None:
        device_type, device_index, address = weight.place
        self._recorder.record(
            Kind.WEIGHT,
            device_type=device_type,
            device_index=device_index,
            a=address,
            b=weight.size_bytes,
            c=weight.grad_size_bytes,
            e=weight.text,
        )


def _place(parameter: Any) -> _Place | None:
    """Where its storage is; None on a device that is not recorded, the meta device among them."""
    device = device_of(parameter)
    if device is None:
        return None
    local = getattr(parameter, "_local_tensor", None)  # DTensor: this rank's shard
    own = parameter if local is None else local
    return (*device, int(own.untyped_storage().data_ptr()))


def _is_elsewhere(weight: _Weight) -> bool:
    parameter = weight.parameter()
    if parameter is None:
        return True
    try:
        return _place(parameter) != weight.place
    except _UNREADABLE:
        return True


def _grad_size(parameter: Any) -> int:
    """Bytes of a parameter's gradient on this rank; 0 without one."""
    if parameter is None or not parameter.is_leaf:  # torch warns who asks another for its gradient
        return 0
    gradient = parameter.grad
    if gradient is None:
        return 0
    try:
        if gradient.is_sparse:
            return size_of(gradient._indices()) + size_of(gradient._values())
        return size_of(gradient)
    except _UNREADABLE:
        return 0
