"""The model's parameters by name: WEIGHT records with shape, type, size, gradient's size and place.

Stage: trainer, the threads that call a model first and that call ``optimizer.step()``. Comes in: the trees of
``hooks.module_names``, torch's global hook of parameters' registration (2.6 to 2.13), ``hooks.step_hooks``
before optimizers' steps. Goes out: one record for each parameter, another when its storage has moved and when
its gradient first exists. Tensors are asked for their facts, never for their content. No tensor is kept
alive, and none has a weak reference from us: ``torch.utils.swap_tensors``, which ``module.to()`` may use,
refuses those.

**When.** A whole tree is read when it is called first. From then on before an optimizer's step: where one of
its parameters has moved (``.to()``, FSDP2) or has its first gradient, where a parameter was registered since,
in the first STEPS_LOOKED_AT steps, and in every LOOK_EVERY-th for what no optimizer has. Gradients are looked
for until each has been seen once, GRADIENT_LOOKS times the number of parameters at most: those that never get
one stay at 0.

**What.** Sizes are this rank's: of a DTensor its local shard's, under ZeRO-3 its partition's (beside which
small parameters may be whole from one step to the next), while the shape is the whole one's. Parameters that
share their bytes (tied weights) are one row, under the first name of the tree; those of which this rank keeps
nothing share none.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rankmem_agent.hooks.guard import Guard, unseen_by_listeners, unseen_by_modes
from rankmem_agent.hooks.module_names import ModuleNames, own_parameter, own_parameters, tree
from rankmem_agent.hooks.recorder import Recorder, Removable
from rankmem_agent.hooks.tags import UNREADABLE, device_of, size_of, wants_gradient
from rankmem_agent.signals import raise_of_handler
from rankmem_agent.spool.layout import Kind

STEPS_LOOKED_AT: Final = 4
"""Steps at each of which all parameters are asked where they are: 0.6 us each."""
LOOK_EVERY: Final = 64
"""Steps from one look at all parameters to the next."""
GRADIENT_LOOKS: Final = 64
"""Times that each parameter on average is asked for its first gradient."""
WEIGHTS_MAX: Final = 65_536
"""Names kept of one process; a model has some thousands."""
RETRIES_MAX: Final = 8
"""Steps at which all is read again for parameters without a place: lazy modules, the meta device."""
_Place = tuple[int, int, int]
"""Device type and index, address of the storage."""


@dataclass(slots=True)
class _Weight:
    """A parameter as it was recorded last."""

    module: weakref.ref[Any]
    key: str
    """Its name in the module."""
    place: _Place
    size_bytes: int
    text: int
    """String id of its JSON."""
    grad_size_bytes: int = 0

    def parameter(self) -> Any:
        """The parameter that has the name now; None for none."""
        module = self.module()
        return None if module is None else own_parameter(module, self.key)


class Weights:
    """Records the parameters; made once, when the agent attaches.

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
        self.is_stale = False
        """A parameter was registered since all were read."""
        self._stale: Callable[[], None] = lambda: None
        self._before_look: Callable[[], None] = lambda: None
        self._looked_at_step = -1

    def install(self) -> list[Removable]:
        """Registers the global hook of modules; those of optimizers are ``hooks.step_hooks``'."""
        from torch.nn.modules import module

        return [module.register_module_parameter_registration_hook(self.registered)]

    def when_stale(self, stale: Callable[[], None]) -> None:
        """Has ``stale`` called when parameters are to be read again at the next step. It must not raise."""
        self._stale = stale

    def before_look(self, does: Callable[[], None]) -> None:
        """Has ``does`` called before each look, when tensors can be asked. It must not raise."""
        self._before_look = does

    def want_look(self) -> None:
        """Has all parameters looked at before the next step."""
        self.is_stale = True
        self._stale()

    def stop(self) -> None:
        """Does nothing from now on; the hooks stay registered."""
        self._is_on = False

    def registered(self, module: Any, name: str, parameter: Any, /) -> None:
        """The hook after ``module.name = parameter``."""
        if not self.is_stale and not self._is_compiling():
            self.want_look()

    def tree_named(self, root: Any) -> None:
        """A tree has got its names: records its parameters."""
        self._guarded(lambda: self._read([root]))

    def at_step(self, *, is_due: bool = False) -> None:
        """Before an optimizer's step, when gradients exist: records what has changed, if it is time to look.

        Args:
            is_due: look in any case.
        """
        number = self._step_number()
        is_early = number < STEPS_LOOKED_AT or number % LOOK_EVERY == 0
        if self.is_stale or is_due or (is_early and number != self._looked_at_step):
            self._looked_at_step = number  # many optimizers may step within one step
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
        self._before_look()
        if self.is_stale or any(map(_is_elsewhere, list(self._weights.values()))):
            self.is_stale = False
            self._read(self._names.roots())
        if self._without_gradient and self._gradient_looks_left > 0:
            self._look_for_gradients()

    def _read(self, roots: list[Any]) -> None:
        """Records the parameters of some trees that are new or have moved."""
        seen: set[tuple[_Place, int, int]] = set()
        is_incomplete = False
        for name, module, key, parameter in self._parameters(roots):
            try:
                own = _kept(parameter)
                place, offset, size_bytes = _place(own), own.storage_offset(), size_of(own)
                shape = getattr(parameter, "ds_shape", parameter.shape)  # ZeRO-3 empties what it does not use
                facts = {"dtype": str(parameter.dtype).removeprefix("torch."), "shape": list(shape)}
            except UNREADABLE as error:
                raise_of_handler(error)
                place = None
            if place is None:
                is_incomplete = True
            elif not size_bytes or (place, offset, size_bytes) not in seen:
                seen.add((place, offset, size_bytes))
                self._update(name, module, key, parameter, place, size_bytes, facts)
        if is_incomplete and self._retries_left > 0:
            self._retries_left -= 1
            self.want_look()

    def _parameters(self, roots: list[Any]) -> Iterator[tuple[str, Any, str, Any]]:
        """All parameters of some trees: name, module, name in the module, parameter."""
        for root in roots:
            named = self._names.of(root)
            prefix = named.prefix if named is not None else ""
            for path, module in tree(root):
                for key, parameter in own_parameters(module):
                    yield ".".join(part for part in (prefix, path, key) if part), module, key, parameter

    def _update(
        self,
        name: str,
        module: Any,
        key: str,
        parameter: Any,
        place: _Place,
        size_bytes: int,
        facts: Mapping[str, object],
    ) -> None:
        known = self._weights.get(name)
        if known is None and len(self._weights) >= WEIGHTS_MAX:
            return
        text = self._recorder.intern(json.dumps({"name": name, **facts}))
        if known is not None and (known.place, known.size_bytes, known.text) == (place, size_bytes, text):
            return
        weight = _Weight(weakref.ref(module), key, place, size_bytes, text)
        self._weights[name] = weight
        if known is not None:
            self._without_gradient = [each for each in self._without_gradient if each is not known]
        if wants_gradient(parameter):
            self._without_gradient.append(weight)
            self._gradient_looks_left += GRADIENT_LOOKS
        self._record(weight)

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
            address=address,
            size_bytes=weight.size_bytes,
            grad_size_bytes=weight.grad_size_bytes,
            facts=weight.text,
        )


def _kept(parameter: Any) -> Any:
    """What this rank keeps of it in any case: of a DTensor its shard, under ZeRO-3 its partition."""
    for name in ("_local_tensor", "ds_tensor"):
        own = getattr(parameter, name, None)
        if own is not None:
            return own
    return parameter


def _place(kept: Any) -> _Place | None:
    """Where its storage is; None on a device that is not recorded, the meta device among them."""
    device = device_of(kept)
    return None if device is None else (*device, int(kept.untyped_storage().data_ptr()))


def _is_elsewhere(weight: _Weight) -> bool:
    parameter = weight.parameter()
    if parameter is None:
        return True
    try:
        return _place(_kept(parameter)) != weight.place
    except UNREADABLE as error:
        raise_of_handler(error)
        return True


def _grad_size(parameter: Any) -> int:
    """Bytes of a parameter's gradient on this rank; 0 without one."""
    try:
        if parameter is None or not parameter.is_leaf:  # torch warns who asks another for its gradient
            return 0
        gradient = parameter.grad
        if gradient is None:
            return 0
        if gradient.is_sparse:
            with unseen_by_listeners():
                return size_of(gradient._indices()) + size_of(gradient._values())
        return size_of(gradient)
    except UNREADABLE as error:
        raise_of_handler(error)
        return 0
